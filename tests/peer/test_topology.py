"""Graphs of named nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.errors import SettingError
from melisma.peer.topologies import line, ring, star
from melisma.peer.topology import Topology


def test_a_long_line_has_one_part_without_recursion() -> None:
    assert line(20_000).parts() == [[f"n{index}" for index in range(20_000)]]


def test_removed_nodes_take_their_edges_and_may_disconnect_the_graph() -> None:
    left = line(6).without({"n2", "n5", "unknown"})
    assert left.names == ("n0", "n1", "n3", "n4")
    assert left.edges == (("n0", "n1"), ("n3", "n4"))
    assert left.parts() == [["n0", "n1"], ["n3", "n4"]]
    assert star(4).without(["n0"]).parts() == [["n1"], ["n2"], ["n3"]]
    assert ring(3).without(ring(3).names).parts() == []


@given(
    nodes=st.integers(1, 12),
    drawn=st.sets(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=16),
)
def test_parts_equal_those_of_label_propagation(nodes: int, drawn: set[tuple[int, int]]) -> None:
    pairs = {(min(pair), max(pair)) for pair in drawn if pair[0] != pair[1] and max(pair) < nodes}
    names = tuple(f"{'zyx'[index % 3]}{index}" for index in range(nodes))
    topology = Topology(names, tuple((names[left], names[right]) for left, right in pairs))
    label = list(range(nodes))
    for _ in range(nodes):
        for left, right in pairs:
            label[left] = label[right] = min(label[left], label[right])
    expected = [
        [names[index] for index in range(nodes) if label[index] == first]
        for first in sorted(set(label))
    ]
    assert topology.parts() == expected


@pytest.mark.parametrize(
    ("names", "edges", "message"),
    [
        (("a", "a"), (), "same name"),
        (("a", "b"), (("a", "c"),), "edge a c: expected names of nodes"),
        (("a", "b"), (("b", "b"),), "edge b b leads to itself"),
        (("a", "b"), (("a", "b"), ("b", "a")), "edge b a is there twice"),
    ],
)
def test_invalid_edges_raise(
    names: tuple[str, ...], edges: tuple[tuple[str, str], ...], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        Topology(names, edges)
