"""Schemes side by side: means, intervals, pairs, and what is left out of them."""

import shutil
from dataclasses import replace
from math import isnan, nan, sqrt
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.errors import SettingError
from melisma.fleet.t_distribution import student_t
from melisma.fleet.task import Task
from melisma.simulation.comparison import comparison
from melisma.simulation.comparison.comparison import (
    ComparedRun,
    Comparison,
    Interval,
    Target,
    compare,
    summarize_runs,
)
from melisma.simulation.comparison.comparison_picture import draw_comparison
from melisma.simulation.comparison.figures import format_interval
from melisma.simulation.simulation import SimulationOptions, simulate
from tests.live import tiny_task
from tests.simulation import scenarios

UNASKED = Target()
TIMING = SimulationOptions(work="timing")
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
    """A task that is trained in no time, by a model of one's own."""
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return msgspec.convert(BLOBS, Task)


def runs_of(scheme: str, *seconds: float, accuracy: float = 0.9) -> tuple[ComparedRun, ...]:
    """Runs that reach an accuracy after so many seconds, or fail where that is NaN."""
    return tuple(
        ComparedRun(scheme, seed, "failed", "nobody came")
        if isnan(each)
        else ComparedRun(
            *(scheme, seed, "done"),
            curve=((each, accuracy),),
            training_s=each,
            run_s=each,
            accuracy=accuracy,
        )
        for seed, each in enumerate(seconds)
    )


def of(*runs: tuple[ComparedRun, ...], asked: Target = UNASKED) -> Comparison:
    schemes = tuple(some[0].scheme for some in runs)
    return summarize_runs(scenarios.make_task(), "train", schemes, sum(runs, ()), asked)


@pytest.mark.parametrize("mode", ["parallelized", "federated"])
def test_the_same_seeds_give_the_same_numbers(mode: str) -> None:
    def once() -> bytes:
        found = compare(
            *(
                scenarios.make_task(mode=mode),
                scenarios.make_fleet(),
                ["dab", "staleness", "equal"],
            ),
            *(range(2), TIMING),
        )
        return msgspec.json.encode(found.as_dict())

    assert once() == once()


def test_a_run_has_the_figures_of_its_report(blobs: Task) -> None:
    fleet = scenarios.make_fleet()
    found = compare(blobs, fleet, ["equal"], [3], accuracy=0.5)
    report = simulate(blobs, fleet, SimulationOptions(scheme="equal", seed=3))
    (run,) = found.runs
    assert run.accuracy_s == report.seconds_to(0.5)
    assert (run.training_s, run.accuracy, run.bytes) == (
        report.training_s,
        report.accuracy,
        report.bytes,
    )
    assert run.run_s == report.ended_s - report.began_s
    assert (run.seed, run.outcome) == (3, "done")


def test_all_that_end_well_reach_the_accuracy_if_none_is_asked_for(blobs: Task) -> None:
    seen: list[ComparedRun] = []
    found = compare(
        blobs, scenarios.make_fleet(), ["dab", "staleness"], range(2), watch=seen.append
    )
    assert found.target == Target(min(each.accuracy for each in found.runs), "lowest")
    assert not any(isnan(each.accuracy_s) for each in found.runs)
    assert [(each.seed, each.scheme) for each in seen] == [
        *((0, "dab"), (0, "staleness")),
        *((1, "dab"), (1, "staleness")),
    ]


def test_the_accuracy_at_which_a_task_stops_is_timed(blobs: Task) -> None:
    stops = msgspec.structs.replace(
        blobs, stop=msgspec.convert({"accuracy": 0.5}, type(blobs.stop))
    )
    found = compare(stops, scenarios.make_fleet(), ["dab"], [0])
    assert found.target == Target(0.5, "task")
    with pytest.raises(SettingError, match=r"accuracy is 0\.8, but the task stops at 0\.5"):
        compare(stops, scenarios.make_fleet(), ["dab"], [0], accuracy=0.8)


@given(st.floats(-1e9, 1e9), st.integers(2, 12))
def test_equal_values_have_an_interval_of_none(value: float, count: int) -> None:
    assert Interval.from_values([value] * count) == Interval(value, 0.0, count, count)


def test_an_interval_is_students_by_hand() -> None:
    found = Interval.from_values([1.0, 2.0, 3.0, 4.0])
    assert found.mean == 2.5
    assert found.half_width == pytest.approx(3.182446 * sqrt(5 / 3) / 2, rel=1e-6)
    t = float(student_t(0.975, np.array([3.0]))[0])
    assert found.half_width == pytest.approx(t * np.std([1, 2, 3, 4], ddof=1) / 2)


def test_one_value_has_no_interval_and_none_no_mean() -> None:
    one, none = Interval.from_values([2.0, nan]), Interval.from_values([nan])
    assert (one.mean, one.known, one.count) == (2.0, 1, 2)
    assert isnan(one.half_width)
    assert not one.beyond_chance
    assert isnan(none.mean)
    assert not none.beyond_chance


def test_what_a_seed_does_to_all_schemes_cancels_out() -> None:
    found = of(runs_of("dab", 10, 20, 30), runs_of("equal", 11, 21, 31.3))
    apart = found.difference("equal", "training_s")
    assert apart.mean == pytest.approx(1.1)
    assert apart.half_width == pytest.approx(4.302653 * 0.3 / 3, rel=1e-5)
    assert apart.beyond_chance
    assert found.interval("equal", "training_s").half_width > 20
    assert found.difference("dab", "training_s") == Interval(0.0, 0.0, 3, 3)


