"""Who is whose neighbour: undirected graphs of named nodes, by name or from a file.

A graph by chance is drawn again until it is connected. Random regular graphs are made by pairing
(Steger and Wormald 1999), small worlds as by Watts and Strogatz 1998.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import isqrt
from pathlib import Path

import numpy as np

from melisma.errors import SettingError, suggest
from melisma.fleet.rng import generator
from melisma.fleet.task import Table, check_name
from melisma.fleet.toml_file import read, text_of

Edge = tuple[str, str]
# Of numbers of nodes, the smaller one first.
Pair = tuple[int, int]

MAX_DRAWS = 1000
FILE_SUFFIXES = (".txt", ".csv", ".toml")
OTHER_FORMS = (
    f"torus:3x4, regular:3, small-world:4,0.1, or a file that ends in {', '.join(FILE_SUFFIXES)}"
)


@dataclass(frozen=True)
class Topology:
    """Nodes, and pairs of them; `SettingError` for an edge that cannot be."""

    names: tuple[str, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        known: dict[str, None] = dict.fromkeys(self.names)
        if len(known) < len(self.names):
            raise SettingError("two nodes have the same name; expected names of their own")
        seen: set[Edge] = set()
        for edge in self.edges:
            if not known.keys() >= set(edge):
                raise SettingError(f"edge {_said(edge)}: expected names of nodes")
            _add(edge, seen)

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Of one node, in the order of names."""
        return self._neighbours[name]

    def degree(self, name: str) -> int:
        """How many neighbours a node has."""
        return len(self._neighbours[name])

    def without(self, gone: Collection[str]) -> "Topology":
        """What is left when some nodes are gone; it may fall into parts."""
        left = set(self.names).difference(gone)
        return Topology(
            tuple(name for name in self.names if name in left),
            tuple(edge for edge in self.edges if left.issuperset(edge)),
        )

    def parts(self) -> list[list[str]]:
        """Nodes that are connected with each other, each part and all parts in order of names."""
        part_of: dict[str, list[str]] = {}
        parts: list[list[str]] = []
        for name in self.names:
            if name not in part_of:
                parts.append([])
                self._reach(name, parts[-1], part_of)
            part_of[name].append(name)
        return parts

    def _reach(self, start: str, part: list[str], part_of: dict[str, list[str]]) -> None:
        part_of[start], waiting = part, [start]
        while waiting:
            for other in self._neighbours[waiting.pop()]:
                if other not in part_of:
                    part_of[other] = part
                    waiting.append(other)

    @cached_property
    def _neighbours(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, list[str]] = {name: [] for name in self.names}
        for one, other in self.edges:
            found[one].append(other)
            found[other].append(one)
        place = {name: number for number, name in enumerate(self.names)}
        return {name: tuple(sorted(near, key=place.__getitem__)) for name, near in found.items()}


def topology_for(name: str, nodes: int, seed: int) -> Topology:
    """The topology of that name with so many nodes, or of that file with its own.

    `SettingError` says what is wrong with it and what would be right.
    """
    if name.endswith(FILE_SUFFIXES):
        return read_topology(name)
    kind, _, args = name.partition(":")
    if args and kind in PARSERS:
        return PARSERS[kind](args, nodes, seed)
    if name not in GENERATORS:
        raise SettingError(f"topology is {name!r}; {suggest(kind, GENERATORS, OTHER_FORMS)}")
    return GENERATORS[name](nodes, seed)


def ring(nodes: int) -> Topology:
    """Each has the one before and the one after; the last and the first are neighbours too."""
    _check_nodes("ring", nodes, 1)
    return _numbered(nodes, _ring(range(nodes)))


def line(nodes: int) -> Topology:
    """A ring that is open."""
    _check_nodes("line", nodes, 1)
    return _numbered(nodes, ((place, place + 1) for place in range(nodes - 1)))


def star(nodes: int) -> Topology:
    """The first is everybody's only neighbour."""
    _check_nodes("star", nodes, 2)
    return _numbered(nodes, ((0, place) for place in range(1, nodes)))


def complete(nodes: int) -> Topology:
    """Everybody with everybody."""
    _check_nodes("complete", nodes, 1)
    return _numbered(nodes, combinations(range(nodes), 2))


def torus(rows: int, columns: int) -> Topology:
    """A grid whose rows and columns are rings."""
    if min(rows, columns) < 2:
        raise SettingError(f"torus is {rows}x{columns}; expected sides of at least 2")
    grid = np.arange(rows * columns).reshape(rows, columns)
    rings = [*grid.tolist(), *grid.T.tolist()]
    return _numbered(rows * columns, (pair for each in rings for pair in _ring(each)))


