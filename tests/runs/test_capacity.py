"""Hand-computed examples and laws of the capacity used, and of the uses of time."""

from math import isnan, nan
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings

from melisma.cycle import commands, events
from melisma.cycle.ragged import RaggedArray
from melisma.runs.assignments import Assignment
from melisma.runs.capacity import LOSSES, TIME_USES
from melisma.runs.cycle_figures import Cycle
from melisma.runs.progress import RunProgress
from melisma.runs.report import Report
from melisma.runs.trace import Step
from melisma.simulation.scenario import with_random_faults
from melisma.testing import make_task
from tests.lanes import cases
from tests.runs.test_progress import TRACES
from tests.simulation import scenarios as simulated

DEADLINE_S = 10.0


class TraceByHand:
    """Writes a trace of shards with 10 samples, a deadline of 10 s and one pass."""

    def __init__(self, learners: int, **task: Any) -> None:
        self.learners, self.steps = learners, list[Step]()
        self.add(
            events.TaskSubmitted(
                at_s=0.0,
                run="r",
                task=make_task(passes=1, **task),
                learner_count=learners,
                shard_samples=np.full(20, 10),
                names=tuple(f"device-{k}" for k in range(learners)),
            )
        )

    def add(self, event: Any, *issued: Any) -> None:
        self.steps.append(Step(event, list(issued)))

    def dispatch(self, at_s: float, shards: dict[int, list[int]], cycle: int = 1) -> None:
        began_s = (
            self.report.cycles[cycle - 1].began_s if len(self.report.cycles) >= cycle else at_s
        )
        learners = np.array(list(shards))
        command = commands.Dispatch(
            reason="scheme dab",
            learners=learners,
            cycle=cycle,
            attempts=np.ones(learners.size, np.int64),
            shards=RaggedArray.from_rows([np.array(row) for row in shards.values()]),
            passes=np.ones(learners.size, np.int64),
            seconds_left=began_s + DEADLINE_S - at_s,
            tail_s=1.0,
            predicted_s=np.full(learners.size, nan),
        )
        self.add(events.TimeReached(at_s=at_s), command)

    def extend(
        self, event: Any, learner: int, attempt: int, shards: list[int], handed_on: list[int]
    ) -> None:
        command = commands.Extend(
            reason="done before the deadline",
            learners=np.array([learner]),
            cycle=1,
            attempts=np.array([attempt]),
            shards=RaggedArray.from_rows([np.array(shards)]),
            passes=np.array([1]),
            handed_on=np.array(handed_on, np.int64),
        )
        self.add(event, command)

    def update(
        self,
        at_s: float,
        learner: int,
        visits: int,
        phases: list[float],
        *,
        cycle: int = 1,
        attempt: int = 1,
        refused: str = "",
    ) -> None:
        """Receive an update; `phases` are seconds in the order of `PHASES`."""
        event = events.UpdatesReceived(
            at_s=at_s,
            learners=np.array([learner]),
            cycle=cycle,
            attempts=np.array([attempt]),
            visits=np.array([visits]),
            shipped=np.array([0]),
            loss=np.array([0.5]),
            phases=np.array([phases]),
            refused=refused,
        )
        self.add(event)

    def close(
        self,
        at_s: float,
        weights: dict[int, float],
        cycle: int = 1,
        late: commands.LateUpdates = commands.NO_LATE_UPDATES,
        attempt: int = 1,
    ) -> None:
        command = commands.Aggregate(
            reason="the deadline has passed",
            cycle=cycle,
            learners=np.array(list(weights), np.int64),
            attempts=np.full(len(weights), attempt),
            weights=np.array(list(weights.values())),
            visits=np.ones(len(weights), np.int64),
            late=late,
        )
        self.add(events.TimeReached(at_s=at_s), command)

    @property
    def report(self) -> Report:
        return Report.from_trace(self.steps)

    @property
    def cycle(self) -> Cycle:
        return self.report.cycles[0]


def late_update(learner: int, cycle: int, weight: float) -> commands.LateUpdates:
    return commands.LateUpdates(
        np.array([learner]), np.array([cycle]), np.array([1]), np.array([weight]), np.array([1])
    )


