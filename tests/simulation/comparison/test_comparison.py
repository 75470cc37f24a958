"""Comparison of schemes: means, intervals, paired differences, and runs left out of them."""

import shutil
from dataclasses import replace
from itertools import count
from math import isnan, nan, sqrt
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.cli.views.compare_view import lead_line
from melisma.errors import SettingError
from melisma.fleet.t_distribution import t_quantile
from melisma.fleet.task import Task
from melisma.simulation.comparison import comparison
from melisma.simulation.comparison.comparison import (
    FIGURES,
    ComparedRun,
    Comparison,
    Target,
    compare,
    summarize_runs,
)
from melisma.simulation.comparison.comparison_picture import draw_comparison
from melisma.simulation.comparison.figures import (
    TIME_FIGURES,
    WORK_FIGURES,
    format_interval,
    is_shown,
)
from melisma.simulation.comparison.interval import Interval
from melisma.simulation.simulation import SimulationOptions, run, simulate
from tests.live import tiny_task
from tests.runs.test_report import report_of
from tests.simulation import scenarios

NO_TARGET = Target()
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
    """A task that trains a tiny model of the user's in no time."""
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return msgspec.convert(BLOBS, Task)


def runs_of(scheme: str, *seconds: float, accuracy: float = 0.9) -> tuple[ComparedRun, ...]:
    """Return runs that reach an accuracy after these seconds, or fail where they are NaN."""
    return tuple(
        ComparedRun(scheme, seed, "failed", "no learner answered")
        if isnan(each)
        else ComparedRun(
            *(scheme, seed, "finished"),
            curve=((each, accuracy),),
            training_s=each,
            run_s=each,
            accuracy=accuracy,
        )
        for seed, each in enumerate(seconds)
    )


def summarize(*runs: tuple[ComparedRun, ...], target: Target = NO_TARGET) -> Comparison:
    schemes = tuple(scheme_runs[0].scheme for scheme_runs in runs)
    return summarize_runs(scenarios.make_task(), "train", schemes, sum(runs, ()), target)


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


@given(st.floats(-1e9, 1e9), st.integers(2, 12))
def test_equal_values_have_an_interval_of_width_0(value: float, count: int) -> None:
    assert Interval.from_values([value] * count) == Interval(value, 0.0, count, count)


def test_an_interval_equals_that_computed_by_hand_with_students_t() -> None:
    result = Interval.from_values([1.0, 2.0, 3.0, 4.0])
    assert result.mean == 2.5
    assert result.half_width == pytest.approx(3.182446 * sqrt(5 / 3) / 2, rel=1e-6)
    t = float(t_quantile(0.975, np.array([3.0]))[0])
    assert result.half_width == pytest.approx(t * np.std([1, 2, 3, 4], ddof=1) / 2)


def test_a_single_value_has_no_interval_and_no_values_have_no_mean() -> None:
    one, none = Interval.from_values([2.0, nan]), Interval.from_values([nan])
    assert (one.mean, one.known, one.count) == (2.0, 1, 2)
    assert isnan(one.half_width)
    assert not one.excludes_zero
    assert isnan(none.mean)
    assert not none.excludes_zero


def test_effects_of_a_seed_on_all_schemes_cancel_out() -> None:
    result = summarize(runs_of("dab", 10, 20, 30), runs_of("equal", 11, 21, 31.3))
    apart = result.difference("equal", "training_s")
    assert apart.mean == pytest.approx(1.1)
    assert apart.half_width == pytest.approx(4.302653 * 0.3 / 3, rel=1e-5)
    assert apart.excludes_zero
    assert result.interval("equal", "training_s").half_width > 20
    assert result.difference("dab", "training_s") == Interval(0.0, 0.0, 3, 3)


def test_rounding_errors_are_no_difference() -> None:
    result = summarize(runs_of("dab", 0.3, 0.3), runs_of("equal", 0.1 + 0.2, 0.1 + 0.2))
    assert not result.difference("equal", "training_s").excludes_zero


def test_failed_runs_are_counted_not_averaged() -> None:
    result = summarize(runs_of("dab", 10, nan, 30), runs_of("equal", 20, 21, nan))
    assert result.interval("dab", "training_s").mean == 20
    assert result.interval("dab", "training_s").known == 2
    assert len(result.failures("dab")) == 1
    apart = result.difference("equal", "training_s")
    assert (apart.mean, apart.known, apart.count) == (10, 1, 3)


def test_a_scheme_that_missed_the_target_once_ranks_behind_one_that_never_did() -> None:
    quick = (*runs_of("dab", 1), replace(runs_of("dab", 1, 2)[1], curve=((2, 0.5),)))
    result = summarize(quick, runs_of("equal", 10, 12), target=Target(0.9, "asked"))
    assert result.interval("dab", "accuracy_s").known == 1
    assert result.lead is not None
    assert (result.lead.first, result.lead.second) == ("equal", "dab")
    assert result.lead.difference.mean == -9


@pytest.mark.parametrize(
    ("dab", "equal", "is_clear"),
    [
        ((10, 20, 30), (11, 21, 31.3), True),
        ((10, 20, 30), (11, 19, 31.3), False),
        ((10,), (20,), False),
        ((10, 10), (10, 10), False),
    ],
)
def test_a_lead_is_clear_if_the_difference_is_significant(
    dab: tuple[float, ...], equal: tuple[float, ...], is_clear: bool
) -> None:
    comparison = summarize(runs_of("dab", *dab), runs_of("equal", *equal))
    assert comparison.lead is not None
    assert comparison.lead.is_clear is is_clear
    line = lead_line(comparison)
    assert line.startswith("dab reached 90.00% first, after") is is_clear
    assert line.startswith("no scheme leads: the time to the target accuracy of ") is not is_clear


