"""`melisma simulate` as users call it."""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from melisma.cli import simulate as simulate_command
from melisma.cli.simulate import CycleClock
from melisma.simulation import fault_search
from melisma.simulation.compute import memory
from melisma.simulation.simulation import ComputeLevel, SimulationOptions, prepare
from tests.cli.command_line import Result, melisma
from tests.live import tiny_task

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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a task and a fleet."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.toml").write_text(TASK)
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path


def test_checkpoints_that_are_not_kept_are_noted(folder: Path) -> None:
    (folder / "task.toml").write_text(TASK.replace("passes = 2", 'passes = 2\ncheckpoints = "all"'))
    code, _, err = simulate()
    assert code == 0
    assert err == 'note: checkpoints = "all": ignored, as work = "timing" trains no model\n'


@pytest.mark.parametrize("command", ["simulate", "run"])
@pytest.mark.parametrize(
    ("option", "problem"),
    [
        (("--total", "1"), "total_s is 1; expected at least 5"),
        (("--finish-by", "soon"), "finish_by is 'soon'"),
        (("--finish-by", "2020-01-01 10:00"), 'finish_by = "2020-01-01 10:00" is too soon'),
        (("--start", "gone"), "start is gone: there is no such file"),
        (("--aggregation", "foo"), "aggregation is 'foo'; expected"),
        (("--scheme", "foo"), "no scheme is called 'foo'"),
    ],
)
def test_an_error_about_an_option_does_not_name_the_file(
    command: str, option: tuple[str, str], problem: str
) -> None:
    refused = melisma(command, "task.toml", "--fleet", "fleet.toml", *option)
    assert refused.code == 2
    assert refused.stderr.startswith(f"melisma: {problem}")
    assert "task.toml" not in refused.stderr


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('aggregation = "foo"', "aggregation is 'foo'"),
        ('scheme = "foo"', "no scheme is called 'foo'"),
        ('start = "gone"', "cannot read the model gone"),
    ],
)
def test_the_same_error_of_the_file_names_it(folder: Path, line: str, problem: str) -> None:
    text = TASK.replace("[task]", f"[task]\n{line}").replace('"timing"', '"batched"')
    (folder / "task.toml").write_text(text)
    refused = simulate()
    assert refused.code == 2
    assert refused.stderr.startswith(f"melisma: task.toml: task: {problem}")


def test_a_scheme_of_the_command_line_that_needs_passes_names_the_file(folder: Path) -> None:
    (folder / "task.toml").write_text(TASK.replace("passes = 2", 'scheme = "staleness"'))
    refused = simulate("--scheme", "dab")
    assert refused.stderr.startswith("melisma: task.toml: task: scheme dab needs passes")


def simulate(*options: str) -> Result:
    return melisma("simulate", "task.toml", "--fleet", "fleet.toml", *options)


def test_a_run_prints_a_line_per_cycle_and_a_summary() -> None:
    code, out, err = simulate()
    assert (code, err) == (0, "")
    assert out.startswith("digits: dab, 2 learners, 2 cycles of 10 s, timing, seed 1\ncycle 1: ")
    assert "the deadline of 10 s held in 2 of 2 cycles" in out
    assert "MB transferred\n" in out
    assert " J\n" in out
    assert "simulated in" in out


def test_cost_is_printed_only_if_the_fleet_sets_prices(folder: Path) -> None:
    assert "cost" not in simulate().stdout
    priced = FLEET.replace("[[fleet.learner]]", "[[fleet.learner]]\nprice = 0.5", 1)
    (folder / "fleet.toml").write_text(priced)
    out = simulate().stdout
    assert re.search(r"energy [\d,.]+ J, cost [\d,.]+\n", out)
    assert re.search(r"learner .* energy J +cost +missing\n", out)
    report = json.loads(simulate("--json").stdout)
    costs, joules = ([row[name] for row in report["learners"]] for name in ("cost", "joules"))
    shards = [row["shards"] for row in report["learners"]]
    assert costs == [0.5 * shards[0], shards[1]]
    assert sum(costs) == pytest.approx(report["cost"])
    assert sum(joules) == pytest.approx(report["joules"])
    assert sum(row["bytes"] for row in report["learners"]) == pytest.approx(report["bytes"])


