"""`melisma simulate`, as it is typed."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from melisma import cli
from melisma.simulation import fault_search
from melisma.simulation.compute import memory

TASK = """
[task]
name = "digits"
model = "twonn"
data = "mnist"
passes = 2
deadline_s = 10.0
cycles = 2
shard_samples = 100
sizes = { samples = 3000 }
simulation = { work = "timing" }
"""
FLEET = """
[[fleet.learner]]
name = "tortoise"
samples_per_s = 200
bandwidth_bps = 20e6
energy = { sample_j = 0.5, byte_j = 1e-6 }
[[fleet.learner]]
name = "hare"
samples_per_s = 800
bandwidth_bps = 50e6
"""
Said = tuple[int, str, str]


@pytest.fixture
def melisma(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """The command, in this process, beside two files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.toml").write_text(TASK)
    (tmp_path / "fleet.toml").write_text(FLEET)

    def say(*words: str) -> Said:
        files = ["task.toml", "--fleet", "fleet.toml"]
        monkeypatch.setattr(sys, "argv", ["melisma", "simulate", *files, *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return say


def test_a_run_is_told_cycle_by_cycle_and_then_on_one_screen(melisma: Callable[..., Said]) -> None:
    code, out, err = melisma()
    assert (code, err) == (0, "")
    assert out.startswith("digits: dab, 2 learners, 2 cycles of 10 s, timing, seed 1\ncycle 1: ")
    assert "the deadline of 10 s held in 2 of 2 cycles" in out
    assert "MB transferred, " in out
    assert " J, cost " in out
    assert "simulated in" in out


def test_json_is_one_object_with_what_went_wrong(melisma: Callable[..., Said]) -> None:
    code, out, _ = melisma("--json", "--faults", "corrupt update 1 from 1", "--seed", "7")
    told: dict[str, Any] = json.loads(out)
    assert code == 0
    assert told["faults"] == "corrupt update 1 from 1"
    assert told["task"]["seed"] == 7
    assert told["cycles"][0]["assignments"][1]["status"] == "refused"
    assert told["bytes"] > 0
    assert told["joules"] > 0


def test_what_is_kept_is_what_a_live_run_keeps(
    melisma: Callable[..., Said], tmp_path: Path
) -> None:
    assert melisma("--out", "kept")[0] == 0
    assert {path.name for path in (tmp_path / "kept").iterdir()} == {"picture.svg", "trace.jsonl"}
    code, _, err = melisma("--out", "kept")
    assert code == 2
    assert "is not empty" in err


def test_a_number_draws_faults_and_the_same_number_the_same(melisma: Callable[..., Said]) -> None:
    one, again, other = (json.loads(melisma("--json", "--faults", n)[1]) for n in ("3", "3", "4"))
    assert one == again
    assert one["faults"] != other["faults"]


def test_a_schedule_that_breaks_something_is_printed_as_a_command(
    melisma: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(scene: Any) -> str:
        return "oh" if any(fault.kind == "clock" for fault in scene.faults) else ""

    monkeypatch.setattr(fault_search, "find_violation", breaks)
    code, out, _ = melisma("--search-faults", "12", "--scheme", "equal", "--learners", "3")
    assert code == 1
    found = [line.strip() for line in out.splitlines() if line.startswith("  melisma simulate")]
    assert f"12 fault schedules, {len(found)} violations" in out
    start = "melisma simulate task.toml --fleet fleet.toml --scheme equal --learners 3"
    assert found
    assert all(line.startswith(start) and "--faults 'clock" in line for line in found)


def test_a_fault_search_without_violations_succeeds(melisma: Callable[..., Said]) -> None:
    code, out, _ = melisma("--search-faults", "5", "--json")
    assert (code, json.loads(out)) == (0, {"schedules": 5, "violations": []})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--faults", "crush 1 at 2"], "invalid fault"),
        (
            ["--search-faults", "3", "--faults", "clock 0 by 1.1"],
            "--search-faults draws its faults",
        ),
        (["--scheme", "med"], "cannot run a cycle of one task"),
        (
            ["--search-faults", "3", "--work", "train"],
            "--search-faults trains nothing",
        ),
        (["--deadline", "-1"], "deadline_s = -1; use 0 < deadline_s <"),
        (["--scheme", "equal", "--learners", "2000"], "task.toml: task: 2000 learners"),
        (["--learners", "0"], "0 is not in the range"),
        (["--work", "play"], "unknown value 'play'; expected one of"),
    ],
)
def test_a_mistake_is_said_in_one_line(
    words: list[str], says: str, melisma: Callable[..., Said]
) -> None:
    code, out, err = melisma(*words)
    assert (code, out) == (2, "")
    assert says in err


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("passes = 2", "passes = 0", "task.toml: task.passes"),
        ('work = "timing"', 'work = "sleep"', "task.toml: task.simulation.work"),
        ("deadline_s = 10.0", "deadline = 10.0", "unknown key deadline; did you mean deadline_s?"),
    ],
)
def test_a_bad_file_is_named_with_its_key(
    old: str, new: str, says: str, melisma: Callable[..., Said], tmp_path: Path
) -> None:
    (tmp_path / "task.toml").write_text(TASK.replace(old, new))
    code, _, err = melisma()
    assert code == 2
    assert says in " ".join(err.split())


def test_what_does_not_fit_into_memory_is_said_before_it_begins(
    melisma: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory_bytes", lambda: 1e9)
    code, out, err = melisma("--learners", "2000000")
    assert (code, out) == (2, "")
    assert "task.toml: task: 2,000,000 learners and 2 cycles need about" in err
    assert "1 GB are free" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_asks_it_to_end_gets_what_there_is(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "task.toml").write_text(TASK.replace("cycles = 2", "cycles = 100_000"))
    (tmp_path / "fleet.toml").write_text(FLEET)
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from melisma.cli import main; main()"
    words = ["simulate", "task.toml", "--fleet", "fleet.toml", "--work", "train", "--out", "mine"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("cycle 1:"))
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
    assert "interrupted" in out
    kept = {path.name for path in (tmp_path / "mine").iterdir()}
    assert {"model.safetensors", "trace.jsonl"} < kept


LOUD = """
from torch import nn


class Loud(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(784, 10))

    def forward(self, x):
        print("here I am")
        return super().forward(x)
"""


def test_json_is_alone_on_standard_output_and_says_what_was_computed(
    melisma: Callable[..., Said], tmp_path: Path
) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    text = TASK.replace('model = "twonn"', 'model = "loud:Loud"').replace(
        "cycles = 2", "cycles = 1"
    )
    (tmp_path / "task.toml").write_text(text)
    code, out, err = melisma("--work", "train", "--json")
    assert code == 0
    assert json.loads(out)["task"]["simulation"] == {"work": "train"}
    assert "here I am" in err