def regular(nodes: int, rng: np.random.Generator, degree: int = 3) -> Topology:
    """By chance, but everybody has as many neighbours."""
    _check_regular(nodes, degree)
    if degree == 2:
        return _numbered(nodes, _ring(rng.permutation(nodes).tolist()))
    # Few edges are soon drawn: of many, those are drawn that are missing.
    missing = degree > nodes // 2
    drawn = nodes - 1 - degree if missing else degree
    for _ in range(MAX_DRAWS):
        pairs = _paired(nodes, drawn, rng)
        if pairs is None:
            continue
        found = _numbered(nodes, _others(nodes, pairs) if missing else pairs)
        if len(found.parts()) == 1:
            return found
    raise SettingError(_in_vain(f"regular:{degree}", nodes))


def small_world(
    nodes: int, rng: np.random.Generator, near: int = 4, rewired: float = 0.1
) -> Topology:
    """A ring where each has its `near` nearest; of the edges a part is led elsewhere by chance."""
    if near < 2 or near % 2 or not 0 <= rewired <= 1:
        raise SettingError(
            f"small-world is {near},{rewired:g}; expected an even number of neighbours of at least "
            "2, and a part from 0 to 1, such as small-world:4,0.1"
        )
    _check_nodes(f"small-world of {near} nearest", nodes, near + 1)
    for _ in range(MAX_DRAWS):
        found = _numbered(nodes, _led_elsewhere(nodes, near, rewired, rng))
        if len(found.parts()) == 1:
            return found
    raise SettingError(_in_vain(f"small-world:{near},{rewired:g}", nodes))


def read_topology(path: str | Path) -> Topology:
    """The topology of a file; nodes are in the order in which they are first named.

    Text has an edge a line, two names with a blank or a comma between them, and comments behind
    `#`; TOML has `edges`, a list of pairs of names. `SettingError` names file and place.
    """
    said = _toml_edges(path) if str(path).endswith(".toml") else _text_edges(path)
    edges: set[Edge] = set()
    for where, names in said:
        try:
            if len(names) != 2:
                raise ValueError(f"{_said(names)!r:.60}; expected an edge: two names")  # noqa: TRY301
            for name in names:
                check_name(name)
            _add((names[0], names[1]), edges)
        except ValueError as error:
            raise SettingError(f"{path}:{where}: {error}") from None
    if not said:
        raise SettingError(f"{path}: there are no edges; expected one a line, such as: a b")
    pairs = [(names[0], names[1]) for _, names in said]
    found = Topology(tuple(dict.fromkeys(name for pair in pairs for name in pair)), tuple(pairs))
    parts = found.parts()
    if len(parts) > 1:
        raise SettingError(
            f"{path}: the graph falls into {len(parts)} parts: {_listed(parts)}; "
            "expected a way from every node to every other"
        )
    return found


class EdgesFile(Table, frozen=True, kw_only=True):
    """A topology in TOML."""

    edges: list[list[str]]


def _toml_edges(path: str | Path) -> list[tuple[str, Sequence[str]]]:
    return [(f" edges[{n}]", names) for n, names in enumerate(read(path, EdgesFile).edges)]


def _text_edges(path: str | Path) -> list[tuple[str, Sequence[str]]]:
    lines = enumerate(text_of(path).splitlines(), 1)
    split = (
        (str(n), re.split(r"\s*,\s*|\s+", text.partition("#")[0].strip())) for n, text in lines
    )
    return [(where, names) for where, names in split if names != [""]]


def _add(edge: Edge, edges: set[Edge]) -> None:
    """Into the set; `SettingError` where it leads to itself, or is there, in either direction."""
    if edge[0] == edge[1]:
        raise SettingError(f"edge {_said(edge)} leads to itself; expected two nodes")
    if edge in edges or edge[::-1] in edges:
        raise SettingError(f"edge {_said(edge)} is there twice; expected it once, in one direction")
    edges.add(edge)


def _numbered(nodes: int, pairs: Iterable[Pair]) -> Topology:
    """Nodes n0, n1 and so on, edges in order; a pair may come twice, as in a ring of two."""
    names = tuple(f"n{number}" for number in range(nodes))
    ordered = sorted({(min(pair), max(pair)) for pair in pairs})
    return Topology(names, tuple((names[one], names[other]) for one, other in ordered))


def _ring(places: Sequence[int]) -> list[Pair]:
    after = [*places[1:], *places[:1]]
    return [pair for pair in zip(places, after, strict=True) if pair[0] != pair[1]]


def _paired(nodes: int, degree: int, rng: np.random.Generator) -> set[Pair] | None:
    """Ends of edges paired by chance, those that do not fit again; none where that is stuck."""
    pairs: set[Pair] = set()
    ends = np.repeat(np.arange(nodes), degree)
    while ends.size:
        left: list[Pair] = []
        for pair in np.sort(rng.permutation(ends).reshape(-1, 2)).tolist():
            one, other = pair
            if one == other or (one, other) in pairs:
                left.append((one, other))
            else:
                pairs.add((one, other))
        if 2 * len(left) == ends.size:
            return None
        ends = np.array(left, dtype=np.int64).reshape(-1)
    return pairs


