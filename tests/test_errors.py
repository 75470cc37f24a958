"""Unknown words get the nearest known one suggested, wherever they are given."""

import sys
from pathlib import Path
from typing import Any

import pytest

from melisma import cli
from melisma.allocation.schemes import get_scheme
from melisma.errors import MAX_LISTED_WORDS, InfeasibleError, SettingError, suggest
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.files.task_file import read_sized_task, read_task
from melisma.learning.data.datasets import load_dataset
from melisma.peer.topologies import topology_for
from melisma.simulation.simulation import SimulationOptions

TASK = '[task]\nname = "a"\nmodel = "twonn"\ndata = "mnist"\ndeadline_s = 1.0\n'
FLEET = '[[fleet.learner]]\nname = "a"\nprofile = "phone"\n'
EXAMPLE = Path(__file__).parents[1] / "examples" / "home"


def test_the_nearest_word_is_suggested_whatever_its_case() -> None:
    assert suggest("stalenes", ["equal", "staleness"]) == "did you mean staleness?"
    assert suggest("DAB", ["equal", "dab"]) == "did you mean dab?"


def test_all_words_are_listed_where_none_is_near() -> None:
    assert suggest("xyz", ["equal", "dab"]) == "expected one of equal, dab"
    assert suggest("xyz", ["twonn"], "a class") == "expected one of twonn, or a class"


def test_a_long_list_is_cut() -> None:
    listed = suggest("xyz", [f"{number}" for number in range(100)])
    assert listed.endswith(f", {MAX_LISTED_WORDS - 1}, ...")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('mode = "federatd"', "task.mode: 'federatd'; did you mean federated?"),
        ('simulation = { work = "tming" }', "task.simulation.work: 'tming'; did you mean timing?"),
        (
            'mode = "federated"\npartition = { kind = "dirichlt" }',
            "task.partition: kind is 'dirichlt'; did you mean dirichlet?",
        ),
    ],
)
def test_an_unknown_value_in_a_task_file(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "TASK.toml"
    path.write_text(TASK + line)
    with pytest.raises(SettingError) as caught:
        read_task(path)
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"twonn"', '"twonnn"', "did you mean twonn?"),
        ('"mnist"', '"mnits"', "did you mean mnist?"),
    ],
)
def test_an_unknown_name_of_a_model_or_data_set(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "TASK.toml"
    path.write_text(TASK.replace(old, new))
    with pytest.raises(SettingError) as caught:
        read_sized_task(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            'profile = "raspbery-pi-4"',
            "profile 'raspbery-pi-4' is unknown; did you mean raspberry-",
        ),
        ('profile = "phone"\ndiscloses = "cost"', "discloses: 'cost'; did you mean costs?"),
    ],
)
def test_an_unknown_value_in_a_fleet_file(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "FLEET.toml"
    path.write_text(f'[[fleet.learner]]\nname = "a"\n{line}\n')
    with pytest.raises(SettingError) as caught:
        read_fleet(path)
    assert message in str(caught.value)


def test_an_unknown_word_in_python() -> None:
    work: Any = "tming"
    with pytest.raises(SettingError, match=r"did you mean staleness\?"):
        get_scheme("stalenes")
    with pytest.raises(SettingError, match=r"did you mean fashion-mnist\?"):
        load_dataset("fashion-mnst")
    with pytest.raises(SettingError, match=r"did you mean ring\?"):
        topology_for("rnig", 4, 1)
    with pytest.raises(SettingError, match=r"did you mean timing\?"):
        SimulationOptions(work=work)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pln"], "unknown command 'pln'; did you mean plan?"),
        (["peers", "simulat"], "unknown command 'simulat'; did you mean simulate?"),
        (["simulate", "--work", "tming"], "unknown value 'tming'; did you mean timing?"),
        (["peers", "simulate", "--algorithm", "gosip"], "did you mean gossip?"),
        (
            ["peers", "simulate", "--set", "learning_rat=1"],
            "aet has no setting learning_rat; did you mean learning_rate?",
        ),
        (["simulate", "--scheme", "stalenes"], "no scheme is called 'stalenes'; did you mean stal"),
        (["xyz"], "unknown command 'xyz'; expected one of init, run, orchestrate, "),
    ],
)
def test_an_unknown_word_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["melisma", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_an_unknown_scheme_of_a_comparison(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(EXAMPLE / "TASK.toml"), "--fleet", str(EXAMPLE / "FLEET.toml")]
    monkeypatch.setattr(sys, "argv", ["melisma", "compare", *files, "--schemes", "dab,equl"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "scheme 'equl' is unknown; did you mean equal?" in capsys.readouterr().err


def infeasible(message: str, learners: list[int]) -> InfeasibleError:
    return InfeasibleError(
        message, constraint="deadline_s", miss=1.5, nearest={"deadline_s": 3.0}, learners=learners
    )


def test_an_infeasible_plan_numbers_learners_until_they_are_named() -> None:
    error = infeasible("{learner[1]} cannot do {task[0]}", [1])
    assert str(error) == "learner 1 cannot do task 0"
    named = error.with_names(["pi", "{learner[0]}"], ["digits"])
    assert str(named) == "{learner[0]} cannot do task digits"
    assert (named.learners, named.constraint, named.miss) == ((1,), "deadline_s", 1.5)
    assert named.nearest == {"deadline_s": 3.0}


def test_an_infeasible_plan_names_shards_until_the_setting_of_the_task_is_known() -> None:
    error = infeasible("use {shards[9]}", [])
    assert str(error) == "use shards = 9"
    assert str(error.with_names([])) == "use shards = 9"
    assert str(error.with_names([], (), lambda shards: f"x <= {shards}")) == "use x <= 9"


def test_learners_that_a_message_leaves_out_are_added_when_they_are_named() -> None:
    assert str(infeasible("{x} is too slow", [0, 1]).with_names(["pi", "phone"])) == (
        "{x} is too slow (pi, phone)"
    )
