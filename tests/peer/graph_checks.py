"""Checks of graphs."""

from melisma.peer.topology import Topology


def degrees(topology: Topology) -> list[int]:
    return [topology.degree(name) for name in topology.names]


def is_sound(topology: Topology) -> bool:
    """Check that neighbours are mutual, sorted and as many as edges; return whether connected."""
    index = {name: number for number, name in enumerate(topology.names)}
    for name in topology.names:
        near = topology.neighbours(name)
        assert name not in near
        assert [*near] == sorted(set(near), key=index.__getitem__)
        assert all(name in topology.neighbours(other) for other in near)
    assert sum(degrees(topology)) == 2 * len(topology.edges)
    return len(topology.parts()) == 1
