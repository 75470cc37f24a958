"""`melisma run` as its user calls it."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.live import tiny_task

MELISMA = [sys.executable, "-c", "from melisma.cli import main; main()", "run"]
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
compute = 0.05
bandwidth_bps = 20e6

[[fleet.learner]]
name = "hare"
compute = 0.4
bandwidth_bps = 80e6
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a task, a fleet, and a model of one's own beside them."""
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    (tmp_path / "task.toml").write_text(TASK)
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path


def run(place: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*MELISMA, *arguments], cwd=place, capture_output=True, text=True, check=False, timeout=50
    )


def small_run(place: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run(place, "task.toml", "--fleet", "fleet.toml", *arguments)


def test_it_trains_and_says_what_came_of_it(place: Path) -> None:
    result = small_run(place)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    there, first, second, verdict, *rest = result.stdout.splitlines()
    assert there == "2 of 2 learners joined; measuring"
    assert re.match(r"cycle 1: [\d.]+ of 6 s; 2 of 2 updates; accuracy", first)
    assert second.startswith("cycle 2:")
    assert verdict.startswith("the deadline of 6 s held in 2 of 2 cycles")
    text = "\n".join(rest)
    assert "tortoise" in text
    assert "hare" in text
    for kind in ("model", "picture", "trace"):
        (path,) = re.findall(rf"^{kind} +(\S+)$", text, re.MULTILINE)
        assert (place / path).is_file()
        assert Path(path).is_relative_to("runs")


def test_what_this_machine_cannot_stand_for_is_noted(place: Path) -> None:
    text = (place / "fleet.toml").read_text().replace("compute = 0.4", "compute = 4.0")
    (place / "fleet.toml").write_text(text)
    result = small_run(place)
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith("note: hare: faster than a core of this machine")


def test_json_is_the_same_as_data(place: Path) -> None:
    result = small_run(place, "--json", "--out", "mine")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["outcome"] == "done"
    assert len(report["cycles"]) == 2
    assert report["accuracy"] > 0.9
    assert Path(report["model"]).resolve() == (place / "mine" / "model.safetensors").resolve()


def test_another_scheme_can_be_asked_for(place: Path) -> None:
    result = small_run(place, "--scheme", "proportional")
    assert result.returncode == 0, result.stderr
    assert [line.partition(":")[0] for line in result.stdout.splitlines()[1:3]] == [
        "cycle 1",
        "cycle 2",
    ]
    assert "running" not in result.stdout
    (trace,) = place.glob("runs/*/trace.jsonl")
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
        (("fleet.toml", "compute = 0.4", "compute = -1"), ["fleet.toml", "compute"]),
        (("fleet.toml", "bandwidth_bps = 80e6", "bandwith = 1"), ["fleet.toml", "bandwith"]),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_it(
    place: Path, change: tuple[str, str, str], words: list[str]
) -> None:
    name, before, after = change
    text = (place / name).read_text()
    assert before in text
    (place / name).write_text(text.replace(before, after))
    result = small_run(place)
    assert result.returncode == 2, result.stdout + result.stderr
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert word in result.stderr
    assert not list(place.glob("runs/*/devices"))


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
def test_wrong_usage_ends_with_2_and_no_traceback(place: Path, arguments: tuple[str, ...]) -> None:
    result = run(place, *arguments)
    assert result.returncode == 2, result.stdout + result.stderr
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
        ("points.astype(np.float32)", "(points * np.nan).astype(np.float32)", ["not finite"]),
        ("points.astype(np.float32)", "points.astype(object)", ["object"]),
    ],
)
def test_a_mistake_in_one_s_own_code_is_one_line_with_its_place(
    place: Path, before: str, after: str, words: list[str]
) -> None:
    text = (place / "tiny_task.py").read_text()
    assert before in text
    (place / "tiny_task.py").write_text(text.replace(before, after))
    result = small_run(place)
    assert result.returncode == 2, result.stdout + result.stderr
    assert len(result.stderr.splitlines()) == 1
    for word in words:
        assert word in result.stderr


