from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.errors import SettingError
from melisma.peer.topology import (
    Topology,
    complete,
    line,
    read_topology,
    regular,
    ring,
    small_world,
    star,
    topology_for,
    torus,
)


def degrees(topology: Topology) -> list[int]:
    return [topology.degree(name) for name in topology.names]


def is_sound(topology: Topology) -> bool:
    """Connected, and neighbours are mutual, in order of names and as many as edges say."""
    place = {name: number for number, name in enumerate(topology.names)}
    for name in topology.names:
        near = topology.neighbours(name)
        assert name not in near
        assert [*near] == sorted(set(near), key=place.__getitem__)
        assert all(name in topology.neighbours(other) for other in near)
    assert sum(degrees(topology)) == 2 * len(topology.edges)
    return len(topology.parts()) == 1


@given(nodes=st.integers(6, 40), seed=st.integers(0, 5))
def test_every_topology_is_sound_and_by_its_seed(nodes: int, seed: int) -> None:
    even = nodes + nodes % 2
    for name in ("ring", "line", "star", "complete", "torus", "regular", "small-world"):
        made = topology_for(name, even, seed)
        assert is_sound(made)
        assert made.names == tuple(f"n{place}" for place in range(even))
        assert made == topology_for(name, even, seed)


def test_another_seed_gives_another_graph() -> None:
    for name in ("regular:3", "small-world"):
        assert topology_for(name, 40, 1) != topology_for(name, 40, 2)


@given(nodes=st.integers(3, 60))
def test_plain_ones_have_their_degrees(nodes: int) -> None:
    assert degrees(ring(nodes)) == [2] * nodes
    assert degrees(line(nodes)) == [1, *[2] * (nodes - 2), 1]
    assert degrees(star(nodes)) == [nodes - 1, *[1] * (nodes - 1)]
    assert degrees(complete(nodes)) == [nodes - 1] * nodes


def test_small_ones() -> None:
    assert ring(3).edges == (("n0", "n1"), ("n0", "n2"), ("n1", "n2"))
    assert ring(2).edges == line(2).edges == star(2).edges == complete(2).edges == (("n0", "n1"),)
    for make in (ring, line, complete):
        assert make(1) == Topology(("n0",), ())
        assert make(1).parts() == [["n0"]]


@given(rows=st.integers(2, 9), columns=st.integers(2, 9))
def test_a_torus_is_a_ring_in_both_directions(rows: int, columns: int) -> None:
    made = torus(rows, columns)
    assert is_sound(made)
    expected = sum(min(side - 1, 2) for side in (rows, columns))
    assert degrees(made) == [expected] * (rows * columns)
    assert topology_for(f"torus:{rows}x{columns}", rows * columns, 1) == made


def test_a_torus_is_as_square_as_can_be() -> None:
    assert topology_for("torus", 12, 1) == torus(3, 4)
    assert topology_for("torus", 10, 1) == torus(2, 5)
    assert torus(3, 3).neighbours("n0") == ("n1", "n2", "n3", "n6")


@given(data=st.data(), nodes=st.integers(3, 24), seed=st.integers(0, 99))
def test_a_regular_graph_has_the_same_degree_everywhere(
    data: st.DataObject, nodes: int, seed: int
) -> None:
    fitting = [degree for degree in range(2, nodes) if nodes * degree % 2 == 0]
    degree = data.draw(st.sampled_from(fitting))
    made = regular(nodes, np.random.default_rng(seed), degree)
    assert is_sound(made)
    assert degrees(made) == [degree] * nodes


def test_two_nodes_may_have_one_neighbour_each() -> None:
    assert topology_for("regular:1", 2, 1) == line(2)


def test_every_edge_of_a_regular_graph_is_about_as_likely() -> None:
    rng = np.random.default_rng(1)
    counts = Counter(edge for _ in range(600) for edge in regular(6, rng).edges)
    assert len(counts) == 15
    # 600 graphs with 9 of 15 edges each: 360 of each edge, give or take 12.
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
    made = small_world(nodes, np.random.default_rng(seed), near, rewired)
    assert is_sound(made)
    assert len(made.edges) == nodes * near // 2
    # Of every edge the first end stays.
    assert min(degrees(made)) >= near // 2
    if rewired == 0:
        assert degrees(made) == [near] * nodes


def test_about_the_part_that_was_asked_for_is_rewired() -> None:
    plain = small_world(1000, np.random.default_rng(1), 4, 0.0)
    made = small_world(1000, np.random.default_rng(1))
    assert 150 < len(set(plain.edges) - set(made.edges)) < 250


@pytest.mark.parametrize("name", ["regular:3", "regular:8", "small-world", "torus"])
def test_a_thousand_nodes_are_connected(name: str) -> None:
    made = topology_for(name, 1000, 1)
    assert is_sound(made)