def uses(cycle: Cycle, row: int = 0) -> dict[str, float]:
    """Return the seconds of an assignment by use, without zeros."""
    seconds = cycle.time_use_s[row].tolist()
    return {use: round(s, 9) for use, s in zip(TIME_USES, seconds, strict=True) if abs(s) > 1e-9}


def test_capacity_used_is_visits_over_what_the_rate_allows_by_the_deadline() -> None:
    trace = TraceByHand(1)
    trace.dispatch(0.0, {0: [0, 1, 2, 3]})
    # 40 visits in 5 s are 8 a second; with 2 s of fixed phases 8 s were left for 64 visits.
    trace.update(8.0, 0, 40, [0.0, 0.5, 0.75, 0.25, 5.0, 1.5])
    trace.close(8.5, {0: 40.0})
    (row,) = trace.cycle.assignments
    assert row.allowed_visits == pytest.approx(64)
    assert row.capacity_used == trace.cycle.capacity_used == pytest.approx(40 / 64)
    assert trace.report.capacity_used == pytest.approx(40 / 64)
    assert trace.report.learners[0].capacity_used == pytest.approx(40 / 64)


def test_a_learner_that_joined_late_is_measured_from_its_own_dispatch() -> None:
    trace = TraceByHand(2, extension=True)
    trace.dispatch(0.0, {0: [0, 1, 2]})
    trace.dispatch(6.0, {1: [3]})
    trace.update(9.5, 1, 30, [0.0, 0.5, 0.0, 0.0, 2.5, 0.5])
    trace.update(10.0, 0, 30, [0.0, 0.0, 0.0, 0.0, 10.0, 0.0])
    trace.close(10.0, {0: 30.0, 1: 10.0})
    assert trace.cycle.deadline_s == DEADLINE_S
    assert trace.cycle.assignments.dispatched_s.tolist() == [0.0, 6.0]
    # 12 visits a second for 4 - 1 seconds
    assert trace.cycle.assignments.allowed_visits.tolist() == pytest.approx([30.0, 36.0])
    assert trace.cycle.capacity_used == pytest.approx(60 / 66)
    assert uses(trace.cycle, 1) == {"training": 2.5, "fixed": 1.0, "halted early": 0.5}


def test_a_learner_without_an_update_is_measured_by_its_latest_rate() -> None:
    trace = TraceByHand(2)
    trace.dispatch(0.0, {0: [0], 1: [1]})
    trace.update(4.0, 0, 20, [0.0, 1.0, 0.0, 0.0, 2.0, 1.0])
    trace.update(10.0, 1, 10, [0.0, 0.0, 0.0, 0.0, 10.0, 0.0])
    trace.close(10.0, {0: 20.0, 1: 10.0})
    trace.dispatch(20.0, {0: [0], 1: [1]}, cycle=2)
    trace.add(events.LearnersLeft(at_s=21.0, learners=np.array([0]), reason="connection lost"))
    trace.update(30.0, 1, 10, [0.0, 0.0, 0.0, 0.0, 10.0, 0.0], cycle=2)
    trace.close(30.0, {1: 10.0}, cycle=2)
    first, second = trace.report.cycles
    assert first.assignments.allowed_visits.tolist() == pytest.approx([80, 10])
    assert second.assignments.allowed_visits.tolist() == pytest.approx([80, 10])
    assert second.capacity_used == pytest.approx(10 / 90)
    assert uses(second, 0) == {"gone": 10.0}
    assert trace.report.learners.capacity_used.tolist() == pytest.approx([20 / 160, 1.0])
    assert trace.report.capacity_used == pytest.approx(40 / 180)


def test_an_update_without_visits_keeps_the_rate_and_shows_the_fixed_phases() -> None:
    trace = TraceByHand(1)
    trace.dispatch(0.0, {0: [0]})
    trace.update(10.0, 0, 10, [0.0, 0.0, 0.0, 0.0, 10.0, 0.0])
    trace.close(10.0, {0: 10.0})
    trace.dispatch(20.0, {0: [0]}, cycle=2)
    trace.update(30.0, 0, 0, [0.0, 4.0, 5.0, 0.0, 0.0, 1.0], cycle=2)
    trace.close(30.0, {}, cycle=2)
    second = trace.report.cycles[1]
    assert second.assignments[0].allowed_visits == pytest.approx(5)
    assert second.capacity_used == 0
    assert uses(second) == {"fixed": 5.0, "fetching": 5.0}


