"""Topologies by name: their degrees, their randomness, and invalid names."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.errors import SettingError
from melisma.peer.topologies import (
    complete,
    line,
    regular,
    ring,
    small_world,
    star,
    topology_for,
    torus,
)
from melisma.peer.topology import Topology
from tests.peer.graph_checks import degrees, is_sound


@given(nodes=st.integers(6, 40), seed=st.integers(0, 5))
def test_every_topology_is_sound_and_reproducible_by_seed(nodes: int, seed: int) -> None:
    even = nodes + nodes % 2
    for name in ("ring", "line", "star", "complete", "torus", "regular", "small-world"):
        topology = topology_for(name, even, seed)
        assert is_sound(topology)
        assert topology.names == tuple(f"n{index}" for index in range(even))
        assert topology == topology_for(name, even, seed)


def test_another_seed_gives_another_graph() -> None:
    for name in ("regular:3", "small-world"):
        assert topology_for(name, 40, 1) != topology_for(name, 40, 2)


@given(nodes=st.integers(3, 60))
def test_regular_shapes_have_the_expected_degrees(nodes: int) -> None:
    assert degrees(ring(nodes)) == [2] * nodes
    assert degrees(line(nodes)) == [1, *[2] * (nodes - 2), 1]
    assert degrees(star(nodes)) == [nodes - 1, *[1] * (nodes - 1)]
    assert degrees(complete(nodes)) == [nodes - 1] * nodes


def test_shapes_of_one_to_three_nodes() -> None:
    assert ring(3).edges == (("n0", "n1"), ("n0", "n2"), ("n1", "n2"))
    assert ring(2).edges == line(2).edges == star(2).edges == complete(2).edges == (("n0", "n1"),)
    for make in (ring, line, complete):
        assert make(1) == Topology(("n0",), ())
        assert make(1).parts() == [["n0"]]


@given(rows=st.integers(2, 9), columns=st.integers(2, 9))
def test_a_torus_is_a_ring_in_both_directions(rows: int, columns: int) -> None:
    topology = torus(rows, columns)
    assert is_sound(topology)
    expected = sum(min(side - 1, 2) for side in (rows, columns))
    assert degrees(topology) == [expected] * (rows * columns)
    assert topology_for(f"torus:{rows}x{columns}", rows * columns, 1) == topology


def test_a_torus_of_n_nodes_is_as_square_as_possible() -> None:
    assert topology_for("torus", 12, 1) == torus(3, 4)
    assert topology_for("torus", 10, 1) == torus(2, 5)
    assert torus(3, 3).neighbours("n0") == ("n1", "n2", "n3", "n6")


@given(data=st.data(), nodes=st.integers(3, 24), seed=st.integers(0, 99))
def test_a_regular_graph_has_the_same_degree_everywhere(
    data: st.DataObject, nodes: int, seed: int
) -> None:
    fitting = [degree for degree in range(2, nodes) if nodes * degree % 2 == 0]
    degree = data.draw(st.sampled_from(fitting))
    topology = regular(nodes, np.random.default_rng(seed), degree)
    assert is_sound(topology)
    assert degrees(topology) == [degree] * nodes


def test_two_nodes_may_have_one_neighbour_each() -> None:
    assert topology_for("regular:1", 2, 1) == line(2)


def test_every_edge_of_a_regular_graph_is_about_as_likely() -> None:
    rng = np.random.default_rng(1)
    counts = Counter(edge for _ in range(600) for edge in regular(6, rng).edges)
    assert len(counts) == 15
    # 600 graphs with 9 of 15 edges each: 360 of each edge, with a standard deviation of 12.
    assert all(300 < count < 420 for count in counts.values())


@given(
    nodes=st.integers(7, 40),
    near=st.sampled_from([4, 6]),
    rewired=st.sampled_from([0, 0.1, 0.5, 1]),
    seed=st.integers(0, 99),
)
def test_a_small_world_has_as_many_edges_as_its_ring(
    nodes: int, near: int, rewired: float, seed: int
) -> None:
    topology = small_world(nodes, np.random.default_rng(seed), near, rewired)
    assert is_sound(topology)
    assert len(topology.edges) == nodes * near // 2
    # Rewiring keeps the first end of every edge.
    assert min(degrees(topology)) >= near // 2
    if rewired == 0:
        assert degrees(topology) == [near] * nodes


def test_about_the_given_fraction_is_rewired() -> None:
    plain = small_world(1000, np.random.default_rng(1), 4, 0.0)
    topology = small_world(1000, np.random.default_rng(1))
    assert 150 < len(set(plain.edges) - set(topology.edges)) < 250


@pytest.mark.parametrize("name", ["regular:3", "regular:8", "small-world", "torus"])
def test_a_thousand_nodes_are_connected(name: str) -> None:
    topology = topology_for(name, 1000, 1)
    assert is_sound(topology)


@pytest.mark.parametrize(
    ("name", "nodes", "message"),
    [
        (
            "mesh",
            4,
            "topology is 'mesh'; expected one of ring, line, .*or a file that ends in .txt",
        ),
        ("ring:3", 4, "topology is 'ring:3'"),
        ("regular:", 4, "topology is 'regular:'"),
        ("ring", 0, "ring has 0 nodes; expected at least 1"),
        ("star", 1, "star has 1 nodes; expected at least 2"),
        ("torus", 3, "torus has 3 nodes; expected at least 4"),
        ("torus", 7, "7 is prime; .* such as 6 or 8 nodes"),
        ("torus:3x4", 10, "torus:3x4 has 12 nodes; expected 10"),
        ("torus:1x4", 4, "torus is 1x4; expected sides of at least 2"),
        ("torus:12", 12, "topology is 'torus:12'; expected rows x columns as in torus:3x4"),
        ("regular:x", 4, "topology is 'regular:x'; expected a degree as in regular:3"),
        ("regular", 5, "regular:3 with 5 nodes: both are odd; expected 6 nodes"),
        ("regular:4", 4, "expected more nodes than neighbours, at least 5"),
        ("regular:1", 4, "is not connected; expected a degree of at least 2"),
        ("regular:0", 4, "is not connected; expected a degree of at least 2"),
        ("small-world", 4, "small-world of 4 nearest has 4 nodes; expected at least 5"),
        ("small-world:3,0.1", 9, "expected an even number of neighbours"),
        ("small-world:4,1.5", 9, "a fraction from 0 to 1"),
        ("small-world:4", 9, "topology is 'small-world:4'; expected neighbours and the fraction"),
    ],
)
def test_an_invalid_name_raises_with_what_is_expected(name: str, nodes: int, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        topology_for(name, nodes, 1)


def test_a_random_graph_that_is_never_connected_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("melisma.peer.topologies.MAX_DRAWS", 3)
    with pytest.raises(SettingError, match="none of 3 random graphs is connected; expected more"):
        topology_for("small-world:2,1", 3000, 1)