def test_a_long_line_has_one_part_and_no_stack_to_overflow() -> None:
    assert line(20_000).parts() == [[f"n{place}" for place in range(20_000)]]


def test_who_is_gone_takes_edges_along_and_the_rest_falls_into_parts() -> None:
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
def test_parts_are_those_of_a_plain_search(nodes: int, drawn: set[tuple[int, int]]) -> None:
    pairs = {(min(pair), max(pair)) for pair in drawn if pair[0] != pair[1] and max(pair) < nodes}
    names = tuple(f"{'zyx'[place % 3]}{place}" for place in range(nodes))
    made = Topology(names, tuple((names[one], names[other]) for one, other in pairs))
    label = list(range(nodes))
    for _ in range(nodes):
        for one, other in pairs:
            label[one] = label[other] = min(label[one], label[other])
    expected = [
        [names[place] for place in range(nodes) if label[place] == first]
        for first in sorted(set(label))
    ]
    assert made.parts() == expected


@pytest.mark.parametrize(
    ("names", "edges", "said"),
    [
        (("a", "a"), (), "same name"),
        (("a", "b"), (("a", "c"),), "edge a c: expected names of nodes"),
        (("a", "b"), (("b", "b"),), "edge b b leads to itself"),
        (("a", "b"), (("a", "b"), ("b", "a")), "edge b a is there twice"),
    ],
)
def test_edges_that_cannot_be_are_refused(
    names: tuple[str, ...], edges: tuple[tuple[str, str], ...], said: str
) -> None:
    with pytest.raises(SettingError, match=said):
        Topology(names, edges)


@pytest.mark.parametrize(
    ("name", "nodes", "said"),
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
        ("small-world:4,1.5", 9, "a part from 0 to 1"),
        ("small-world:4", 9, "topology is 'small-world:4'; expected neighbours and the part"),
    ],
)
def test_what_cannot_be_made_says_what_can(name: str, nodes: int, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        topology_for(name, nodes, 1)


def test_a_graph_that_is_hardly_ever_connected_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("melisma.peer.topology.MAX_DRAWS", 3)
    with pytest.raises(SettingError, match="none of 3 random graphs is connected; expected more"):
        topology_for("small-world:2,1", 3000, 1)


TEXT = """# who talks to whom
hub left
hub right  # a comment

left,far
right, far
"""
TOML = 'edges = [["hub", "left"], ["hub", "right"], ["left", "far"], ["right", "far"]]'


@pytest.mark.parametrize(
    ("file", "text"), [("net.txt", TEXT), ("net.csv", TEXT), ("net.toml", TOML)]
)
def test_a_file_has_nodes_of_its_own(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.write_text(text)
    made = topology_for(str(path), 99, 1)
    assert made.names == ("hub", "left", "right", "far")
    assert made.neighbours("far") == ("left", "right")
    assert made == read_topology(path)
    assert is_sound(made)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a b\nc\n", r"net.txt:2: 'c'; expected an edge: two names"),
        ("a b c\n", r"net.txt:1: 'a b c'; expected an edge"),
        ("a b\na,\n", r"net.txt:2: name is empty"),
        ("a b\n\nb b", r"net.txt:3: edge b b leads to itself"),
        ("a b\nb c\nb a", r"net.txt:3: edge b a is there twice"),
        ("a b\x07", r"net.txt:1: name is .* expected printable"),
        ("# nothing\n", r"net.txt: there are no edges"),
        ("a b\nc d\nd e", r"net.txt: the graph falls into 2 parts: a b \| c d e; expected a way"),
    ],
)
def test_a_file_that_is_wrong_is_told_with_the_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "net.txt"
    path.write_text(text)
    with pytest.raises(SettingError, match=said):
        read_topology(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("edges = []", "there are no edges"),
        ('edges = [["a", "b"], ["b"]]', r"net.toml: edges\[1\]: 'b'; expected an edge"),
        ('edges = [["a", "b"], ["b", "a"]]', r"net.toml: edges\[1\]: edge b a is there twice"),
        ('edge = [["a", "b"]]', "net.toml: "),
        ("a b", "not TOML"),
    ],
)
def test_toml_that_is_wrong_is_told_with_the_key(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "net.toml"
    path.write_text(text)
    with pytest.raises(SettingError, match=said):
        read_topology(path)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingError, match=r"nowhere\.txt: no such file"):
        topology_for("nowhere.txt", 3, 1)


def test_many_parts_are_not_all_listed(tmp_path: Path) -> None:
    path = tmp_path / "net.txt"
    path.write_text("\n".join(f"a{place} b{place}" for place in range(30)))
    with pytest.raises(SettingError, match=r"30 parts: a0 b0 \| a1 b1 \| a2 b2 \| a3 b3 \| \.\.\."):
        read_topology(path)
