"""`melisma peers`: what it prints, and what it refuses."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from melisma.cli.peers import command
from melisma.errors import SettingError

SMALL = ("--model", "twonn", "--iterations", "40", "--nodes", "3")


def simulate(*args: str) -> Result:
    return CliRunner().invoke(command, ["simulate", *args], catch_exceptions=False)


def test_a_screen_shows_each_node_and_what_was_sent(tmp_path: Path) -> None:
    found = simulate(*SMALL, "--out", str(tmp_path / "run"))
    assert found.exit_code == 0
    assert "3 of 3 nodes finished, mean accuracy" in found.stdout
    assert [line.split()[0] for line in found.stdout.splitlines() if line.startswith("n")] == [
        "node",
        "n0",
        "n1",
        "n2",
    ]
    names = sorted(path.name for path in (tmp_path / "run" / "models").iterdir())
    assert names == ["n0.safetensors", "n1.safetensors", "n2.safetensors"]
    assert (tmp_path / "run" / "picture.svg").read_text().startswith("<svg")


def test_json_has_all_figures() -> None:
    found = json.loads(simulate(*SMALL, "--json", "--compress", "q8", "--lag", "auto").stdout)
    assert found["total"]["samples"] == 3 * 40 * 16
    assert found["compression"] == "q8"
    assert all(0 < node["accuracy"] <= 1 for node in found["nodes"])
    assert all(len(node["chosen_lags"]) >= node["updates"] > 1 for node in found["nodes"])


def test_ten_times_ten_rounds_and_a_bit() -> None:
    said = ("--work", "timing", "--iterations", "60000", "--json")
    found = json.loads(simulate(*said).stdout)
    assert [node["updates"] for node in found["nodes"]] == [110] * 5


def test_a_fault_search_counts_violations() -> None:
    found = simulate(*SMALL, "--search-faults", "3", "--patience", "0.1")
    assert (found.exit_code, found.stdout) == (0, "3 fault schedules, 0 violations\n")


def test_faults_are_told() -> None:
    said = ("--work", "timing", "--iterations", "600", "--patience", "0.02")
    found = simulate(*said, "--faults", "crash 1 at 0.05", "--topology", "line", "--nodes", "3")
    assert found.exit_code == 1
    assert "n1: it crashed" in found.stdout
    assert "the topology split into 2 parts: n0; n2" in found.stdout


def test_who_joins_later_begins_with_a_neighbours_model() -> None:
    said = ("--work", "timing", "--iterations", "600", "--patience", "0.02")
    found = simulate(*said, "--join", "n2@0.1", "--nodes", "3")
    assert "n2 at" in found.stdout
    assert "starts with the model of" in found.stdout


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("--set", "foo=1"), "aet has no setting foo; expected one of learning_rate, decay"),
        (("--set", "learning_rate"), "--set learning_rate; expected NAME=VALUE"),
        (("--set", "learning_rate=-1"), "aet: "),
        (("--lag", "-1"), "aet: "),
        (("--algorithm", "event", "--lag", "1"), "event has no setting max_lag"),
        (("--topology", "rink"), "topology is 'rink'; did you mean ring?"),
        (("--compress", "zip"), "zip"),
        (("--shares", "1,x"), "--shares 1,x; expected numbers above 0"),
        (("--shares", "1,2"), "2 shares for 5 nodes"),
        (("--step-s", "1"), "--step-s 1; expected MIN,MAX"),
        (("--step-s", "2,1"), "step_s is 2 to 1; expected the lower one first"),
        (("--join", "n9@1"), "unknown node 'n9'; expected one of n0, n1"),
        (("--join", "n1"), "expected NODE@SECONDS"),
        (("--faults", "crash 9 at 1"), "unknown learner 9"),
        (("--search-faults", "2", "--faults", "1"), "--search-faults draws its faults"),
    ],
)
def test_what_makes_no_sense_is_said(args: tuple[str, ...], what: str) -> None:
    with pytest.raises(SettingError) as error:
        simulate("--work", "timing", *args)
    assert what in str(error.value)


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("--part", "3/2"), "--part 3/2; expected 1/2 to 2/2"),
        (("--part", "x"), "--part x; expected K/N"),
        (("--listen", "here"), "is not HOST:PORT"),
        (("--peers", "missing.toml"), "missing.toml: No such file"),
    ],
)
def test_what_a_node_cannot_be_told_is_said(args: tuple[str, ...], what: str) -> None:
    with pytest.raises(SettingError) as error:
        CliRunner().invoke(command, ["node", "--name", "a", *args], catch_exceptions=False)
    assert what in str(error.value)
