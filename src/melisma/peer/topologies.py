"""Topologies by name: ring, line, star, complete, torus, regular and small-world graphs.

A random graph is drawn again until it is connected. Random regular graphs are drawn by pairing
(Steger and Wormald 1999), small worlds by rewiring a ring lattice (Watts and Strogatz 1998).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import isqrt

import numpy as np

from melisma.errors import SettingError, suggest
from melisma.fleet.rng import generator
from melisma.peer.topology import Topology
from melisma.peer.topology_file import read_topology

# Indices of two nodes, the smaller one first.
Pair = tuple[int, int]

MAX_DRAWS = 1000
FILE_SUFFIXES = (".txt", ".csv", ".toml")
OTHER_FORMS = (
    f"torus:3x4, regular:3, small-world:4,0.1, or a file that ends in {', '.join(FILE_SUFFIXES)}"
)


def topology_for(name: str, nodes: int, seed: int) -> Topology:
    """Create the topology of that name, or read it from a file, which sets the number of nodes.

    Raise `SettingError` if it is unknown or invalid.
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
    """Connect each node with the previous and the next, and the last with the first."""
    _check_nodes("ring", nodes, 1)
    return _from_pairs(nodes, _ring_pairs(range(nodes)))


def line(nodes: int) -> Topology:
    """Connect each node with the next."""
    _check_nodes("line", nodes, 1)
    return _from_pairs(nodes, ((index, index + 1) for index in range(nodes - 1)))


def star(nodes: int) -> Topology:
    """Connect the first node with all others."""
    _check_nodes("star", nodes, 2)
    return _from_pairs(nodes, ((0, index) for index in range(1, nodes)))


def complete(nodes: int) -> Topology:
    """Connect all pairs of nodes."""
    _check_nodes("complete", nodes, 1)
    return _from_pairs(nodes, combinations(range(nodes), 2))


def torus(rows: int, columns: int) -> Topology:
    """Connect a grid whose rows and columns are rings."""
    if min(rows, columns) < 2:
        raise SettingError(f"torus is {rows}x{columns}; expected sides of at least 2")
    grid = np.arange(rows * columns).reshape(rows, columns)
    rings = [*grid.tolist(), *grid.T.tolist()]
    return _from_pairs(rows * columns, (pair for ring in rings for pair in _ring_pairs(ring)))


def regular(nodes: int, rng: np.random.Generator, degree: int = 3) -> Topology:
    """Draw a connected graph in which all nodes have the same degree."""
    _check_regular(nodes, degree)
    if degree == 2:
        return _from_pairs(nodes, _ring_pairs(rng.permutation(nodes).tolist()))
    # Pairing succeeds soon for few edges only, so for dense graphs draw the complement.
    dense = degree > nodes // 2
    drawn_degree = nodes - 1 - degree if dense else degree
    for _ in range(MAX_DRAWS):
        pairs = _draw_pairing(nodes, drawn_degree, rng)
        if pairs is None:
            continue
        topology = _from_pairs(nodes, _complement(nodes, pairs) if dense else pairs)
        if len(topology.parts()) == 1:
            return topology
    raise _disconnection_error(f"regular:{degree}", nodes)


def small_world(
    nodes: int, rng: np.random.Generator, near: int = 4, rewired: float = 0.1
) -> Topology:
    """Connect each node with its `near` nearest on a ring, and rewire a fraction of the edges."""
    if near < 2 or near % 2 or not 0 <= rewired <= 1:
        raise SettingError(
            f"small-world is {near},{rewired:g}; expected an even number of neighbours of at least "
            "2, and a fraction from 0 to 1, such as small-world:4,0.1"
        )
    _check_nodes(f"small-world of {near} nearest", nodes, near + 1)
    for _ in range(MAX_DRAWS):
        topology = _from_pairs(nodes, _draw_rewired(nodes, near, rewired, rng))
        if len(topology.parts()) == 1:
            return topology
    raise _disconnection_error(f"small-world:{near},{rewired:g}", nodes)


def _from_pairs(nodes: int, pairs: Iterable[Pair]) -> Topology:
    """Name nodes n0, n1 and so on; a pair may occur twice, as in a ring of two."""
    names = tuple(f"n{index}" for index in range(nodes))
    ordered = sorted({(min(pair), max(pair)) for pair in pairs})
    return Topology(names, tuple((names[low], names[high]) for low, high in ordered))


def _ring_pairs(indices: Sequence[int]) -> list[Pair]:
    following = [*indices[1:], *indices[:1]]
    return [pair for pair in zip(indices, following, strict=True) if pair[0] != pair[1]]