def test_a_last_digit_is_no_difference() -> None:
    found = of(runs_of("dab", 0.3, 0.3), runs_of("equal", 0.1 + 0.2, 0.1 + 0.2))
    assert not found.difference("equal", "training_s").beyond_chance


def test_failed_runs_are_counted_not_averaged() -> None:
    found = of(runs_of("dab", 10, nan, 30), runs_of("equal", 20, 21, nan))
    assert found.interval("dab", "training_s").mean == 20
    assert found.interval("dab", "training_s").known == 2
    assert len(found.failed_runs("dab")) == 1
    apart = found.difference("equal", "training_s")
    assert (apart.mean, apart.known, apart.count) == (10, 1, 3)


def test_who_never_reached_the_accuracy_comes_behind_who_always_did() -> None:
    quick = (*runs_of("dab", 1), replace(runs_of("dab", 1, 2)[1], curve=((2, 0.5),)))
    found = of(quick, runs_of("equal", 10, 12), asked=Target(0.9, "asked"))
    assert found.interval("dab", "accuracy_s").known == 1
    assert found.lead is not None
    assert (found.lead.first, found.lead.second) == ("equal", "dab")
    assert found.lead.difference.mean == -9


def test_without_training_the_time_of_the_run_decides() -> None:
    found = compare(
        scenarios.make_task(), scenarios.make_fleet(), ["equal", "staleness"], range(2), TIMING
    )
    assert not found.target
    assert not found.has_values("accuracy")
    assert found.lead is not None
    assert found.lead.figure == "run_s"


def test_if_all_fail_nobody_is_first() -> None:
    found = of(runs_of("dab", nan, nan), runs_of("equal", nan, nan))
    assert found.lead is None
    assert msgspec.json.decode(msgspec.json.encode(found.as_dict()))["lead"] is None


def test_a_scheme_whose_runs_all_fail_keeps_its_reason() -> None:
    short = scenarios.make_task(deadline_s=0.01)
    found = compare(short, scenarios.make_fleet(), ["dab", "staleness"], [0], TIMING)
    assert all(each.reason for each in found.failed_runs("staleness"))
    assert len(found.failed_runs("staleness")) == 1


@pytest.mark.parametrize(
    ("schemes", "said"),
    [
        (["dab", "nosuch"], "'nosuch' is unknown; expected one of equal, .*staleness.*dab"),
        (["med"], "'med' plans no cycle of one task"),
        (["dab", "dab"], "named twice"),
        ([], "no scheme to compare"),
        (["equal", "dab"], "^task: passes is missing; scheme dab needs it"),
    ],
)
def test_schemes_that_do_not_fit_are_refused(schemes: list[str], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        compare(scenarios.make_task(passes=None), scenarios.make_fleet(), schemes, [0], TIMING)


@pytest.mark.parametrize(
    ("seeds", "options", "accuracy", "said"),
    [
        ([], TIMING, None, "seeds are"),
        ([1, 1], TIMING, None, "seeds are"),
        ([0], SimulationOptions(seed=3), None, "options name"),
        ([0], TIMING, 0.9, "nothing is trained"),
        ([0], SimulationOptions(), 1.5, "at most 1"),
    ],
)
def test_what_makes_no_sense_is_refused(
    seeds: list[int], options: SimulationOptions, accuracy: float | None, said: str
) -> None:
    with pytest.raises(SettingError, match=said):
        compare(
            scenarios.make_task(),
            scenarios.make_fleet(),
            ["dab"],
            seeds,
            options,
            accuracy=accuracy,
        )


def test_schemes_that_choose_passes_ignore_those_of_the_task() -> None:
    found = compare(
        scenarios.make_task(passes=2), scenarios.make_fleet(), ["synchronous"], [0], TIMING
    )
    assert found.runs[0].ended_well


@pytest.mark.parametrize(
    ("values", "unit", "said"),
    [
        ([12.0, 12.5, 13.0], "s", "12.5 ± 1.2 s"),
        ([2e6, 2e6], "B", "2 ± 0 MB"),
        ([4.0], "", "4 ± ?"),
        ([1500.0, 1600.0], "J", "1.55 ± 0.64 kJ"),
        ([0.97, 0.97], "%", "97 ± 0 %"),
        ([nan], "s", "-"),
        ([0.0, 0.0], "", "0 ± 0"),
    ],
)
def test_numbers_have_the_digits_that_their_interval_leaves_them(
    values: list[float], unit: str, said: str
) -> None:
    assert format_interval(Interval.from_values(values), unit) == said


def test_a_picture_has_curves_only_where_something_is_trained() -> None:
    both = of(runs_of("dab", 1, 2, nan), runs_of("equal", 3, 4, 5))
    bars = compare(scenarios.make_task(), scenarios.make_fleet(), ["dab"], range(2), TIMING)
    drawn, plain = (draw_comparison(each).svg for each in (both, bars))
    assert "<polyline" in drawn
    assert "dab: 1 of 3 failed: nobody came" in drawn
    assert "<polyline" not in plain
    assert "training time" in plain
    for svg in (drawn, plain, draw_comparison(of(runs_of("dab", nan))).svg):
        ET.fromstring(svg)


def test_ctrl_c_ends_it_all(blobs: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: Any) -> Any:
        return replace(simulate(*given), outcome="cancelled")

    monkeypatch.setattr(comparison, "simulate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(blobs, scenarios.make_fleet(), ["dab", "equal"], range(2))