def test_json_is_one_object_with_faults_and_usage() -> None:
    code, out, _ = simulate("--json", "--faults", "corrupt update 1 from 1", "--seed", "7")
    report: dict[str, Any] = json.loads(out)
    assert code == 0
    assert report["faults"] == "corrupt update 1 from hare"
    assert report["task"]["seed"] == 7
    assert report["cycles"][0]["assignments"][1]["status"] == "refused"
    assert report["bytes"] > 0
    assert report["joules"] > 0


def test_the_run_folder_has_picture_and_trace_and_must_be_empty(folder: Path) -> None:
    assert simulate("--out", "results")[0] == 0
    assert {path.name for path in (folder / "results").iterdir()} == {"picture.svg", "trace.jsonl"}
    code, _, err = simulate("--out", "results")
    assert code == 2
    assert "is not empty" in err


def test_the_same_number_draws_the_same_faults() -> None:
    first, again, other = (
        json.loads(simulate("--json", "--faults", seed).stdout) for seed in ("3", "3", "4")
    )
    assert first == again
    assert first["faults"] != other["faults"]


def test_a_schedule_that_violates_an_invariant_is_printed_as_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_violation(scenario: Any) -> str:
        return "clock" if any(fault.kind == "clock" for fault in scenario.faults) else ""

    monkeypatch.setattr(fault_search, "find_violation", find_violation)
    code, out, _ = simulate("--search-faults", "12", "--scheme", "equal", "--learners", "3")
    assert code == 1
    printed = [line.strip() for line in out.splitlines() if line.startswith("  melisma simulate")]
    assert f"12 fault schedules, {len(printed)} violations" in out
    start = "melisma simulate task.toml --fleet fleet.toml --scheme equal --learners 3"
    assert printed
    assert all(line.startswith(start) and "--faults 'clock" in line for line in printed)


def test_a_fault_search_without_violations_succeeds() -> None:
    code, out, _ = simulate("--search-faults", "5", "--json")
    assert (code, json.loads(out)) == (0, {"schedules": 5, "violations": []})


@pytest.mark.parametrize(
    ("options", "message"),
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
        (["--deadline", "-1"], "deadline_s is -1; expected seconds, more than 0"),
        (["--scheme", "equal", "--learners", "2000"], "task.toml: task: 2000 learners"),
        (["--learners", "0"], "--learners is 0; expected a whole number >= 1"),
        (["--work", "play"], "unknown value 'play'; expected one of"),
    ],
)
def test_a_mistake_in_the_options_ends_with_2(options: list[str], message: str) -> None:
    code, out, err = simulate(*options)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("passes = 2", "passes = 0", "task.toml: task.passes"),
        ('work = "timing"', 'work = "sleep"', "task.toml: task.simulation.work"),
        (
            "deadline_s = 10.0",
            "deadline = 10.0",
            "unknown key deadline; did you mean deadline_s (in",
        ),
    ],
)
def test_a_mistake_in_a_file_names_file_and_key(
    before: str, after: str, message: str, folder: Path
) -> None:
    (folder / "task.toml").write_text(TASK.replace(before, after))
    code, _, err = simulate()
    assert code == 2
    assert message in " ".join(err.split())