def test_a_mistake_that_only_training_finds_is_told_with_its_place(place: Path) -> None:
    text = (
        (place / "tiny_task.py")
        .read_text()
        .replace("self._task, self._num", "self.task, self._num")
    )
    (place / "tiny_task.py").write_text(text)
    result = small_run(place, "--out", "mine")
    assert result.returncode == 1
    assert "AttributeError: 'Linear' object has no" in result.stdout
    assert "(tiny_task.py," in result.stdout.replace("\n", " ")
    assert "Traceback" in (place / "mine" / "logs" / "0.log").read_text()


def test_what_own_modules_print_is_not_in_the_json(place: Path) -> None:
    text = (place / "tiny_task.py").read_text()
    (place / "tiny_task.py").write_text(text + '\nprint("loading")\n')
    result = small_run(place, "--json")
    assert json.loads(result.stdout)["outcome"] == "done"
    assert "loading" in result.stderr


def test_training_that_diverges_is_no_success(place: Path) -> None:
    text = (place / "task.toml").read_text()
    (place / "task.toml").write_text(text + '\n[task.model_args]\nbroken = "nan"\n')
    result = small_run(place)
    assert result.returncode == 1
    assert "not finite" in result.stdout
    assert "accuracy" not in result.stdout.splitlines()[-1]


def test_too_few_shards_are_refused_at_once(place: Path) -> None:
    text = (place / "task.toml").read_text().replace("shard_samples = 50", "shard_samples = 600")
    (place / "task.toml").write_text(text)
    result = small_run(place, "--scheme", "proportional")
    assert result.returncode == 2
    assert "use shard_samples <= 300" in result.stderr


def test_a_deadline_that_nobody_can_meet_ends_with_1_and_says_which_would_do(place: Path) -> None:
    text = (place / "task.toml").read_text().replace("deadline_s = 6.0", "deadline_s = 0.001")
    (place / "task.toml").write_text(text)
    result = small_run(place)
    assert result.returncode == 1
    stdout = " ".join(result.stdout.split())
    assert re.search(r"deadline_s = 0.001 is too short: .*; use deadline_s >= \d", stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_run_and_keeps_the_model(number: signal.Signals, place: Path) -> None:
    text = (place / "task.toml").read_text().replace("cycles = 2", "cycles = 1000")
    (place / "task.toml").write_text(text)
    process = subprocess.Popen(
        [*MELISMA, "task.toml", "--fleet", "fleet.toml", "--out", "mine"],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("2 of 2 learners joined")
    assert process.stdout.readline().startswith("cycle 1:")
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == ""
    assert "interrupted" in out
    assert (place / "mine" / "model.safetensors").is_file()
    assert (place / "mine" / "trace.jsonl").is_file()


def test_in_a_terminal_each_learner_is_shown(place: Path) -> None:
    mine, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(
        [*MELISMA, "task.toml", "--fleet", "fleet.toml"],
        cwd=place,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment,
    )
    os.close(theirs)
    shown, end = b"", time.monotonic() + 40
    while time.monotonic() < end:
        try:
            piece = os.read(mine, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(mine)
    assert process.stderr is not None
    error = process.stderr.read()
    process.stderr.close()
    assert process.wait(10) == 0, error
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode()
    assert "tortoise" in text
    assert "cycle 2 of 2" in text
    assert "the deadline of 6 s held in 2 of 2 cycles" in text


@pytest.mark.alone
@pytest.mark.timeout(240)
def test_without_arguments_four_unlike_devices_learn_digits(tmp_path: Path) -> None:
    """The main job, as `make run` does it."""
    command = [*MELISMA, "--json", "--out", "digits"]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=220
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["accuracy"] >= 0.9
    assert report["task"]["scheme"] == "dab"
    assert len(report["cycles"]) == 6
    trained = {each["name"]: each["counted_visits"] for each in report["learners"]}
    assert len(trained) == 4
    # Who is faster trains more.
    assert trained["jetson"] > 2 * trained["pi-kitchen"]
