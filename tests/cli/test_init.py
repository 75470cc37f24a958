"""`melisma init`: the files that it writes, and that they run as they are."""

import io
import sys
from pathlib import Path

import pytest

from melisma.cli.starter_files import DEFAULT_DEVICES, SUBJECTS, parse_devices, parse_time
from melisma.errors import SettingError
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.files.task_file import read_sized_task, read_task
from melisma.fleet.run_time import RunTime
from melisma.fleet.task import TaskSizes
from tests.cli.command_line import Result, melisma, melisma_process, parse_json


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("mymodel", None)
    return tmp_path


def answer(monkeypatch: pytest.MonkeyPatch, answers: str, *arguments: str) -> Result:
    monkeypatch.setattr(sys, "stdin", io.StringIO(answers))
    return melisma("init", *arguments)


def files() -> tuple[str, str, str]:
    return "TASK.toml", "--fleet", "FLEET.toml"


@pytest.mark.parametrize("data", SUBJECTS)
def test_the_files_for_each_built_in_data_set_can_be_planned(folder: Path, data: str) -> None:
    assert melisma("init", "--yes", "--data", data).code == 0
    planned = melisma("plan", *files(), "--json")
    assert planned.code == 0, planned.stdout
    task = read_sized_task("TASK.toml")
    assert (task.data, task.model) == (data, SUBJECTS[data].model)
    assert read_fleet("FLEET.toml").learners == 4


@pytest.mark.usefixtures("folder")
def test_the_files_run_simulated_as_they_are() -> None:
    assert melisma("init", "--yes", "--total", "5").code == 0
    simulated = melisma("simulate", *files(), "--work", "timing")
    assert simulated.code == 0
    assert simulated.stdout.startswith("digits: dab, 4 learners, for 5 s")


def test_a_model_of_ones_own_begins_with_a_module_that_runs(folder: Path) -> None:
    own = ("--data", "mymodel:load", "--model", "mymodel:Net")
    made = melisma_process(
        *("init", "--yes", *own, "--devices", "2 laptop", "--deadline", "2"), folder=folder
    )
    assert made.code == 0, made.stderr
    assert "wrote mymodel.py" in made.stdout
    # The module may change: no size is written, and plan measures all of them.
    assert read_task("TASK.toml").sizes == TaskSizes()
    assert melisma_process("plan", *files(), folder=folder).code == 0
    task = Path("TASK.toml")
    task.write_text(task.read_text().replace("cycles = 10", "cycles = 1"))
    trained = melisma_process("run", *files(), folder=folder)
    assert trained.code == 0, trained.stderr
    assert "cycle 1: " in trained.stdout


def test_answers_choose_the_task_the_devices_and_the_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = answer(monkeypatch, "kmnist\n3 phone, laptop\n10 min\n")
    assert done.code == 0, done.stderr
    assert "What do you want to train?" in done.stderr
    task, fleet = read_task("TASK.toml"), read_fleet("FLEET.toml")
    assert (task.data, task.total_s) == ("kmnist", 600.0)
    assert fleet.names == ("laptop", "phone-1", "phone-2", "phone-3")


def test_an_empty_answer_is_the_default_and_an_option_asks_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = answer(monkeypatch, "\n\n", "--finish-by", "23:00")
    assert done.code == 0, done.stderr
    assert "How long" not in done.stderr
    assert read_task("TASK.toml").finish_by == "23:00"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_wrong_answer_in_a_terminal_is_asked_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = "foo\nown\nload\nmymodel:load\nNet\nmymodel:Net\n2 phome\n2 phone\n2\nsoon\n1 min\n"
    monkeypatch.setattr(sys, "stdin", Terminal(answers))
    done = melisma("init")
    assert done.code == 0, done.stderr
    for problem in (
        "unknown data 'foo'; expected one of ",
        ", own, or your function as module:function\n",
        "your data is 'load'; expected module:function, such as mymodel:load",
        "unknown model 'Net'; expected module:Class, such as mymodel:Net",
        "unknown 'phome'; did you mean phone?",
        "total_s is 2; expected at least 5",
        "'soon'; expected such as 10 min, 2 h or 23:00",
    ):
        assert problem in done.stderr
    task = read_task("TASK.toml")
    assert (task.data, task.model, task.total_s) == ("mymodel:load", "mymodel:Net", 60.0)
    assert read_fleet("FLEET.toml").learners == 2