def test_capacity_is_unknown_before_anything_is_known_and_at_most_one() -> None:
    trace = TraceByHand(2)
    trace.dispatch(0.0, {0: [0], 1: [1, 2]})
    assert isnan(trace.cycle.capacity_used)
    trace.update(14.0, 1, 20, [0.0, 0.0, 0.0, 0.0, 14.0, 0.0])
    trace.close(15.0, {1: 20.0})
    # Learner 0 never answered and has no rate; learner 1 trained past the deadline.
    assert isnan(trace.cycle.assignments[0].capacity_used)
    assert trace.cycle.assignments[1].capacity_used == trace.cycle.capacity_used == 1
    assert uses(trace.cycle, 0) == {"late": 10.0}
    assert uses(trace.cycle, 1) == {"training": 10.0}


@pytest.mark.parametrize(
    ("extension", "visits", "use"),
    [
        (False, 40, "waiting for others"),  # it did all that it was given
        (False, 30, "halted early"),
        (True, 40, "halted early"),  # it could have gone on
    ],
)
def test_time_before_the_deadline_after_an_update(extension: bool, visits: int, use: str) -> None:
    trace = TraceByHand(1, extension=extension)
    trace.dispatch(0.0, {0: [0, 1, 2, 3]})
    trace.update(8.0, 0, visits, [0.5, 1.0, 0.75, 0.25, 4.0, 1.0])
    trace.close(12.0, {0: 40.0})
    work = {"training": 4.0, "fixed": 2.0, "fetching": 0.75, "waiting for work": 1.25}
    assert uses(trace.cycle) == work | {use: 2.0}
    shares = trace.cycle.time_use
    assert shares["training"] == pytest.approx(4 / 10)
    assert sum(shares.values()) == pytest.approx(1)
    # Of 8 s without fixed phases 4 were used, and the losses are the other 4.
    assert trace.cycle.capacity_used == pytest.approx(0.5)
    lost = {"fetching": 0.75 / 8, "waiting for work": 1.25 / 8, use: 2 / 8}
    assert trace.cycle.capacity_lost == pytest.approx(dict.fromkeys(LOSSES, 0.0) | lost)


def test_a_cycle_that_closes_early_leaves_time_that_no_learner_waits_in() -> None:
    trace = TraceByHand(2)
    trace.dispatch(0.0, {0: [0], 1: [1]})
    trace.update(5.0, 0, 10, [0.0, 0.0, 0.0, 0.0, 5.0, 0.0])
    trace.update(8.0, 1, 10, [0.0, 0.0, 0.0, 0.0, 8.0, 0.0])
    trace.close(8.0, {0: 10.0, 1: 10.0})
    assert uses(trace.cycle, 0) == {"training": 5.0, "waiting for others": 3.0, "closed early": 2.0}
    assert uses(trace.cycle, 1) == {"training": 8.0, "closed early": 2.0}


def test_work_that_does_not_count_is_lost_by_its_cause() -> None:
    trace = TraceByHand(4, late="drop")
    trace.dispatch(0.0, {learner: [learner] for learner in range(4)})
    for learner in range(4):
        trace.update(10.0, learner, 10, [0.0, 0.0, 0.0, 0.0, 9.0, 1.0])
    trace.close(10.0, dict.fromkeys(range(4), 10.0))
    trace.dispatch(20.0, {learner: [learner] for learner in range(4)}, cycle=2)
    trace.add(events.LearnersLeft(at_s=24.0, learners=np.array([0]), reason="killed"))
    bad = "it holds numbers that are not finite"
    trace.update(29.0, 1, 10, [0.0, 0.0, 0.0, 0.0, 8.0, 1.0], cycle=2, refused=bad)
    trace.update(30.0, 2, 10, [0.0, 0.0, 0.0, 0.0, 9.0, 1.0], cycle=2)
    # The upload of learner 3 is slow: it is late, but not gone.
    trace.close(31.0, {2: 10.0}, cycle=2)
    second = trace.report.cycles[1]
    assert [uses(second, row) for row in range(4)] == [
        {"gone": 10.0},
        {"refused": 10.0},
        {"training": 9.0, "fixed": 1.0},
        {"late": 10.0},
    ]
    assert set(second.capacity_lost) == set(LOSSES)
    assert second.capacity_lost["late"] == pytest.approx(10 / (10 + 11.25 + 10 + 10))
    assert second.capacity_used + sum(second.capacity_lost.values()) == pytest.approx(1)