@pytest.mark.parametrize(
    ("learners", "free_gb"),
    [(200_000, 0.1), pytest.param(2_000_000, 1, marks=pytest.mark.slow)],
)
def test_a_fleet_too_large_for_the_memory_is_refused_before_the_run(
    learners: int, free_gb: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory_bytes", lambda: free_gb * 1e9)
    code, out, err = simulate("--learners", str(learners))
    assert (code, out) == (2, "")
    assert f"task.toml: task: {learners:,} learners and 2 cycles need about" in err
    assert f"but {free_gb:g} GB are free" in err


# The handler of SIGINT is set, because shells start background processes with SIGINT ignored.
INTERRUPTIBLE = """
import signal
from melisma.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""


TINY_TASK = (
    TASK.replace("twonn", "tiny_task:Linear")
    .replace("mnist", "tiny_task:blobs")
    .replace("samples = 3000", "samples = 600")
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "task", [TINY_TASK, pytest.param(TASK, marks=pytest.mark.slow)], ids=["numpy", "torch"]
)
def test_a_signal_ends_the_simulation_and_keeps_its_results(
    number: signal.Signals, task: str, folder: Path
) -> None:
    shutil.copy(tiny_task.__file__, folder / "tiny_task.py")
    (folder / "task.toml").write_text(task.replace("cycles = 2", "cycles = 100_000"))
    options = ["task.toml", "--fleet", "fleet.toml", "--work", "train", "--out", "results"]
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, "simulate", *options],
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
    names = {path.name for path in (folder / "results").iterdir()}
    assert {"model.safetensors", "trace.jsonl"} < names


PRINTING_MODEL = """
from torch import nn


class Printing(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(784, 10))

    def forward(self, x):
        print("forward")
        return super().forward(x)
"""


def test_output_of_the_users_model_is_not_in_the_json(folder: Path) -> None:
    (folder / "printing.py").write_text(PRINTING_MODEL)
    text = TASK.replace('model = "twonn"', 'model = "printing:Printing"').replace(
        "cycles = 2", "cycles = 1"
    )
    (folder / "task.toml").write_text(text)
    code, out, err = simulate("--work", "train", "--json")
    assert code == 0
    assert json.loads(out)["task"]["simulation"] == {"work": "train"}
    assert "forward" in err


def test_the_status_line_names_the_cycle_and_is_erased_before_a_line_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []

    @contextmanager
    def fake_line(text: Callable[[], str]) -> Iterator[Callable[[], None]]:
        yield lambda: shown.append(text())

    monkeypatch.setattr(simulate_command, "status_line", fake_line)
    assert simulate().code == 0
    assert shown == [
        "computing cycle 2 of 2: 0 s; cycle 1 took 0 s",
        "computing cycle 2 of 2: 0 s; cycle 2 took 0 s",
    ]
    assert "computing" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("level", "seconds", "hint"),
    [
        ("train", 9.0, ""),
        ("train", 12.0, "; --work timing simulates without training"),
        ("timing", 12.0, ""),
    ],
)
def test_the_status_line_names_a_faster_way_if_training_takes_long(
    level: ComputeLevel, seconds: float, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare("task.toml", "fleet.toml", SimulationOptions(work=level))
    now = 100.0
    monkeypatch.setattr("melisma.cli.simulate.time.monotonic", lambda: now)
    clock = CycleClock(prepared)
    now += seconds
    assert clock.text() == f"computing cycle 1 of 2: {seconds:.0f} s{hint}"
    clock.finish(1)
    assert clock.text() == f"computing cycle 2 of 2: 0 s; cycle 1 took {seconds:.0f} s{hint}"


def test_single_cycles_learners_and_updates_are_in_the_singular(folder: Path) -> None:
    (folder / "task.toml").write_text(TASK.replace("cycles = 2", "cycles = 1"))
    (folder / "fleet.toml").write_text(
        FLEET.split('[[fleet.learner]]\nname = "hare"', maxsplit=1)[0]
    )
    out = simulate().stdout
    assert out.startswith("digits: dab, 1 learner, 1 cycle of 10 s, timing, seed 1\n")
    assert "; 1 of 1 update; " in out


def test_energy_is_summed_by_group_and_listed_by_learner_in_json(folder: Path) -> None:
    phones = 'name = "phone"\ncount = 30\nsamples_per_s = 300\nbandwidth_bps = 20e6\n'
    energy = "energy = { sample_j = 0.1 }\n"
    (folder / "fleet.toml").write_text(f"{FLEET}[[fleet.group]]\n{phones}{energy}")
    lines = [line.split() for line in simulate("--show", "1").stdout.splitlines()]
    groups = {line[0]: line for line in lines if line[:1] in (["phone"], ["hare"])}
    assert groups["phone"][1] == "30"
    report = json.loads(simulate("--json").stdout)
    joules = sum(total["joules"] for total in report["learners"] if "phone" in total["name"])
    assert groups["phone"][4] == f"{joules:,.1f}"
    assert groups["hare"][1] == "1"
    assert not [line for line in lines if line[:1] == ["phone-01"]]
