import tracemalloc
from dataclasses import fields
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.cycle import commands, events
from melisma.cycle.ragged import RaggedArray
from melisma.fleet.task import TaskSizes
from melisma.learning import metrics
from melisma.runs.assignments import Assignment, Assignments
from melisma.runs.cycle_figures import Cycle
from melisma.runs.progress import GIVEN_UP, RunProgress
from melisma.runs.report import Report
from melisma.runs.trace import Step
from melisma.testing import ScriptedMachine, make_task
from tests.lanes import cases
from tests.runs.naive_progress import RATES, NaiveProgress, random_trace, split_events
from tests.runs.test_report import SCENARIOS

TRACES = st.builds(random_trace, st.integers(0, 2**32 - 1), st.booleans())


def assert_same_fields(actual: Any, expected: Any) -> None:
    for column in fields(expected):
        np.testing.assert_equal(
            getattr(actual, column.name), getattr(expected, column.name), column.name
        )


@settings(max_examples=cases(60), deadline=None)
@given(TRACES)
def test_columns_agree_with_one_record_per_assignment(trace: list[Step]) -> None:
    naive, progress = NaiveProgress(), RunProgress()
    for step in trace:
        naive.apply(step)
        progress.apply(step)
    assignments = [row for cycle in progress.report().cycles for row in cycle.assignments]
    expected = [naive.work[key] for key in sorted(naive.work)]
    assert len(assignments) == len(expected)
    handed_on = {cycle.number: cycle.handed_on for cycle in progress.report().cycles}
    assert handed_on == dict.fromkeys(handed_on, 0) | naive.handed_on
    for actual, expected_one in zip(assignments, expected, strict=True):
        assert_same_fields(actual, expected_one)


@settings(max_examples=cases(60), deadline=None)
@given(TRACES)
def test_figures_agree_with_single_assignments(trace: list[Step]) -> None:
    for cycle in Report.from_trace(trace).cycles:
        work = list(cycle.assignments)
        done, planned = (
            [assignment.counted_visits for assignment in work],
            [assignment.planned_visits for assignment in work],
        )
        assert cycle.visits_counted == sum(done)
        ended_work = [assignment for assignment in work if assignment.status != "training"]
        assert cycle.visits_dropped == sum(
            max(assignment.planned_visits - assignment.counted_visits, 0)
            for assignment in ended_work
        )
        np.testing.assert_allclose(cycle.fulfilment, metrics.fulfilment(done, planned))
        updates = [
            nan
            if assignment.status == "training"
            else assignment.counted_visits / max(assignment.samples, 1)
            for assignment in work
        ]
        assert cycle.average_staleness == pytest.approx(metrics.average_staleness(updates))
        cycle_s = cycle.closed_s - cycle.began_s if cycle.ending == "aggregated" else nan
        np.testing.assert_allclose(cycle.cycle_s, cycle_s)
        busy_s = np.minimum([assignment.busy_s for assignment in work], cycle.cycle_s)
        busy = metrics.occupancy(busy_s, cycle.cycle_s)
        np.testing.assert_allclose(cycle.occupancy, metrics.mean_known(busy))
        assert cycle.counts == {
            assignment.status: [w.status for w in work].count(assignment.status)
            for assignment in work
        }


@settings(max_examples=cases(40), deadline=None)
@given(TRACES)
def test_bytes_joules_and_cost_are_sums_over_learners(trace: list[Step]) -> None:
    model_bytes, shard_bytes = make_task().model_bytes, make_task().shard_bytes
    price, sample_j, byte_j = RATES
    for cycle in Report.from_trace(trace).cycles:
        transferred = {
            (assignment.learner, assignment.attempt): model_bytes
            * (1 + (assignment.arrived_s >= 0))
            + shard_bytes * assignment.shipped
            for assignment in cycle.assignments
        }
        assert cycle.bytes == pytest.approx(sum(transferred.values()))
        assert cycle.cost == pytest.approx(
            sum(price[assignment.learner] * assignment.shards for assignment in cycle.assignments)
        )
        assert cycle.joules == pytest.approx(
            sum(
                assignment.visits * sample_j[assignment.learner]
                + transferred[assignment.learner, assignment.attempt] * byte_j[assignment.learner]
                for assignment in cycle.assignments
            )
        )