def _draw_pairing(nodes: int, degree: int, rng: np.random.Generator) -> set[Pair] | None:
    """Pair edge ends at random, and invalid pairs again; return None if no pair is valid."""
    pairs: set[Pair] = set()
    ends = np.repeat(np.arange(nodes), degree)
    while ends.size:
        invalid: list[Pair] = []
        for low, high in np.sort(rng.permutation(ends).reshape(-1, 2)).tolist():
            if low == high or (low, high) in pairs:
                invalid.append((low, high))
            else:
                pairs.add((low, high))
        if 2 * len(invalid) == ends.size:
            return None
        ends = np.array(invalid, dtype=np.int64).reshape(-1)
    return pairs


def _complement(nodes: int, pairs: set[Pair]) -> Iterable[Pair]:
    return (pair for pair in combinations(range(nodes), 2) if pair not in pairs)


def _draw_rewired(
    nodes: int, near: int, rewired: float, rng: np.random.Generator
) -> Iterable[Pair]:
    """Draw the edges of a small world; rewiring keeps the first end of an edge."""
    neighbours = {index: set[int]() for index in range(nodes)}
    edges = [
        (index, (index + distance) % nodes)
        for distance in range(1, near // 2 + 1)
        for index in neighbours
    ]
    for first, second in edges:
        neighbours[first].add(second)
        neighbours[second].add(first)
    for (first, second), draw in zip(edges, rng.random(len(edges)).tolist(), strict=True):
        # A node that is connected with all others has no other end for an edge.
        if draw < rewired and len(neighbours[first]) < nodes - 1:
            new = int(rng.integers(nodes))
            while new == first or new in neighbours[first]:
                new = int(rng.integers(nodes))
            neighbours[first].remove(second)
            neighbours[second].remove(first)
            neighbours[first].add(new)
            neighbours[new].add(first)
    return ((first, second) for first, seconds in neighbours.items() for second in seconds)


def _square_torus(nodes: int) -> Topology:
    """Choose the sides that are nearest to a square."""
    _check_nodes("torus", nodes, 4)
    rows = next(side for side in range(isqrt(nodes), 0, -1) if nodes % side == 0)
    if rows == 1:
        raise SettingError(
            f"torus of {nodes} nodes: {nodes} is prime; expected rows times columns of at least 2 "
            f"each, such as {nodes - 1} or {nodes + 1} nodes"
        )
    return torus(rows, nodes // rows)


def _parse_torus(args: str, nodes: int, _: int) -> Topology:
    sides = re.fullmatch(r"(\d{1,9})x(\d{1,9})", args)
    if sides is None:
        raise SettingError(f"topology is 'torus:{args}'; expected rows x columns as in torus:3x4")
    rows, columns = map(int, sides.groups())
    if rows * columns != nodes:
        raise SettingError(f"torus:{args} has {rows * columns} nodes; expected {nodes}, as asked")
    return torus(rows, columns)


def _parse_regular(args: str, nodes: int, seed: int) -> Topology:
    if not re.fullmatch(r"\d{1,9}", args):
        raise SettingError(f"topology is 'regular:{args}'; expected a degree as in regular:3")
    return regular(nodes, generator(seed, "topology"), int(args))


def _parse_small_world(args: str, nodes: int, seed: int) -> Topology:
    match = re.fullmatch(r"(\d{1,9}),(\d*\.?\d+)", args)
    if match is None:
        raise SettingError(
            f"topology is 'small-world:{args}'; expected neighbours and the fraction rewired as in "
            "small-world:4,0.1"
        )
    return small_world(nodes, generator(seed, "topology"), int(match[1]), float(match[2]))


GENERATORS: dict[str, Callable[[int, int], Topology]] = {
    "ring": lambda nodes, _: ring(nodes),
    "line": lambda nodes, _: line(nodes),
    "star": lambda nodes, _: star(nodes),
    "complete": lambda nodes, _: complete(nodes),
    "torus": lambda nodes, _: _square_torus(nodes),
    "regular": lambda nodes, seed: regular(nodes, generator(seed, "topology")),
    "small-world": lambda nodes, seed: small_world(nodes, generator(seed, "topology")),
}
PARSERS: dict[str, Callable[[str, int, int], Topology]] = {
    "torus": _parse_torus,
    "regular": _parse_regular,
    "small-world": _parse_small_world,
}


def _check_nodes(shape: str, nodes: int, minimum: int) -> None:
    if nodes < minimum:
        raise SettingError(f"{shape} has {nodes} nodes; expected at least {minimum}")


def _check_regular(nodes: int, degree: int) -> None:
    name = f"regular:{degree} with {nodes} nodes"
    if degree >= nodes:
        raise SettingError(f"{name}: expected more nodes than neighbours, at least {degree + 1}")
    if degree < 1 or (degree == 1 and nodes > 2):
        raise SettingError(f"{name} is not connected; expected a degree of at least 2")
    if nodes * degree % 2:
        raise SettingError(f"{name}: both are odd; expected {nodes + 1} nodes, or another degree")


def _disconnection_error(name: str, nodes: int) -> SettingError:
    return SettingError(
        f"{name} with {nodes} nodes: none of {MAX_DRAWS} random graphs is connected; expected more "
        "neighbours"
    )
