"""Topologies from files of edges, as text or as TOML."""

import re
from collections.abc import Sequence
from pathlib import Path

from melisma.errors import SettingError
from melisma.fleet.files.toml_file import read_text, read_toml
from melisma.fleet.tables import Table
from melisma.fleet.task import check_name
from melisma.peer.topology import Edge, Topology, add_edge, format_edge

Located = list[tuple[str, Sequence[str]]]
"""The names on each line, with its location for error messages."""


class EdgesFile(Table, frozen=True, kw_only=True):
    """A topology in TOML."""

    edges: list[list[str]]


def read_topology(path: str | Path) -> Topology:
    """Read a connected topology; nodes are in the order in which they are first named.

    Text has one edge per line, two names with a blank or a comma between them, and comments after
    `#`; TOML has `edges`, a list of pairs of names. `SettingError` names file and line.
    """
    located = _toml_edges(path) if str(path).endswith(".toml") else _text_edges(path)
    edges: set[Edge] = set()
    for location, names in located:
        try:
            if len(names) != 2:
                raise ValueError(f"{format_edge(names)!r:.60}; expected an edge: two names")  # noqa: TRY301
            for name in names:
                check_name(name)
            add_edge((names[0], names[1]), edges)
        except ValueError as error:
            raise SettingError(f"{path}:{location}: {error}") from None
    if not located:
        raise SettingError(f"{path} has no edges; expected one per line, such as: a b")
    pairs = [(names[0], names[1]) for _, names in located]
    topology = Topology(tuple(dict.fromkeys(name for pair in pairs for name in pair)), tuple(pairs))
    _check_connected(path, topology)
    return topology


def _toml_edges(path: str | Path) -> Located:
    edges = read_toml(path, EdgesFile).edges
    return [(f" edges[{index}]", names) for index, names in enumerate(edges)]


def _text_edges(path: str | Path) -> Located:
    lines = enumerate(read_text(path).splitlines(), 1)
    split = (
        (str(number), re.split(r"\s*,\s*|\s+", text.partition("#")[0].strip()))
        for number, text in lines
    )
    return [(location, names) for location, names in split if names != [""]]


def _check_connected(path: str | Path, topology: Topology) -> None:
    parts = topology.parts()
    if len(parts) > 1:
        raise SettingError(
            f"{path}: the graph has {len(parts)} parts that are not connected: "
            f"{_list_parts(parts)}; expected a path from every node to every other"
        )


def _list_parts(parts: list[list[str]]) -> str:
    """List the first few nodes of the first few parts."""
    listed = [" ".join(part[:5]) + (" ..." if len(part) > 5 else "") for part in parts[:4]]
    return " | ".join([*listed, "..."] if len(parts) > 4 else listed)