def test_reported_phases_that_leave_no_time_to_lose_still_sum_to_the_capacity() -> None:
    trace = TraceByHand(1)
    trace.dispatch(0.0, {0: [0, 1]})
    trace.update(10.0, 0, 20, [0.0, 0.0, 0.0, 0.0, 5.0, 0.0])
    trace.close(10.0, {0: 20.0})
    trace.dispatch(20.0, {0: [0]}, cycle=2)
    # No visits, but phases of more time than there was.
    trace.update(30.0, 0, 0, [0.0, 0.0, 0.0, 0.0, 50.0, 0.0], cycle=2)
    trace.close(30.0, {}, cycle=2)
    second = trace.report.cycles[1]
    assert second.capacity_used == 0
    assert second.capacity_lost["waiting for work"] == pytest.approx(1)


def test_learners_without_an_assignment_have_a_reason() -> None:
    trace = TraceByHand(5, extension=True)
    for learner in range(4):
        name = (f"device-{learner}",)
        joined = events.LearnersJoined(
            at_s=0.0, learners=np.array([learner]), names=name, discloses=("costs",)
        )
        trace.add(joined)
    benchmark = commands.Benchmark(reason="costs", learners=np.array([0, 1, 2, 3]), seconds=1.0)
    trace.add(events.TimeReached(at_s=0.5), benchmark)
    costs = np.ones((3, 3, 2))
    trace.add(events.CostsReported(at_s=1.0, learners=np.array([0, 2]), costs=costs))
    trace.dispatch(1.0, {0: [0]})
    again = commands.Benchmark(reason="left out", learners=np.array([2]), seconds=1.0)
    trace.add(events.TimeReached(at_s=1.0), again)
    assert trace.cycle.unassigned.by_name() == {}
    trace.add(events.LearnersLeft(at_s=2.0, learners=np.array([3]), reason="crashed"))
    trace.update(9.0, 0, 10, [0.0, 0.0, 0.0, 0.0, 8.0, 0.0])
    trace.close(9.0, {0: 10.0})
    assert trace.cycle.unassigned.by_name() == {
        "device-1": "not ready",
        "device-2": "without work",
        "device-3": "absent",
        "device-4": "absent",
    }
    totals = trace.report.learners
    assert (totals[1].not_ready, totals[2].without_work, totals[4].absent) == (1, 1, 1)
    assert totals[0].not_ready == totals[0].without_work == totals[0].absent == 0


def test_a_learner_that_does_not_answer_for_a_bound_is_not_ready() -> None:
    trace = TraceByHand(2)
    names = ("device-0", "device-1")
    joined = events.LearnersJoined(
        at_s=0.0, learners=np.arange(2), names=names, discloses=("bounds",) * 2
    )
    trace.add(joined)
    for cycle, answers in ((1, [0, 1]), (2, [0])):
        at_s = 20.0 * cycle
        ask = commands.AskBound(
            reason="", learners=np.arange(2), cycle=cycle, deadline_s=10.0, held=np.zeros(2, int)
        )
        trace.add(events.TimeReached(at_s=at_s), ask)
        bounds = {"learners": np.array(answers), "shards": np.ones(len(answers), int)}
        trace.add(events.BoundsReported(at_s=at_s, cycle=cycle, deadline_s=10.0, **bounds))
        trace.dispatch(at_s, {learner: [learner] for learner in answers}, cycle=cycle)
        trace.close(at_s + 10, {}, cycle=cycle)
    assert [cycle.unassigned.by_name() for cycle in trace.report.cycles] == [
        {},
        {"device-1": "not ready"},
    ]