def test_a_scheme_that_reached_the_target_on_more_seeds_leads_clearly() -> None:
    quick = (*runs_of("dab", 1), replace(runs_of("dab", 1, 2)[1], curve=((2, 0.5),)))
    result = summarize(quick, runs_of("equal", 10, 12), target=Target(0.9, "asked"))
    assert lead_line(result).startswith("equal reached 90.00% first, after 11 s on average; dab on")


def test_a_fleet_without_prices_has_no_column_of_cost() -> None:
    task, schemes = scenarios.make_task(), ["dab", "equal"]
    for fleet, shown in (
        (scenarios.make_fleet(), False),
        (scenarios.make_fleet(budget=1000.0), True),
        (scenarios.make_fleet([each | {"price": 2.0} for each in scenarios.LEARNERS]), True),
    ):
        result = compare(task, fleet, schemes, [0], TIMING)
        assert is_shown(result, "cost") is shown
        assert (">cost<" in draw_comparison(result).svg) is shown


def test_without_training_the_time_in_cycles_decides() -> None:
    result = compare(
        scenarios.make_task(), scenarios.make_fleet(), ["equal", "staleness"], range(2), TIMING
    )
    assert not result.target
    assert not any(result.interval(scheme, "accuracy").known for scheme in result.schemes)
    assert result.lead is not None
    assert result.lead.figure == "training_s"


def test_without_training_but_with_extension_the_visits_per_second_decide() -> None:
    """All cycles last until the deadline, so the time in cycles does not tell schemes apart."""
    task = scenarios.make_task(extension=True, overlap=True)
    result = compare(task, scenarios.make_fleet(), ["equal", "dab"], range(3), TIMING)
    lead = result.lead
    assert lead is not None
    assert lead.figure == "visits_per_s"
    means = {scheme: result.interval(scheme, "visits_per_s").mean for scheme in result.schemes}
    assert means[lead.first] == max(means.values())
    for each in result.runs:
        assert each.visits_per_s == pytest.approx(each.visits_counted / each.run_s)


def test_without_completed_runs_no_scheme_leads() -> None:
    result = summarize(runs_of("dab", nan, nan), runs_of("equal", nan, nan))
    assert result.lead is None
    assert msgspec.json.decode(msgspec.json.encode(result.as_dict()))["lead"] is None


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


@pytest.mark.parametrize(
    ("values", "unit", "message"),
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
def test_numbers_have_as_many_digits_as_their_interval_justifies(
    values: list[float], unit: str, message: str
) -> None:
    assert format_interval(Interval.from_values(values), unit) == message


def test_a_picture_has_curves_only_where_something_is_trained() -> None:
    both = summarize(runs_of("dab", 1, 2, nan), runs_of("equal", 3, 4, 5))
    bars = compare(scenarios.make_task(), scenarios.make_fleet(), ["dab"], range(2), TIMING)
    drawn, plain = (draw_comparison(each).svg for each in (both, bars))
    assert "<polyline" in drawn
    assert "dab: 1 of 3 failed: no learner answered" in drawn
    assert "<polyline" not in plain
    assert "training time" in plain
    for svg in (drawn, plain, draw_comparison(summarize(runs_of("dab", nan))).svg):
        ET.fromstring(svg)


def interrupt_after(runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel every run after the first ones, as Ctrl-C does."""
    finished = count()

    def interrupted(*given: Any) -> Any:
        report = run(*given)
        return report if next(finished) < runs else replace(report, outcome="cancelled")

    monkeypatch.setattr(comparison, "run", interrupted)


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


def test_a_comparison_is_a_table_of_text_and_of_html(monkeypatch: pytest.MonkeyPatch) -> None:
    both = summarize(runs_of("dab", 1, 2, nan), runs_of("equal", 3, 4, 5))
    table = both.table()
    assert table.titles[0] == "scheme"
    assert [row[0] for row in table.rows] == ["dab", "equal"]
    lines = str(table).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert repr(table) == str(table)
    assert table._repr_html_().count("<tr>") == 3
    assert "<th>scheme</th>" in table._repr_html_()
    assert both.plot().svg == draw_comparison(both).svg


def test_capacity_used_and_time_outside_cycles_are_compared() -> None:
    report = report_of("equal")
    run = ComparedRun.from_report(report)
    assert (run.capacity_used, run.outside_share) == (report.capacity_used, report.outside_share)
    assert {"capacity_used", "outside_share"} <= set(FIGURES)
    assert TIME_FIGURES["outside_share"] == ("outside", "%")
    assert WORK_FIGURES["capacity_used"] == ("capacity", "%")


def test_a_comparison_says_what_capacity_was_lost_to_by_run_cycle_and_learner() -> None:
    files = scenarios.make_task(), scenarios.make_fleet()
    both = compare(*files, ["dab", "equal"], range(2), TIMING)
    for scheme in both.as_dict()["schemes"]:
        runs = scheme["runs"]
        for cause, share in scheme["capacity_lost"].items():
            assert share == pytest.approx(np.mean([run["capacity_lost"][cause] for run in runs]))
        assert sum(scheme["capacity_lost"].values()) == pytest.approx(
            1 - np.mean([run["capacity_used"] for run in runs]), abs=1e-6
        )
        assert {len(run["capacity_by_cycle"]) for run in runs} == {files[0].cycles}
        assert all(list(run["capacity_by_learner"]) == list(files[1].names) for run in runs)