def test_a_wrong_answer_of_a_pipe_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = answer(monkeypatch, "foo\n")
    assert done.code == 2
    assert "unknown data 'foo'" in done.stderr
    assert list(folder.iterdir()) == []


def test_without_answers_the_error_names_yes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = answer(monkeypatch, "")
    assert done.code == 2
    assert "use --yes for the defaults" in done.stderr
    assert list(folder.iterdir()) == []


def test_existing_files_are_kept_unless_forced(folder: Path) -> None:
    (folder / "FLEET.toml").write_text("mine")
    refused = melisma("init", "--yes")
    assert refused.code == 2
    assert "FLEET.toml exists; use --force to overwrite" in refused.stderr
    assert (folder / "FLEET.toml").read_text() == "mine"
    assert not (folder / "TASK.toml").exists()
    assert melisma("init", "--yes", "--force").code == 0
    assert read_fleet("FLEET.toml").learners == 4


def test_a_module_that_exists_is_never_replaced(folder: Path) -> None:
    (folder / "mymodel.py").write_text("load = Net = 1")
    refused = melisma("init", "--yes", "--data", "mymodel:load", "--model", "mymodel:Net")
    assert refused.code == 2
    assert "expected something that can be called" in refused.stderr
    assert (folder / "mymodel.py").read_text() == "load = Net = 1"


def test_every_key_is_explained(folder: Path) -> None:
    melisma("init", "--yes", "--json")
    for name in ("TASK.toml", "FLEET.toml"):
        lines = (folder / name).read_text().splitlines()
        keys = [n for n, line in enumerate(lines) if " = " in line and not line.startswith("#")]
        # The name and profile of a device share the comment above their table.
        for number in keys:
            above = [line for line in lines[max(0, number - 3) : number] if line.startswith("# ")]
            assert above, lines[number]


@pytest.mark.usefixtures("folder")
def test_json_lists_the_files_and_the_next_commands() -> None:
    result = parse_json(melisma("init", "new", "--yes", "--json").stdout)
    assert result["files"] == ["new/TASK.toml", "new/FLEET.toml"]
    assert "melisma run new/TASK.toml --fleet new/FLEET.toml" in result["next"]
    assert "melisma orchestrate new/TASK.toml" in result["next"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--data", "mnits"), "unknown data 'mnits'; did you mean mnist?"),
        (("--model", "cnn"), "--model cnn needs --data"),
        (("--data", "mine:load"), "--data mine:load needs --model"),
        (("--model", "cnnn", "--data", "mnist"), "unknown model 'cnnn'; did you mean cnn?"),
        (("--devices", "2 phome"), "unknown 'phome'; did you mean phone?"),
        (("--devices", "0 phone"), "0 phone; expected at least 1"),
        (("--devices", ""), "expected such as 2 raspberry-pi-4"),
        (("--total", "2"), "total_s is 2; expected at least 5"),
        (("--finish-by", "tonight"), "finish_by is 'tonight'"),
    ],
)
def test_a_wrong_option_is_one_line_and_writes_nothing(
    folder: Path, arguments: tuple[str, ...], problem: str
) -> None:
    refused = melisma("init", "--yes", *arguments)
    assert refused.code == 2
    assert problem in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("90", RunTime(total_s=90.0)),
        ("1.5 h", RunTime(total_s=5400.0)),
        ("10min", RunTime(total_s=600.0)),
        ("06:30", RunTime(finish_by="06:30")),
    ],
)
def test_times_are_read_as_people_write_them(text: str, time: RunTime) -> None:
    assert parse_time(text) == time


def test_a_time_that_cannot_be_read_names_examples() -> None:
    with pytest.raises(SettingError, match="expected such as 10 min, 2 h or 23:00"):
        parse_time("soon")


def test_equal_devices_are_added() -> None:
    assert parse_devices("phone, 2 phone") == {"phone": 3}
    assert sum(parse_devices(DEFAULT_DEVICES).values()) == 4