def test_phases_of_a_carried_update_are_scaled_to_the_time_until_its_cycle_closed() -> None:
    trace = TraceByHand(2, late="carry")
    trace.dispatch(0.0, {0: [0], 1: [1]})
    trace.update(10.0, 0, 10, [0.0, 0.0, 0.0, 0.0, 10.0, 0.0])
    trace.close(10.0, {0: 10.0})
    assert [row.status for row in trace.cycle.assignments] == ["counted", "late"]
    assert trace.cycle.assignments[1].reason == "the deadline has passed"
    trace.dispatch(12.0, {0: [0]}, cycle=2)
    trace.update(20.0, 1, 10, [0.0, 4.0, 0.0, 0.0, 16.0, 0.0])
    assert trace.cycle.assignments[1].status == "late"
    assert trace.cycle.visits_counted == 10
    late = late_update(learner=1, cycle=1, weight=5.0)
    trace.update(22.0, 0, 10, [0.0, 0.0, 0.0, 0.0, 10.0, 0.0], cycle=2)
    trace.close(22.0, {0: 10.0}, cycle=2, late=late)
    first, second = trace.report.cycles
    carried = first.assignments[1]
    assert (carried.status, carried.weight, carried.counted_visits) == ("carried", 5.0, 10)
    assert carried.reason == "joined the average of cycle 2"
    assert carried.ended_s == first.closed_s
    assert uses(first, 1) == {"training": 8.0, "fixed": 2.0}
    assert (first.visits_counted, second.visits_counted) == (20, 10)
    assert (first.fulfilment, first.cycle_s) == (1.0, 10.0)
    assert trace.report.learners[1].carried == 1
    # 10 visits in 16 s; 10 s with 4 s of fixed phases allow 3.75.
    assert carried.allowed_visits == pytest.approx(3.75)
    assert carried.capacity_used == 1


def test_a_cycle_with_late_updates_only_is_aggregated() -> None:
    trace = TraceByHand(1, late="carry")
    trace.dispatch(0.0, {0: [0]})
    trace.close(11.0, {})
    assert trace.cycle.ending == "empty"
    trace.update(12.0, 0, 10, [0.0, 0.0, 0.0, 0.0, 12.0, 0.0])
    trace.dispatch(12.5, {0: [0]}, cycle=2)
    late = late_update(learner=0, cycle=1, weight=5.0)
    trace.close(23.5, {}, cycle=2, late=late)
    second = trace.report.cycles[1]
    assert (second.ending, second.cycle_s) == ("aggregated", 11.0)
    assert trace.cycle.assignments[0].status == "carried"
    finish = commands.Finish(reason="Ctrl-C", outcome="cancelled")
    trace.add(events.TaskCancelled(at_s=23.6, reason="Ctrl-C"), finish)
    # It was never aggregated.
    assert (trace.cycle.assignments[0].status, trace.cycle.assignments[0].weight) == ("dropped", 0)
    assert trace.report.cycles[1].ending == "interrupted"


def test_extensions_add_to_the_plan_and_unused_ones_leave_it() -> None:
    trace = TraceByHand(1, extension=True)
    trace.dispatch(0.0, {0: [0, 1]})
    request = events.ShardsRequested(
        at_s=1.0, learners=np.array([0]), cycle=1, shards=np.array([5])
    )
    trace.extend(request, 0, 2, [2, 3], [])
    trace.extend(events.TimeReached(at_s=2.0), 0, 3, [4, 5, 6], [])
    (row,) = trace.cycle.assignments
    assert (row.attempt, row.extensions, row.shards, row.samples) == (3, 2, 7, 70)
    trace.update(9.0, 0, 40, [0.0, 0.0, 0.0, 0.0, 9.0, 0.0], attempt=2)
    trace.update(9.5, 0, 70, [0.0, 0.0, 0.0, 0.0, 9.0, 0.0], attempt=3)
    trace.close(10.0, {0: 40.0}, attempt=2)
    (row,) = trace.cycle.assignments
    assert (row.attempt, row.extensions, row.shards, row.planned_visits) == (2, 1, 4, 40)
    assert (row.status, row.counted_visits, row.weight) == ("counted", 40, 40.0)
    assert trace.cycle.fulfilment == 1


def test_released_shards_leave_the_plan_once() -> None:
    trace = TraceByHand(2, extension=True)
    trace.dispatch(0.0, {0: [0, 1, 2, 3], 1: [4]})
    for shards in ([2, 3, 9], [3]):
        released = RaggedArray.from_rows([np.array(shards)])
        trace.add(events.ShardsReleased(at_s=1.0, learners=np.array([0]), cycle=1, shards=released))
    trace.extend(events.TimeReached(at_s=2.0), 1, 2, [2], [2])
    assert [row.shards for row in trace.cycle.assignments] == [2, 2]
    assert [row.planned_visits for row in trace.cycle.assignments] == [20, 20]
    assert trace.cycle.handed_on == 1


