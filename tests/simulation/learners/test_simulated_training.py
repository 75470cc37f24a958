from typing import Any

import numpy as np
import pytest

from melisma.cycle import commands, events
from melisma.cycle.ragged import RaggedArray
from melisma.runs.report import Report
from melisma.simulation.learners.simulated_training import train
from tests.simulation.learners.making import make_learners
from tests.simulation.scenarios import LEARNERS, make_fleet, run

DEFAULT_RULES = {"extension": True, "overlap": True}
NOISE = {"compute": 0.4, "bandwidth": 0.4, "correlation_s": 5.0}
UNEQUAL: dict[str, Any] = {"benchmark_bias": 1.0, "cold_start_s": 0.0}


@pytest.mark.parametrize(("shards", "asks"), [(20, "release"), (11, "nothing"), (4, "request")])
def test_a_simulated_learner_with_a_slow_link_requests_only_what_it_can_fetch(
    shards: int, asks: str
) -> None:
    """A shard takes about 1 s to fetch and 0.01 s to train; there is time to fetch 11."""
    slow = {"samples_per_s": 1e4, "bandwidth_bps": 64e4, "latency_s": 0.0}
    learners = make_learners(
        make_fleet([LEARNERS[0] | slow]), **DEFAULT_RULES, deadline_s=15.0, passes=1
    )
    instruction = commands.Dispatch(
        reason="",
        learners=np.arange(1),
        cycle=1,
        attempts=np.ones(1, np.int64),
        shards=RaggedArray.from_rows([np.arange(shards)]),
        passes=np.ones(1, np.int64),
        seconds_left=15.0,
        tail_s=1.5,
        predicted_s=np.array([np.nan]),
    )
    updates = train(learners, instruction, np.arange(1), np.array([shards * 100]), 0.0)
    wanted, released = int(updates.wanted[0]), int(updates.released[0])
    fits = (updates.stops_s[0] - updates.phases[0, 1]) / learners.ship_s[0]
    assert (wanted > 0, released > 0) == (asks == "request", asks == "release")
    if asks != "nothing":
        assert shards + wanted - released == pytest.approx(fits, abs=1.0)


def report_with(noise: dict[str, float] | None, **settings: Any) -> Report:
    return run(fleet=make_fleet(noise=noise), scheme="proportional", passes=1, cycles=4, **settings)


def events_of(report: Report, kind: type[events.Event]) -> list[Any]:
    return [step.event for step in report.trace if isinstance(step.event, kind)]


def costs_in(report: Report) -> list[Any]:
    return [event.costs.tolist() for event in events_of(report, events.CostsReported)]


def phases_in(report: Report) -> list[Any]:
    return [event.phases.tolist() for event in events_of(report, events.UpdatesReceived)]


def test_noise_changes_measured_costs_and_repeats_by_the_seed() -> None:
    quiet, noisy = report_with(None), report_with(NOISE)
    assert costs_in(quiet) != costs_in(noisy) == costs_in(report_with(NOISE))
    assert phases_in(quiet) != phases_in(noisy) == phases_in(report_with(NOISE))


def test_noise_of_deviation_0_changes_nothing() -> None:
    silent = UNEQUAL | {"compute": 0.0, "bandwidth": 0.0}
    assert costs_in(report_with(silent)) == costs_in(report_with(None))
    assert phases_in(report_with(silent)) == phases_in(report_with(None))


def train_costs(report: Report, learner: int) -> list[float]:
    """Return the mean of `train_s` in each report of a learner."""
    reports = [e for e in events_of(report, events.CostsReported) if learner in e.learners]
    return [float(e.costs[0, 0, e.learners == learner][0]) for e in reports]


def test_a_benchmark_measures_the_true_cost_times_the_bias() -> None:
    fair, biased = report_with(None), report_with(UNEQUAL | {"benchmark_bias": 1.25})
    for learner in range(3):
        true_s, measured_s = train_costs(fair, learner)[0], train_costs(biased, learner)
        assert measured_s[0] == pytest.approx(1.25 * true_s)
        # Cycles measure the true cost.
        assert true_s < measured_s[-1] < measured_s[0]


def setup_s(report: Report, after_s: float = 0.0) -> list[float]:
    """Return the seconds of training that each update of learner 0 has beyond its samples."""
    updates = [e for e in events_of(report, events.UpdatesReceived) if 0 in e.learners]
    return [
        round(float(e.phases[e.learners == 0][0, 4] - e.visits[e.learners == 0][0] / 200.0), 6)
        for e in updates
        if e.at_s > after_s
    ]


def test_the_first_cycle_begins_cold_and_so_does_one_after_a_crash() -> None:
    fleet = make_fleet(noise=UNEQUAL | {"cold_start_s": 1.5})
    settings: dict[str, Any] = {"scheme": "equal", "passes": 1, "cycles": 6}
    report = run(fleet=fleet, **settings)
    assert setup_s(report) == [1.5, 0.0, 0.0, 0.0, 0.0, 0.0]
    ends_s = [e.at_s for e in events_of(report, events.UpdatesReceived) if 0 in e.learners]
    crash_s = (ends_s[1] + ends_s[2]) / 2
    crashed = run(f"crash 0 at {crash_s:.3f} for 1", fleet=fleet, **settings)
    assert setup_s(crashed, crash_s)[:2] == [1.5, 0.0]


def test_the_first_update_is_in_time_over_a_slow_uplink() -> None:
    """An upload takes 10 to 50 times as long as a download; a benchmark measures a part of one."""
    slow = [each | {"uplink_bps": 1e6} for each in LEARNERS]
    report = run(fleet=make_fleet(slow), cycles=1, extension=True, overlap=True)
    (cycle,) = report.cycles
    assert (cycle.assignments.arrived_s - cycle.assignments.dispatched_s <= 10.0).all()
    assert cycle.met_deadline
