"""`melisma peers`: output and refused options."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from melisma.cli.peers import command
from melisma.errors import SettingError

SMALL = ("--model", "twonn", "--iterations", "40", "--nodes", "3")


def simulate(*args: str) -> Result:
    return CliRunner().invoke(command, ["simulate", *args], catch_exceptions=False)


def test_the_table_has_a_row_per_node_and_models_are_saved(tmp_path: Path) -> None:
    result = simulate(*SMALL, "--out", str(tmp_path / "run"))
    assert result.exit_code == 0
    assert "3 of 3 nodes finished, mean accuracy" in result.stdout
    assert [line.split()[0] for line in result.stdout.splitlines() if line.startswith("n")] == [
        "node",
        "n0",
        "n1",
        "n2",
    ]
    names = sorted(path.name for path in (tmp_path / "run" / "models").iterdir())
    assert names == ["n0.safetensors", "n1.safetensors", "n2.safetensors"]
    assert (tmp_path / "run" / "picture.svg").read_text().startswith("<svg")


def test_json_has_all_figures() -> None:
    report = json.loads(simulate(*SMALL, "--json", "--compress", "q8", "--lag", "auto").stdout)
    assert report["total"]["samples"] == 3 * 40 * 16
    assert report["compression"] == "q8"
    assert all(0 < node["accuracy"] <= 1 for node in report["nodes"])
    assert all(len(node["chosen_lags"]) >= node["updates"] > 1 for node in report["nodes"])


def test_the_number_of_updates_follows_from_the_iterations() -> None:
    options = ("--work", "timing", "--iterations", "60000", "--json")
    report = json.loads(simulate(*options).stdout)
    assert [node["updates"] for node in report["nodes"]] == [110] * 5


def test_a_fault_search_counts_violations() -> None:
    result = simulate(*SMALL, "--search-faults", "3", "--patience", "0.1")
    assert (result.exit_code, result.stdout) == (0, "3 fault schedules, 0 violations\n")


def test_faults_are_printed() -> None:
    options = ("--work", "timing", "--iterations", "600", "--patience", "0.02")
    result = simulate(*options, "--faults", "crash 1 at 0.05", "--topology", "line", "--nodes", "3")
    assert result.exit_code == 1
    assert "n1: it crashed" in result.stdout
    assert "the topology split into 2 parts: n0; n2" in result.stdout


def test_a_node_that_joins_later_starts_with_the_model_of_a_neighbour() -> None:
    options = ("--work", "timing", "--iterations", "600", "--patience", "0.02")
    result = simulate(*options, "--join", "n2@0.1", "--nodes", "3")
    assert "n2 at" in result.stdout
    assert "starts with the model of" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
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
def test_invalid_options_of_a_simulation_are_named(args: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingError) as error:
        simulate("--work", "timing", *args)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--part", "3/2"), "--part 3/2; expected 1/2 to 2/2"),
        (("--part", "x"), "--part x; expected K/N"),
        (("--listen", "here"), "is not HOST:PORT"),
        (("--peers", "missing.toml"), "missing.toml: No such file"),
    ],
)
def test_invalid_options_of_a_node_are_named(args: tuple[str, ...], message: str) -> None:
    with pytest.raises(SettingError) as error:
        CliRunner().invoke(command, ["node", "--name", "a", *args], catch_exceptions=False)
    assert message in str(error.value)