def test_shards_handed_on_from_a_learner_that_left_are_planned_once() -> None:
    trace = TraceByHand(2, extension=True)
    trace.dispatch(0.0, {0: [0, 1, 2], 1: [3]})
    left = events.LearnersLeft(at_s=2.0, learners=np.array([0]), reason="connection lost")
    trace.extend(left, 1, 2, [0, 1, 9], [0, 1])
    assert [row.planned_visits for row in trace.cycle.assignments] == [10, 40]
    assert trace.cycle.handed_on == 2


def test_seconds_outside_cycles_are_a_share_of_the_run() -> None:
    trace = TraceByHand(1)
    trace.dispatch(3.0, {0: [0]})
    trace.update(10.0, 0, 10, [0.0, 0.0, 0.0, 0.0, 7.0, 0.0])
    trace.close(11.0, {0: 10.0})
    trace.add(events.Aggregated(at_s=12.0, cycle=1, seconds=1.0))
    finish = commands.Finish(reason="cycle 1 was the last", outcome="finished")
    evaluated = events.Evaluated(at_s=20.0, cycle=1, loss=1.0, accuracy=0.5, seconds=8.0)
    trace.add(evaluated, finish)
    assert trace.report.outside_s == pytest.approx(12)
    assert trace.report.outside_share == pytest.approx(0.6)


@settings(max_examples=cases(60), deadline=None)
@given(TRACES)
def test_uses_of_time_sum_to_the_time_from_dispatch_to_the_deadline(trace: list[Step]) -> None:
    for cycle in Report.from_trace(trace).cycles:
        seconds = cycle.time_use_s
        assert (seconds >= -1e-9).all()
        deadline_at_s = cycle.began_s + cycle.deadline_s
        expected_s = np.maximum(deadline_at_s - cycle.assignments.dispatched_s, 0.0)
        np.testing.assert_allclose(seconds.sum(axis=1), expected_s, atol=1e-9)
        if len(cycle.assignments) and expected_s.sum() > 0:
            assert sum(cycle.time_use.values()) == pytest.approx(1)


def assert_capacity_adds_up(report: Report) -> None:
    """Used and lost capacity sum to 1 for the run, each cycle and each learner, where known."""
    parts: list[Report | Cycle] = [report, *report.ended_cycles]
    for part in parts:
        assert all(share >= -1e-9 for share in part.capacity_lost.values() if not isnan(share))
        if not isnan(part.capacity_used):
            assert part.capacity_used + sum(part.capacity_lost.values()) == pytest.approx(1)
    for total in report.learners:
        if not isnan(total.capacity_used):
            assert total.capacity_used + sum(total.capacity_lost) == pytest.approx(1)


@settings(max_examples=cases(60), deadline=None)
@given(TRACES)
def test_capacity_used_and_lost_sum_to_1_in_random_traces(trace: list[Step]) -> None:
    assert_capacity_adds_up(Report.from_trace(trace))


SLEEPY = [
    {**learner, "availability": {"awake_s": 12.0, "asleep_s": 6.0}}
    for learner in simulated.LEARNERS
]
JOINING = [*simulated.LEARNERS[1:], {**simulated.LEARNERS[0], "availability": {"joins_s": 14.0}}]
NOISE = {"compute": 0.3, "bandwidth": 0.5, "correlation_s": 2.0}
SIMULATIONS: dict[str, dict[str, Any]] = {
    "the papers' rules": {},
    "extension": {"extension": True, "late": "carry", "overlap": True},
    "extension, costs": {"extension": True, "scheme": "synchronous", "passes": None},
    "late updates": {"late": "carry", "quorum": 0.5},
    "federated": {"mode": "federated", "shard_samples": 40, "extension": True, "late": "carry"},
}


