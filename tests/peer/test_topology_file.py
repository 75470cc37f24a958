"""Topologies from text and TOML files."""

from pathlib import Path

import pytest

from melisma.errors import SettingError
from melisma.peer.topologies import topology_for
from melisma.peer.topology_file import read_topology
from tests.peer.graph_checks import is_sound

TEXT = """# edges of a square
hub left
hub right  # a comment

left,far
right, far
"""
TOML = 'edges = [["hub", "left"], ["hub", "right"], ["left", "far"], ["right", "far"]]'


@pytest.mark.parametrize(
    ("file", "text"), [("net.txt", TEXT), ("net.csv", TEXT), ("net.toml", TOML)]
)
def test_a_file_sets_names_and_number_of_nodes(tmp_path: Path, file: str, text: str) -> None:
    path = tmp_path / file
    path.write_text(text)
    topology = topology_for(str(path), 99, 1)
    assert topology.names == ("hub", "left", "right", "far")
    assert topology.neighbours("far") == ("left", "right")
    assert topology == read_topology(path)
    assert is_sound(topology)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b\nc\n", r"net.txt:2: 'c'; expected an edge: two names"),
        ("a b c\n", r"net.txt:1: 'a b c'; expected an edge"),
        ("a b\na,\n", r"net.txt:2: name is empty"),
        ("a b\n\nb b", r"net.txt:3: edge b b leads to itself"),
        ("a b\nb c\nb a", r"net.txt:3: edge b a is there twice"),
        ("a b\x07", r"net.txt:1: name is .* expected printable"),
        ("# nothing\n", r"net.txt has no edges"),
        (
            "a b\nc d\nd e",
            r"net.txt: the graph has 2 parts that are not connected: a b \| c d e; expected a path",
        ),
    ],
)
def test_an_invalid_text_file_raises_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "net.txt"
    path.write_text(text)
    with pytest.raises(SettingError, match=message):
        read_topology(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("edges = []", "net.toml has no edges"),
        ('edges = [["a", "b"], ["b"]]', r"net.toml: edges\[1\]: 'b'; expected an edge"),
        ('edges = [["a", "b"], ["b", "a"]]', r"net.toml: edges\[1\]: edge b a is there twice"),
        ('edge = [["a", "b"]]', "net.toml: "),
        ("a b", "not TOML"),
    ],
)
def test_an_invalid_toml_file_raises_with_the_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "net.toml"
    path.write_text(text)
    with pytest.raises(SettingError, match=message):
        read_topology(path)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SettingError, match=r"nowhere\.txt: no such file"):
        topology_for("nowhere.txt", 3, 1)


def test_many_parts_are_not_all_listed(tmp_path: Path) -> None:
    path = tmp_path / "net.txt"
    path.write_text("\n".join(f"a{index} b{index}" for index in range(30)))
    with pytest.raises(
        SettingError,
        match=r"30 parts that are not connected: a0 b0 \| a1 b1 \| a2 b2 \| a3 b3 \| \.\.\.",
    ):
        read_topology(path)
