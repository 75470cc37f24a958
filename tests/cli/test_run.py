"""`melisma run` as users call it."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from melisma.cli.options import DEFAULT_TASK
from tests.cli.command_line import MELISMA, Result, melisma, melisma_process
from tests.live import tiny_task

TASK = """
[task]
name = "blobs"
model = "tiny_task:Linear"
data = "tiny_task:blobs"
passes = 2
deadline_s = 6.0
cycles = 2
shard_samples = 50
optimizer = { name = "sgd", lr = 0.3 }
"""
FLEET = """
[[fleet.learner]]
name = "tortoise"
compute = 0.02
bandwidth_bps = 20e6

[[fleet.learner]]
name = "hare"
compute = 0.1
bandwidth_bps = 80e6
"""

# How many are held depends on what else uses the processor.
HELD = r"the deadline of 6 s held in \d of 2 cycles"
SMALL_RUN = ("run", "task.toml", "--fleet", "fleet.toml")


def write_files(folder: Path) -> Path:
    """Write a task, a fleet, and the user's model beside them."""
    shutil.copy(tiny_task.__file__, folder / "tiny_task.py")
    (folder / "task.toml").write_text(TASK)
    (folder / "fleet.toml").write_text(FLEET)
    return folder


def replace_in(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with the files of a small run; the user's model is imported anew."""
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("tiny_task", None)
    yield write_files(tmp_path)
    sys.modules.pop("tiny_task", None)


def train_once(folder: Path) -> None:
    """Let learners stop when they have trained what was planned, long before the deadline."""
    replace_in(folder / "task.toml", "passes = 2", "passes = 2\nextension = false")


@pytest.fixture(scope="module")
def json_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The folder and the result of a run with --json, whose model prints when it is imported."""
    folder = write_files(tmp_path_factory.mktemp("json"))
    train_once(folder)
    with (folder / "tiny_task.py").open("a") as module:
        module.write('\nprint("loading")\n')
    return folder, melisma_process(*SMALL_RUN, "--json", "--out", "results", folder=folder)


@pytest.fixture(scope="module")
def proportional_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The folder and the result of a run with --scheme, and a fast device that joins late."""
    folder = write_files(tmp_path_factory.mktemp("proportional"))
    fast = "compute = 4.0\navailability = { joins_s = 5.0 }"
    replace_in(folder / "fleet.toml", "compute = 0.1", fast)
    return folder, melisma_process(*SMALL_RUN, "--scheme", "proportional", folder=folder)


def test_a_run_prints_a_line_per_cycle_and_a_summary(folder: Path) -> None:
    result = melisma_process(*SMALL_RUN)
    assert result.code == 0, result.stderr
    assert result.stderr == ""
    loading, joined, first, second, summary, *rest = result.stdout.splitlines()
    assert loading == "loading model tiny_task:Linear and data tiny_task:blobs"
    assert joined == "2 of 2 learners joined; measuring"
    assert re.match(r"cycle 1: [\d.]+ of 6 s; 2 of 2 updates; accuracy", first)
    assert second.startswith("cycle 2:")
    assert re.match(HELD, summary)
    text = "\n".join(rest)
    assert "tortoise" in text
    assert "hare" in text
    for kind in ("model", "picture", "trace"):
        (path,) = re.findall(rf"^{kind} +(\S+)$", text, re.MULTILINE)
        assert (folder / path).is_file()
        assert Path(path).is_relative_to("runs")


def test_json_is_the_report_of_the_run(json_run: tuple[Path, Result]) -> None:
    folder, result = json_run
    assert result.code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["outcome"] == "finished"
    assert len(report["cycles"]) == 2
    assert report["accuracy"] > 0.9
    model = folder / "results" / "model.safetensors"
    assert Path(report["model"]).resolve() == model.resolve()


def test_output_of_the_users_modules_is_not_in_the_json(json_run: tuple[Path, Result]) -> None:
    _, result = json_run
    assert json.loads(result.stdout)["outcome"] == "finished"
    assert "loading" in result.stderr


def test_a_device_faster_than_this_machine_is_noted(proportional_run: tuple[Path, Result]) -> None:
    _, result = proportional_run
    assert result.code == 0, result.stderr
    assert result.stderr.startswith("note: hare: faster than a core of this machine")


def test_availability_that_a_live_run_ignores_is_noted(
    proportional_run: tuple[Path, Result],
) -> None:
    _, result = proportional_run
    assert (
        "note: joins_s of the fleet file: ignored, as all learners of a live run" in result.stderr
    )
    assert "; 2 of 2 updates;" in result.stdout.splitlines()[2]


def test_the_scheme_of_the_command_line_is_used(proportional_run: tuple[Path, Result]) -> None:
    folder, result = proportional_run
    assert result.code == 0, result.stderr
    assert [line.partition(":")[0] for line in result.stdout.splitlines()[2:4]] == [
        "cycle 1",
        "cycle 2",
    ]
    assert "running" not in result.stdout
    (trace,) = folder.glob("runs/*/trace.jsonl")
    first = json.loads(trace.read_text().splitlines()[1])
    assert first["event"]["task"]["scheme"] == "proportional"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("task.toml", "passes = 2", "pases = 2"), ["task.toml", "pases"]),
        (("task.toml", "cycles = 2", 'cycles = "two"'), ["task.toml", "cycles"]),
        (("task.toml", "deadline_s = 6.0", "deadline_s = 0"), ["task.toml", "deadline_s"]),
        (("task.toml", "tiny_task:Linear", "tiny_task:Curved"), ["tiny_task:Curved"]),
        (("task.toml", "tiny_task:Linear", "twonn"), ["does not fit the data"]),
        (("task.toml", "tiny_task:blobs", "letters"), ["letters", "mnist"]),
        (("fleet.toml", "compute = 0.1", "compute = -1"), ["fleet.toml", "compute"]),
        (("fleet.toml", "bandwidth_bps = 80e6", "bandwith = 1"), ["fleet.toml", "bandwith"]),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_it(
    folder: Path, change: tuple[str, str, str], words: list[str]
) -> None:
    name, before, after = change
    replace_in(folder / name, before, after)
    result = melisma(*SMALL_RUN)
    assert result.code == 2, result.stdout + result.stderr
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert word in result.stderr
    assert not list(folder.glob("runs/*/devices"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("nothing.toml",),
        ("task.toml", "--fleet", "nothing.toml"),
        ("task.toml", "--fleet", "fleet.toml", "--scheme", "fastest"),
        ("task.toml", "--fleet", "fleet.toml", "--scheme", "feel"),
        ("task.toml", "--fleet", "fleet.toml", "--port", "99999"),
        ("task.toml", "--fleet", "fleet.toml", "--out", "task.toml"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_usage_ends_with_2_and_no_traceback(arguments: tuple[str, ...]) -> None:
    result = melisma("run", *arguments)
    assert result.code == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.usefixtures("folder")
def test_a_process_with_a_mistake_in_its_arguments_ends_with_2_and_one_line() -> None:
    result = melisma_process("run", "nothing.toml")
    assert result.code == 2, result.stdout + result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("def initial(self)", "def initial(selfish)", ["NameError", "tiny_task.py, line"]),
        (
            "    rng = np.random.default_rng(3)",
            '    raise OSError("no disk")',
            ["OSError: no disk"],
        ),
        ("points.astype(np.float32)", "(points * np.nan).astype(np.float32)", ["NaN or infinity"]),
        ("points.astype(np.float32)", "points.astype(object)", ["object"]),
    ],
)
def test_a_mistake_in_the_users_code_is_one_line_with_file_and_line(
    folder: Path, before: str, after: str, words: list[str]
) -> None:
    replace_in(folder / "tiny_task.py", before, after)
    result = melisma(*SMALL_RUN)
    assert result.code == 2, result.stdout + result.stderr
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert word in result.stderr


def test_a_mistake_found_during_training_is_printed_with_file_and_line(folder: Path) -> None:
    replace_in(folder / "tiny_task.py", "self._task, self._num", "self.task, self._num")
    result = melisma_process(*SMALL_RUN, "--out", "results")
    assert result.code == 1
    assert "AttributeError: 'Linear' object has no" in result.stdout
    assert "(tiny_task.py," in result.stdout.replace("\n", " ")
    assert "Traceback" in (folder / "results" / "logs" / "0.log").read_text()


def test_training_that_diverges_ends_with_1(folder: Path) -> None:
    train_once(folder)
    with (folder / "task.toml").open("a") as task:
        task.write('\n[task.model_args]\nbroken = "nan"\n')
    result = melisma_process(*SMALL_RUN)
    assert result.code == 1
    assert "not finite" in result.stdout
    assert "accuracy" not in result.stdout.splitlines()[-1]


def test_too_few_shards_are_refused_before_the_run(folder: Path) -> None:
    replace_in(folder / "task.toml", "shard_samples = 50", "shard_samples = 600")
    result = melisma(*SMALL_RUN, "--scheme", "proportional")
    assert result.code == 2
    assert "use shard_samples <= 300" in result.stderr


def test_a_deadline_that_no_learner_can_meet_ends_with_1_and_suggests_one(folder: Path) -> None:
    replace_in(folder / "task.toml", "deadline_s = 6.0", "deadline_s = 0.001")
    result = melisma_process(*SMALL_RUN)
    assert result.code == 1
    stdout = " ".join(result.stdout.split())
    assert re.search(r"deadline_s = 0.001 is too short: .*; use deadline_s >= \d", stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_and_keeps_the_model(number: signal.Signals, folder: Path) -> None:
    train_once(folder)
    replace_in(folder / "task.toml", "cycles = 2", "cycles = 1000")
    process = subprocess.Popen(
        [*MELISMA, *SMALL_RUN, "--out", "results"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("loading model")
    assert process.stdout.readline().startswith("2 of 2 learners joined")
    assert process.stdout.readline().startswith("cycle 1:")
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err == ""
    assert "interrupted" in out
    assert (folder / "results" / "model.safetensors").is_file()
    assert (folder / "results" / "trace.jsonl").is_file()


def run_in_terminal(term: str) -> str:
    """Run a small task in a terminal of that type; return what it wrote."""
    terminal, standard_output = pty.openpty()
    environment = os.environ | {"TERM": term, "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        [*MELISMA, *SMALL_RUN],
        stdout=standard_output,
        stderr=subprocess.PIPE,
        env=environment,
    )
    os.close(standard_output)
    shown, end = b"", time.monotonic() + 240
    while time.monotonic() < end:
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(terminal)
    assert process.stderr is not None
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(120) == 0, error
    return shown.decode()


@pytest.mark.usefixtures("folder")
def test_in_a_terminal_each_learner_is_shown_below_the_lines_of_cycles() -> None:
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", run_in_terminal("xterm"))
    assert "tortoise" in text
    assert "cycle 2 of 2" in text
    for number in (1, 2):
        assert len(re.findall(rf"^cycle {number}: ", text.replace("\r", "\n"), re.MULTILINE)) == 1
    assert re.search(HELD, text)


@pytest.mark.usefixtures("folder")
def test_a_terminal_that_cannot_replace_lines_gets_lines(folder: Path) -> None:
    train_once(folder)
    text = run_in_terminal("dumb")
    assert "\x1b" not in text
    first, *lines = text.split("\r\n")
    assert first.startswith("loading model")
    assert lines[0] == "2 of 2 learners joined; measuring"
    assert lines[1].startswith("cycle 1: ")


SHORTER_DEFAULT = """
from pathlib import Path
from melisma.cli import main, run
run.DEFAULT_TASK = Path("shorter.toml")
main()
"""


@pytest.mark.alone
@pytest.mark.timeout(240)
@pytest.mark.parametrize("cycles", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_without_arguments_four_unequal_devices_learn_digits(tmp_path: Path, cycles: int) -> None:
    """The run of `make run`, which has six cycles, or its first two."""
    default = DEFAULT_TASK.read_text()
    assert "cycles = 6" in default
    (tmp_path / "shorter.toml").write_text(default.replace("cycles = 6", "cycles = 2"))
    program = MELISMA if cycles == 6 else (sys.executable, "-c", SHORTER_DEFAULT)
    command = [*program, "run", "--json", "--out", "digits"]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=220
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["accuracy"] >= 0.9
    assert report["task"]["scheme"] == "dab"
    assert len(report["cycles"]) == cycles
    trained = {learner["name"]: learner["counted_visits"] for learner in report["learners"]}
    assert len(trained) == 4
    # A faster device trains more samples.
    assert trained["jetson"] > 2 * trained["pi-kitchen"]