@pytest.mark.parametrize("name", SIMULATIONS)
@pytest.mark.parametrize("learners", [simulated.LEARNERS, SLEEPY, JOINING])
@pytest.mark.parametrize("seed", range(cases(12)))
def test_capacity_used_and_lost_sum_to_1_in_simulated_runs(
    name: str, learners: list[dict[str, Any]], seed: int
) -> None:
    fleet = simulated.make_fleet(learners, seed=seed, noise=NOISE)
    scenario = simulated.make_scenario(fleet=fleet, seed=seed, cycles=5, **SIMULATIONS[name])
    if seed % 2:
        scenario = with_random_faults(scenario, seed)
    report = Report.from_trace(simulated.run_steps(scenario))
    assert_capacity_adds_up(report)
    for cycle in report.ended_cycles:
        assigned = set(cycle.assignments.learner.tolist())
        idle = set(cycle.unassigned.learner.tolist())
        assert assigned | idle == set(range(len(learners)))
        assert not assigned & idle


def test_simulated_runs_lose_capacity_by_many_causes() -> None:
    causes = set()
    for seed in range(8):
        for name, learners in (("extension", SLEEPY), ("late updates", JOINING)):
            fleet = simulated.make_fleet(learners, seed=seed, noise=NOISE)
            scenario = simulated.make_scenario(fleet=fleet, cycles=5, **SIMULATIONS[name])
            steps = simulated.run_steps(with_random_faults(scenario, seed))
            report = Report.from_trace(steps)
            causes |= {cause for cause, share in report.capacity_lost.items() if share > 0.01}
    assert causes >= {"fetching", "waiting for work", "late", "gone"}


@settings(max_examples=cases(60), deadline=None)
@given(TRACES)
def test_the_done_visits_of_learners_sum_to_the_fulfilment(trace: list[Step]) -> None:
    report = Report.from_trace(trace)
    if any(cycle.ending in ("running", "interrupted") for cycle in report.cycles):
        return
    totals = report.learners
    if planned := totals.planned_visits.sum():
        assert totals.done_visits.sum() / planned == pytest.approx(report.fulfilment)
    times_s = [cycle.closed_s - cycle.began_s for cycle in report.cycles]
    assert report.outside_s == pytest.approx(report.ended_s - report.began_s - sum(times_s))


@settings(max_examples=cases(60), deadline=None)
@given(TRACES)
def test_capacity_of_cycles_learners_and_run_are_of_the_same_visits(trace: list[Step]) -> None:
    report = Report.from_trace(trace)
    rows = [row for cycle in report.cycles for row in cycle.assignments if row.allowed_visits > 0]

    def share(chosen: list[Assignment]) -> float:
        allowed = sum(row.allowed_visits for row in chosen)
        return sum(row.capacity_used * row.allowed_visits for row in chosen) / allowed

    for row in rows:
        assert 0 <= row.capacity_used <= 1
    parts = [(report.capacity_used, rows)]
    parts += [(c.capacity_used, [r for r in rows if r.cycle == c.number]) for c in report.cycles]
    for learner, total in enumerate(report.learners):
        parts.append((total.capacity_used, [row for row in rows if row.learner == learner]))
    for actual, chosen in parts:
        np.testing.assert_allclose(actual, share(chosen) if chosen else nan)


def test_a_running_cycle_has_no_uses_of_time() -> None:
    trace = TraceByHand(1)
    trace.dispatch(0.0, {0: [0]})
    progress = RunProgress()
    for step in trace.steps:
        progress.apply(step)
    assert progress.current_cycle is not None
    assert not progress.current_cycle.time_use_s.any()
    assert all(isnan(share) for share in progress.current_cycle.time_use.values())


def test_a_later_dispatch_of_a_cycle_adds_to_it() -> None:
    trace = TraceByHand(3, extension=True)
    trace.dispatch(0.0, {0: [0]})
    benchmark = commands.Benchmark(reason="it comes late", learners=np.array([1, 2]), seconds=1.0)
    trace.add(events.TimeReached(at_s=1.0), benchmark)
    first = trace.steps[1].commands[0]
    assert isinstance(first, commands.Dispatch)
    trace.steps[1] = Step(
        trace.steps[1].event, [msgspec.structs.replace(first, no_pass=np.array([2]))]
    )
    trace.dispatch(4.0, {1: [1]})
    progress = RunProgress()
    for step in trace.steps:
        progress.apply(step)
    assert progress.collecting.numbers.tolist() == [2]
    assert (trace.cycle.no_pass, trace.cycle.began_s, trace.cycle.deadline_s) == (1, 0.0, 10.0)
    assert len(trace.cycle.assignments) == 2
