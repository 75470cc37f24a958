"""Comparison of schemes: means, paired differences, and runs left out of them."""

from dataclasses import replace
from math import nan

import msgspec
import numpy as np
import pytest

from melisma.cli.views.compare_view import lead_line
from melisma.simulation.comparison.comparison import Target
from melisma.simulation.comparison.interval import Interval
from melisma.simulation.comparison.scheme_runs import compare
from tests.simulation import scenarios
from tests.simulation.comparison.compared_runs import TIMING, runs_of, summarize


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
