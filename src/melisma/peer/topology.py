"""Undirected graphs of named nodes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from melisma.errors import SettingError

Edge = tuple[str, str]


@dataclass(frozen=True)
class Topology:
    """Nodes and edges; `SettingError` for an edge that is invalid or there twice."""

    names: tuple[str, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        known: dict[str, None] = dict.fromkeys(self.names)
        if len(known) < len(self.names):
            raise SettingError("two nodes have the same name; expected unique names")
        seen: set[Edge] = set()
        for edge in self.edges:
            if not known.keys() >= set(edge):
                raise SettingError(f"edge {format_edge(edge)}: expected names of nodes")
            add_edge(edge, seen)

    def neighbours(self, name: str) -> tuple[str, ...]:
        """Return the neighbours of a node, in the order of `names`."""
        return self._neighbours[name]

    def degree(self, name: str) -> int:
        """Return the number of neighbours of a node."""
        return len(self._neighbours[name])

    def without(self, names: Collection[str]) -> "Topology":
        """Return the graph without these nodes; it need not be connected."""
        remaining = set(self.names).difference(names)
        return Topology(
            tuple(name for name in self.names if name in remaining),
            tuple(edge for edge in self.edges if remaining.issuperset(edge)),
        )

    def parts(self) -> list[list[str]]:
        """Return the connected components, in the order of `names`."""
        part_of: dict[str, list[str]] = {}
        parts: list[list[str]] = []
        for name in self.names:
            if name not in part_of:
                parts.append([])
                self._assign_component(name, parts[-1], part_of)
            part_of[name].append(name)
        return parts

    def _assign_component(self, start: str, part: list[str], part_of: dict[str, list[str]]) -> None:
        part_of[start], waiting = part, [start]
        while waiting:
            for neighbour in self._neighbours[waiting.pop()]:
                if neighbour not in part_of:
                    part_of[neighbour] = part
                    waiting.append(neighbour)

    @cached_property
    def _neighbours(self) -> dict[str, tuple[str, ...]]:
        neighbours: dict[str, list[str]] = {name: [] for name in self.names}
        for left, right in self.edges:
            neighbours[left].append(right)
            neighbours[right].append(left)
        index = {name: number for number, name in enumerate(self.names)}
        return {
            name: tuple(sorted(near, key=index.__getitem__)) for name, near in neighbours.items()
        }


def add_edge(edge: Edge, edges: set[Edge]) -> None:
    """Add an edge to a set; raise `SettingError` for a loop or a repeated edge."""
    if edge[0] == edge[1]:
        raise SettingError(f"edge {format_edge(edge)} leads to itself; expected two nodes")
    if edge in edges or edge[::-1] in edges:
        raise SettingError(
            f"edge {format_edge(edge)} is there twice; expected it once, in one direction"
        )
    edges.add(edge)


def format_edge(edge: Sequence[str]) -> str:
    """Return the names of an edge as a file has them."""
    return " ".join(edge)