def _others(nodes: int, pairs: set[Pair]) -> Iterable[Pair]:
    return (pair for pair in combinations(range(nodes), 2) if pair not in pairs)


def _led_elsewhere(
    nodes: int, near: int, rewired: float, rng: np.random.Generator
) -> Iterable[Pair]:
    """The edges of a small world: of each the first end stays."""
    found = {place: set[int]() for place in range(nodes)}
    edges = [(place, (place + far) % nodes) for far in range(1, near // 2 + 1) for place in found]
    for one, other in edges:
        found[one].add(other)
        found[other].add(one)
    for (one, other), drawn in zip(edges, rng.random(len(edges)).tolist(), strict=True):
        # Who is everybody's neighbour has nowhere else to lead an edge.
        if drawn < rewired and len(found[one]) < nodes - 1:
            new = int(rng.integers(nodes))
            while new == one or new in found[one]:
                new = int(rng.integers(nodes))
            found[one].remove(other)
            found[other].remove(one)
            found[one].add(new)
            found[new].add(one)
    return ((one, other) for one, near_one in found.items() for other in near_one)


def _torus_of(nodes: int) -> Topology:
    """As square as can be."""
    _check_nodes("torus", nodes, 4)
    rows = next(side for side in range(isqrt(nodes), 0, -1) if nodes % side == 0)
    if rows == 1:
        raise SettingError(
            f"torus of {nodes} nodes: {nodes} is prime; expected rows times columns of at least 2 "
            f"each, such as {nodes - 1} or {nodes + 1} nodes"
        )
    return torus(rows, nodes // rows)


def _torus_said(args: str, nodes: int, _: int) -> Topology:
    sides = re.fullmatch(r"(\d{1,9})x(\d{1,9})", args)
    if sides is None:
        raise SettingError(f"topology is 'torus:{args}'; expected rows x columns as in torus:3x4")
    rows, columns = map(int, sides.groups())
    if rows * columns != nodes:
        raise SettingError(f"torus:{args} has {rows * columns} nodes; expected {nodes}, as asked")
    return torus(rows, columns)


def _regular_said(args: str, nodes: int, seed: int) -> Topology:
    if not re.fullmatch(r"\d{1,9}", args):
        raise SettingError(f"topology is 'regular:{args}'; expected a degree as in regular:3")
    return regular(nodes, generator(seed, "topology"), int(args))


def _small_world_said(args: str, nodes: int, seed: int) -> Topology:
    said = re.fullmatch(r"(\d{1,9}),(\d*\.?\d+)", args)
    if said is None:
        raise SettingError(
            f"topology is 'small-world:{args}'; expected neighbours and the part that is rewired "
            "as in small-world:4,0.1"
        )
    return small_world(nodes, generator(seed, "topology"), int(said[1]), float(said[2]))


GENERATORS: dict[str, Callable[[int, int], Topology]] = {
    "ring": lambda nodes, _: ring(nodes),
    "line": lambda nodes, _: line(nodes),
    "star": lambda nodes, _: star(nodes),
    "complete": lambda nodes, _: complete(nodes),
    "torus": lambda nodes, _: _torus_of(nodes),
    "regular": lambda nodes, seed: regular(nodes, generator(seed, "topology")),
    "small-world": lambda nodes, seed: small_world(nodes, generator(seed, "topology")),
}
PARSERS: dict[str, Callable[[str, int, int], Topology]] = {
    "torus": _torus_said,
    "regular": _regular_said,
    "small-world": _small_world_said,
}


def _check_nodes(what: str, nodes: int, least: int) -> None:
    if nodes < least:
        raise SettingError(f"{what} has {nodes} nodes; expected at least {least}")


def _check_regular(nodes: int, degree: int) -> None:
    said = f"regular:{degree} with {nodes} nodes"
    if degree >= nodes:
        raise SettingError(f"{said}: expected more nodes than neighbours, at least {degree + 1}")
    if degree < 1 or (degree == 1 and nodes > 2):
        raise SettingError(f"{said} is not connected; expected a degree of at least 2")
    if nodes * degree % 2:
        raise SettingError(f"{said}: both are odd; expected {nodes + 1} nodes, or another degree")


def _in_vain(name: str, nodes: int) -> str:
    return (
        f"{name} with {nodes} nodes: none of {MAX_DRAWS} random graphs is connected; expected more "
        "neighbours"
    )


def _said(edge: Sequence[str]) -> str:
    return " ".join(edge)


def _listed(parts: list[list[str]]) -> str:
    """The first few of a few."""
    some = [" ".join(part[:5]) + (" ..." if len(part) > 5 else "") for part in parts[:4]]
    return " | ".join([*some, "..."] if len(parts) > 4 else some)
