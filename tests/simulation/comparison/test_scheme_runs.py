"""Runs of all schemes on all seeds: targets, invalid settings, Ctrl-C."""

import shutil
from dataclasses import replace
from itertools import count
from math import isnan
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest

from melisma.errors import SettingError
from melisma.fleet.task import Task
from melisma.simulation.comparison import scheme_runs
from melisma.simulation.comparison.compared_run import ComparedRun
from melisma.simulation.comparison.comparison import Target
from melisma.simulation.comparison.scheme_runs import compare
from melisma.simulation.simulation import SimulationOptions, run, simulate
from tests.live import tiny_task
from tests.simulation import scenarios
from tests.simulation.comparison.compared_runs import TIMING

BLOBS: dict[str, Any] = {
    "name": "blobs",
    "model": "tiny_task:Linear",
    "data": "tiny_task:blobs",
    "passes": 2,
    "deadline_s": 2.0,
    "cycles": 3,
    "shard_samples": 50,
    "optimizer": {"name": "sgd", "lr": 0.003},
    "simulation": {"work": "train"},
}


@pytest.fixture
def blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task that trains a tiny model of the user's in no time."""
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return msgspec.convert(BLOBS, Task)


@pytest.mark.parametrize("mode", ["parallelized", "federated"])
def test_the_same_seeds_give_the_same_numbers(mode: str) -> None:
    def once() -> bytes:
        result = compare(
            *(
                scenarios.make_task(mode=mode),
                scenarios.make_fleet(),
                ["dab", "staleness", "equal"],
            ),
            *(range(2), TIMING),
        )
        return msgspec.json.encode(result.as_dict())

    assert once() == once()


def test_by_default_the_target_is_an_accuracy_that_all_completed_runs_reach(blobs: Task) -> None:
    seen: list[ComparedRun] = []
    result = compare(
        blobs, scenarios.make_fleet(), ["dab", "staleness"], range(2), watch=seen.append
    )
    assert result.target == Target(min(each.accuracy for each in result.runs), "lowest")
    assert not any(isnan(each.accuracy_s) for each in result.runs)
    assert [(each.seed, each.scheme) for each in seen] == [
        *((0, "dab"), (0, "staleness")),
        *((1, "dab"), (1, "staleness")),
    ]


def test_the_accuracy_at_which_a_task_stops_is_timed(blobs: Task) -> None:
    stops = msgspec.structs.replace(
        blobs, stop=msgspec.convert({"accuracy": 0.5}, type(blobs.stop))
    )
    result = compare(stops, scenarios.make_fleet(), ["dab"], [0])
    assert result.target == Target(0.5, "task")
    with pytest.raises(SettingError, match=r"accuracy is 0\.8, but the task stops at 0\.5"):
        compare(stops, scenarios.make_fleet(), ["dab"], [0], accuracy=0.8)


def test_a_run_has_the_figures_of_its_report(blobs: Task) -> None:
    fleet = scenarios.make_fleet()
    result = compare(blobs, fleet, ["equal"], [3], accuracy=0.5)
    report = simulate(blobs, fleet, SimulationOptions(scheme="equal", seed=3))
    (run,) = result.runs
    assert run.accuracy_s == report.seconds_to(0.5)
    assert (run.training_s, run.accuracy, run.bytes) == (
        report.training_s,
        report.accuracy,
        report.bytes,
    )
    assert run.run_s == report.ended_s - report.began_s
    assert (run.seed, run.outcome) == (3, "finished")


def test_a_scheme_whose_runs_all_fail_keeps_its_reason() -> None:
    short = scenarios.make_task(deadline_s=0.01)
    result = compare(short, scenarios.make_fleet(), ["dab", "staleness"], [0], TIMING)
    assert all(each.reason for each in result.failures("staleness"))
    assert len(result.failures("staleness")) == 1


@pytest.mark.parametrize(
    ("schemes", "message"),
    [
        (["dab", "nosuch"], "'nosuch' is unknown; expected one of equal, .*staleness.*dab"),
        (["med"], "'med' cannot run a cycle of one task"),
        (["dab", "dab"], "named twice"),
        ([], "no scheme to compare"),
        (["equal", "dab"], "^task: passes is missing; scheme dab needs it"),
    ],
)
def test_schemes_that_do_not_fit_are_refused(schemes: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        compare(scenarios.make_task(passes=None), scenarios.make_fleet(), schemes, [0], TIMING)


@pytest.mark.parametrize(
    ("seeds", "options", "accuracy", "message"),
    [
        ([], TIMING, None, "seeds are"),
        ([1, 1], TIMING, None, "seeds are"),
        ([0], SimulationOptions(seed=3), None, "options set a scheme or a seed"),
        ([0], TIMING, 0.9, "work = timing trains nothing"),
        ([0], SimulationOptions(), 1.5, "at most 1"),
    ],
)
def test_invalid_arguments_are_refused(
    seeds: list[int], options: SimulationOptions, accuracy: float | None, message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        compare(
            scenarios.make_task(),
            scenarios.make_fleet(),
            ["dab"],
            seeds,
            options,
            accuracy=accuracy,
        )


def test_schemes_that_choose_passes_ignore_those_of_the_task() -> None:
    result = compare(
        scenarios.make_task(passes=2), scenarios.make_fleet(), ["synchronous"], [0], TIMING
    )
    assert result.runs[0].completed


def interrupt_after(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel every run after the first ones, as Ctrl-C does."""
    finished = count()

    def interrupted(*given: Any) -> Any:
        report = run(*given)
        return report if next(finished) < runs else replace(report, outcome="cancelled")

    monkeypatch.setattr(scheme_runs, "run", interrupted)


def test_ctrl_c_before_the_first_run_has_finished_ends_the_comparison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupt_after(0, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        compare(scenarios.make_task(), scenarios.make_fleet(), ["dab", "equal"], range(2), TIMING)


@pytest.mark.parametrize(("runs", "seeds"), [(1, (0,)), (3, (0, 1)), (4, (0, 1))])
def test_ctrl_c_keeps_the_finished_runs(
    runs: int, seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = scenarios.make_task(), scenarios.make_fleet()
    whole = compare(*files, ["dab", "equal"], range(3), TIMING)
    interrupt_after(runs, monkeypatch)
    kept = compare(*files, ["dab", "equal"], range(3), TIMING)
    assert (kept.interrupted, whole.interrupted) == (True, False)
    assert kept.runs == whole.runs[:runs]
    assert kept.seeds == seeds
    assert kept.as_dict()["interrupted"] is True
    assert ET.fromstring(kept.plot().svg) is not None
    # A scheme is not ahead because the other one is still to run.
    paired = [run for run in kept.runs if kept.runs_of("equal")[-1:] and run.seed == 0]
    assert (kept.lead is None) == (not paired)
    if kept.lead:
        assert kept.lead.first == whole.lead.first if whole.lead else None
