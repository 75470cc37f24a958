"""Simulated runs that have to end by an instant choose length and number of their cycles."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from melisma.cycle.schedule import MIN_AVERAGES
from melisma.fleet.run_time import RunTime
from melisma.fleet.task import MAX_FIRST_CYCLE_S
from melisma.runs.report import Report
from melisma.simulation.compute.compute import TimingOnly
from melisma.simulation.driver import Driver
from melisma.simulation.invariants.invariants import run_checked
from tests.lanes import cases
from tests.simulation.scenarios import LEARNERS, make_fleet, make_scenario

DEFAULT_RULES: dict[str, Any] = {"extension": True, "overlap": True, "quorum": 0.8, "late": "carry"}
SLOW = {"name": "snail", "samples_per_s": 20.0, "bandwidth_bps": 20e6}


def run(
    total_s: float,
    faults: str = "",
    learners: list[dict[str, Any]] | None = None,
    cycles: int | None = None,
    **settings: Any,
) -> Report:
    """Run a scenario, check the invariants after each step, and return its report."""
    scenario = make_scenario(faults, make_fleet(learners), **(DEFAULT_RULES | settings))
    task = replace(RunTime(total_s=total_s).apply(scenario.task), cycles=cycles)
    scenario = dataclasses.replace(scenario, task=task)
    return Report.from_trace(run_checked(lambda watch: Driver(scenario, TimingOnly(), watch).run()))


@pytest.mark.parametrize("scheme", ["dab", "staleness", "synchronous", "proportional", "equal"])
@pytest.mark.parametrize("total_s", [20.0, pytest.param(600.0, marks=pytest.mark.slow)])
def test_a_run_ends_in_time_and_uses_it(scheme: str, total_s: float) -> None:
    passes = {"passes": 2} if scheme == "dab" else {"passes": None}
    report = run(total_s, scheme=scheme, **passes)
    assert (report.outcome, report.reason) == ("finished", "no time is left for another cycle")
    assert 0.9 * total_s <= report.ended_s <= total_s
    assert report.capacity_used > 0.85
    assert f"{total_s - report.ended_s:.2g} s before its time was up" in report.deadline_summary


def test_fixed_costs_are_at_most_a_tenth_of_a_cycle() -> None:
    report = run(600.0)
    assert len(report.cycles) >= MIN_AVERAGES
    later = report.cycles[3:-1]
    fixed = [sum(c.time_use.get(name, 0.0) for name in ("fixed", "fetching")) for c in later]
    assert max(fixed) <= 0.11


def test_cycles_grow_until_the_slowest_learner_can_train_a_shard() -> None:
    report = run(300.0, learners=[*LEARNERS, SLOW])
    assert report.cycles[0].deadline_s < 100 * 2 / 20
    last = report.cycles[-2]
    assert report.names.index("snail") in last.assignments.learner
    assert report.ended_s <= 300.0


def test_a_total_time_in_which_no_shard_can_be_trained_is_an_error() -> None:
    report = run(8.0, learners=[SLOW])
    assert report.outcome == "failed"
    assert report.reason == (
        "total_s = 8 is too short: no learner can train a shard in the time that is left; use a "
        "longer one, or smaller shard_samples"
    )


@pytest.mark.parametrize("seed", range(cases(24)))
def test_a_run_with_faults_ends_in_time(seed: int) -> None:
    faults = (
        "crash 1 at 9 for 5",
        "slow 2 at 10 for 20 by 4; crash 0 at 30",
        "crash 0 at 5; crash 1 at 6",
    )
    report = run(60.0, faults[seed % len(faults)], seed=seed)
    assert report.outcome == "finished"
    assert report.ended_s <= 60.0


def test_the_last_cycle_closes_without_the_quorum_if_the_run_has_to_end() -> None:
    report = run(45.0, "partition 0,1,2 at 14 for 13; partition 0,1 at 40 for 9")
    assert report.ended_s <= 45.0
    assert 0 < report.cycles[-1].counts["counted"] < 3


def test_learners_that_are_all_gone_do_not_delay_the_end() -> None:
    report = run(60.0, "crash 0 at 20; crash 1 at 20; crash 2 at 20")
    assert report.ended_s <= 60.0
    assert report.cycles


def test_cycles_limit_a_run_with_a_total_time() -> None:
    report = run(600.0, cycles=4)
    assert report.reason == "cycle 4 was the last"


def test_the_first_cycle_of_a_long_run_is_short() -> None:
    assert run(36000.0, sizes={"samples": 400}).cycles[0].deadline_s == MAX_FIRST_CYCLE_S


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = run(60.0, seed=3), run(60.0, seed=3)
    assert [c.deadline_s for c in first.cycles] == [c.deadline_s for c in second.cycles]
    assert first.visits_counted == second.visits_counted