@settings(max_examples=cases(60), deadline=None)
@given(TRACES)
def test_events_of_many_learners_give_the_same_report_as_events_of_one(trace: list[Step]) -> None:
    assert Report.from_trace(split_events(trace)).as_dict() == Report.from_trace(trace).as_dict()


@settings(max_examples=cases(20), deadline=None)
@given(TRACES)
def test_totals_of_learners_are_sums_over_their_assignments(trace: list[Step]) -> None:
    report = Report.from_trace(trace)
    work = [assignment for cycle in report.cycles for assignment in cycle.assignments]
    for learner, total in enumerate(report.learners):
        learner_work = [assignment for assignment in work if assignment.learner == learner]
        assert total.cycles == len({assignment.cycle for assignment in learner_work})
        assert total.shards == sum(assignment.shards for assignment in learner_work)
        assert (total.counted_visits, total.planned_visits) == (
            sum(assignment.counted_visits for assignment in learner_work),
            sum(assignment.planned_visits for assignment in learner_work),
        )
        phases = np.array([assignment.phases for assignment in learner_work]).reshape(
            -1, len(events.PHASES)
        )
        assert total.phases == pytest.approx(np.nansum(phases, axis=0))
        for status in ("carried", "late", "dropped", "refused", "left"):
            assert getattr(total, status) == sum(
                assignment.status == status for assignment in learner_work
            )


@settings(max_examples=cases(20), deadline=None)
@given(TRACES)
def test_later_steps_do_not_change_a_report(trace: list[Step]) -> None:
    progress, reports = RunProgress(), []
    for step in trace:
        progress.apply(step)
        report = progress.report()
        reports.append((report, [list(cycle.assignments) for cycle in report.cycles]))
    for report, before in reports:
        for cycle, work in zip(report.cycles, before, strict=True):
            for actual, expected_one in zip(cycle.assignments, work, strict=True):
                assert_same_fields(actual, expected_one)


def test_the_number_of_the_last_evaluated_cycle_is_known_after_each_step() -> None:
    progress, last = RunProgress(), 0
    for step in SCENARIOS["equal"]():
        progress.apply(step)
        last = step.event.cycle if isinstance(step.event, events.Evaluated) else last
        assert progress.evaluated_number == last
        evaluated = progress.evaluated_cycle
        assert (evaluated.number if evaluated else 0) == last
    assert last == 3


def test_assignments_of_a_report_are_read_only() -> None:
    work = Report.from_trace(SCENARIOS["equal"]()).cycles[0].assignments
    with pytest.raises(ValueError, match="read-only"):
        work.visits[0] = 3


def test_a_slice_of_assignments_is_a_sequence_of_assignments() -> None:
    work = Report.from_trace(SCENARIOS["equal"]()).cycles[0].assignments
    assert [assignment.name for assignment in work[1:]] == ["device-1", "device-2"]
    assert (work[-1].name, len(work[:2])) == ("device-2", 2)
    with pytest.raises(IndexError):
        work[3]


def test_records_become_columns_in_order() -> None:
    third, first = (
        Assignment(1, 2, "c", 1, 1, 1, 5, 0.0, reason="late"),
        Assignment(1, 0, "a", 2, 1, 1, 5, 0.0, status="counted"),
    )
    work = Assignments.from_records([third, first])
    assert_same_fields(work[0], first)
    assert_same_fields(work[1], third)
    assert len(Assignments.from_records([])) == 0


def test_losses_of_an_aggregation_belong_to_the_updates_in_it() -> None:
    trace = SCENARIOS["late"]()
    for index, step in enumerate(trace):
        if isinstance(step.event, events.Aggregated) and step.event.cycle == 2:
            event = events.Aggregated(
                at_s=step.event.at_s, cycle=2, seconds=0.1, loss=np.array([1, 3.0])
            )
            trace[index] = Step(event, step.commands)
    assignments = Report.from_trace(trace).cycles[1].assignments
    assert assignments.loss.tolist() == [1, 0.7, 3]
    assert assignments[1].status == "late"


@pytest.mark.parametrize("is_averaging", [True, False])
def test_work_of_a_cycle_that_is_given_up_for_another_model_is_dropped(is_averaging: bool) -> None:
    task = make_task(scheme="equal", passes=1, cycles=3, sizes=TaskSizes(samples=80))
    machine = ScriptedMachine(task, ["pi", "phone"])
    machine.join(0.0)
    for learner in ("pi", "phone") if is_averaging else ("pi",):
        machine.update(5.0, {learner: 30})
    machine.send(events.TaskContinued(at_s=6.0, cycles=3, learner_count=2, model=1))
    report = Report.from_trace(machine.trace)
    (cycle,) = report.cycles
    assert [work.status for work in cycle.assignments] == ["dropped", "dropped"]
    assert {work.reason for work in cycle.assignments} == {GIVEN_UP}
    assert (cycle.ending, cycle.visits_counted) == ("interrupted", 0)


def test_progress_keeps_no_steps_and_few_bytes_per_learner() -> None:
    count, progress = 20_000, RunProgress()
    learners = np.arange(count)
    names = ("device",) * count
    tracemalloc.start()
    for step in large_trace(learners, names):
        progress.apply(step)
        del step
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes / count / 2 < 150
    assert isinstance(progress.current_cycle, Cycle)
    work = progress.current_cycle.assignments
    assert work.loss.strides == work.reason.strides == (0,)  # equal rows, in one number


def test_a_column_of_equal_rows_changes_with_its_first_different_value() -> None:
    records = [Assignment(1, row, "a", 1, 1, 1, 5, 0.0) for row in range(3)]
    before = Assignments.from_records(records).update(np.arange(3), loss=np.full(3, nan))
    assert before.loss.strides == before.predicted_s.strides == (0,)
    after = before.update(np.arange(2), loss=np.array([nan, 1.0]))
    assert repr(after.loss.tolist()) == "[nan, 1.0, nan]"
    assert np.isnan(before.loss).all()


def large_trace(learners: Any, names: tuple[str, ...]) -> Any:
    ones, at_s = np.ones(learners.size, np.int64), 0.0
    start = events.TaskSubmitted(
        at_s=0.0,
        run="r",
        task=make_task(),
        learner_count=learners.size,
        shard_samples=np.full(9, 10),
        names=names,
    )
    yield Step(start, [])
    for cycle in (1, 2):
        dispatch = commands.Dispatch(
            reason="",
            learners=learners,
            cycle=cycle,
            attempts=ones,
            shards=RaggedArray(ones, learners % 9),
            passes=ones,
            seconds_left=10.0,
            tail_s=1.0,
            predicted_s=np.random.default_rng(0).random(learners.size),
        )
        yield Step(events.TimeReached(at_s=at_s), [dispatch])
        yield Step(
            events.UpdatesReceived(
                at_s=at_s + 5,
                learners=learners[::-1],
                cycle=cycle,
                attempts=ones,
                visits=learners % 11,
                shipped=learners % 2,
                loss=np.full(learners.size, nan),
                phases=np.ones((learners.size, 6)),
                arrivals_s=at_s + np.linspace(1, 5, learners.size),
            ),
            [],
        )
        at_s += 10


@pytest.mark.parametrize("count", [6_000, 10_001])
def test_the_json_of_many_learners_has_their_number_but_no_long_lists(count: int) -> None:
    learners = np.arange(count)
    report = Report.from_trace(large_trace(learners, ("device",) * learners.size))
    values = report.as_dict()
    lists = [values[name] for name in ("names", "departed", "departures", "learners")]
    # Totals are listed longer than assignments, of which there is one for each cycle.
    assert (lists == [None] * 4) == (count > 10_000)
    if count <= 10_000:
        assert [len(values[name]) for name in ("names", "learners")] == [count] * 2
        visits = sum(total["counted_visits"] for total in values["learners"])
        assert visits == report.visits_counted
        assert len(values["learners"][7]["time_use_s"]) == len(values["time_uses"])
    for name in ("assignments", "unassigned", "time_use_s"):
        assert [cycle[name] for cycle in values["cycles"]] == [None, None]
    assert values["learner_count"] == count
    assert values["cycles"][0]["counts"] == {"counted": count}
    assert values["cycles"][1]["visits_counted"] == int((learners % 11).sum())
    assert len(report.plot().svg) < 200_000
