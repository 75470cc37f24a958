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
from melisma.learning import metrics
from melisma.runs.assignments import Assignment, Assignments
from melisma.runs.progress import RunProgress
from melisma.runs.report import Cycle, Report
from melisma.runs.trace import Step
from melisma.testing import make_task
from tests.lanes import cases
from tests.runs.naive_progress import RATES, Naive, one_by_one, random_trace
from tests.runs.test_report import PLAYS

TRACES = st.builds(random_trace, st.integers(0, 2**32 - 1), st.booleans())


def same(found: Any, expected: Any) -> None:
    for each in fields(expected):
        np.testing.assert_equal(getattr(found, each.name), getattr(expected, each.name), each.name)


@settings(max_examples=cases(60), deadline=None)
@given(TRACES)
def test_columns_say_what_a_fold_learner_by_learner_says(trace: list[Step]) -> None:
    naive, story = Naive(), RunProgress()
    for step in trace:
        naive.hear(step)
        story.apply(step)
    found = [each for cycle in story.report().cycles for each in cycle.assignments]
    expected = [naive.work[key] for key in sorted(naive.work)]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        same(one, other)


@settings(max_examples=cases(60), deadline=None)
@given(TRACES)
def test_figures_are_those_of_single_assignments(trace: list[Step]) -> None:
    for cycle in Report.of(trace).cycles:
        work = list(cycle.assignments)
        done, planned = (
            [each.counted_visits for each in work],
            [each.planned_visits for each in work],
        )
        assert cycle.samples_trained == sum(done)
        over = [each for each in work if each.status != "training"]
        assert cycle.samples_dropped == sum(
            max(each.planned_visits - each.counted_visits, 0) for each in over
        )
        np.testing.assert_allclose(cycle.fulfilment, metrics.fulfilment(done, planned))
        updates = [
            nan if each.status == "training" else each.counted_visits / max(each.samples, 1)
            for each in work
        ]
        assert cycle.average_staleness == pytest.approx(metrics.average_staleness(updates))
        taken = [each.arrived_s for each in work if each.status == "counted"]
        ended = cycle.ending == "aggregated"
        np.testing.assert_allclose(cycle.cycle_s, max(taken) - cycle.began_s if ended else nan)
        busy = metrics.occupancy([each.busy_s for each in work], cycle.cycle_s)
        np.testing.assert_allclose(cycle.occupancy, metrics.mean_known(busy))
        assert cycle.counts == {
            each.status: [w.status for w in work].count(each.status) for each in work
        }


@settings(max_examples=cases(40), deadline=None)
@given(TRACES)
def test_bytes_joules_and_cost_are_sums_over_learners(trace: list[Step]) -> None:
    model_bytes, shard_bytes = make_task().model_bytes, make_task().shard_bytes
    price, sample_j, byte_j = RATES
    for cycle in Report.of(trace).cycles:
        carried = {
            (each.learner, each.attempt): model_bytes * (1 + (each.arrived_s >= 0))
            + shard_bytes * each.shipped
            for each in cycle.assignments
        }
        assert cycle.bytes == pytest.approx(sum(carried.values()))
        assert cycle.cost == pytest.approx(
            sum(price[each.learner] * each.shards for each in cycle.assignments)
        )
        assert cycle.joules == pytest.approx(
            sum(
                each.visits * sample_j[each.learner]
                + carried[each.learner, each.attempt] * byte_j[each.learner]
                for each in cycle.assignments
            )
        )


@settings(max_examples=cases(60), deadline=None)
@given(TRACES)
def test_many_at_once_are_the_same_as_one_by_one(trace: list[Step]) -> None:
    assert Report.of(one_by_one(trace)).as_dict() == Report.of(trace).as_dict()


@settings(max_examples=cases(20), deadline=None)
@given(TRACES)
def test_sums_of_learners_are_sums_of_their_work(trace: list[Step]) -> None:
    found = Report.of(trace)
    work = [each for cycle in found.cycles for each in cycle.assignments]
    for learner, did in enumerate(found.learners):
        mine = [each for each in work if each.learner == learner]
        assert did.cycles == len({each.cycle for each in mine})
        assert did.shards == sum(each.shards for each in mine)
        assert (did.counted_visits, did.planned_visits) == (
            sum(each.counted_visits for each in mine),
            sum(each.planned_visits for each in mine),
        )
        told = np.array([each.phases for each in mine]).reshape(-1, len(events.PHASES))
        assert did.phases == pytest.approx(np.nansum(told, axis=0))
        for fate in ("late", "dropped", "refused", "left"):
            assert getattr(did, fate) == sum(each.status == fate for each in mine)


@settings(max_examples=cases(20), deadline=None)
@given(TRACES)
def test_a_report_stays_as_it_was_when_the_story_goes_on(trace: list[Step]) -> None:
    story, told = RunProgress(), []
    for step in trace:
        story.apply(step)
        report = story.report()
        told.append((report, [list(cycle.assignments) for cycle in report.cycles]))
    for report, before in told:
        for cycle, work in zip(report.cycles, before, strict=True):
            for one, other in zip(cycle.assignments, work, strict=True):
                same(one, other)


def test_what_was_handed_out_cannot_be_changed() -> None:
    work = Report.of(PLAYS["equal"]()).cycles[0].assignments
    with pytest.raises(ValueError, match="read-only"):
        work.visits[0] = 3


def test_a_part_of_the_work_is_work_again() -> None:
    work = Report.of(PLAYS["equal"]()).cycles[0].assignments
    assert [each.name for each in work[1:]] == ["device-1", "device-2"]
    assert (work[-1].name, len(work[:2])) == ("device-2", 2)
    with pytest.raises(IndexError):
        work[3]


def test_single_ones_become_columns_in_order() -> None:
    third, first = (
        Assignment(1, 2, "c", 1, 1, 1, 5, 0.0, reason="why"),
        Assignment(1, 0, "a", 2, 1, 1, 5, 0.0, status="counted"),
    )
    work = Assignments.from_records([third, first])
    same(work[0], first)
    same(work[1], third)
    assert len(Assignments.from_records([])) == 0


def test_losses_told_with_the_model_are_those_of_the_updates_in_it() -> None:
    trace = PLAYS["late"]()
    for place, step in enumerate(trace):
        if isinstance(step.event, events.Aggregated) and step.event.cycle == 2:
            heard = events.Aggregated(
                at_s=step.event.at_s, cycle=2, seconds=0.1, loss=np.array([1, 3.0])
            )
            trace[place] = Step(heard, step.commands)
    found = Report.of(trace).cycles[1].assignments
    assert found.loss.tolist() == [1, 0.7, 3]
    assert found[1].status == "late"


def test_a_story_keeps_no_steps_and_little_for_each_learner() -> None:
    count, story = 20_000, RunProgress()
    who = np.arange(count)
    names = ("one",) * count
    tracemalloc.start()
    for step in big(who, names):
        story.apply(step)
        del step
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept / count / 2 < 150
    assert isinstance(story.current_cycle, Cycle)


def big(who: Any, names: tuple[str, ...]) -> Any:
    ones, at_s = np.ones(who.size, np.int64), 0.0
    start = events.TaskSubmitted(
        at_s=0.0, run="r", task=make_task(), learners=who.size, samples=np.full(9, 10), names=names
    )
    yield Step(start, [])
    for cycle in (1, 2):
        given = commands.Dispatch(
            reason="",
            learners=who,
            cycle=cycle,
            attempts=ones,
            shards=RaggedArray(ones, who % 9),
            passes=ones,
            seconds_left=10.0,
            tail_s=1.0,
            predicted_s=np.random.default_rng(0).random(who.size),
        )
        yield Step(events.TimeReached(at_s=at_s), [given])
        yield Step(
            events.UpdatesReceived(
                at_s=at_s + 5,
                learners=who[::-1],
                cycle=cycle,
                attempts=ones,
                visits=who % 11,
                shipped=who % 2,
                loss=np.full(who.size, nan),
                phases=np.ones((who.size, 6)),
                arrivals_s=at_s + np.linspace(1, 5, who.size),
            ),
            [],
        )
        at_s += 10


def test_of_many_learners_json_says_how_many_but_lists_none() -> None:
    who = np.arange(6_000)
    found = Report.of(big(who, ("one",) * who.size))
    plain = found.as_dict()
    assert [plain[name] for name in ("names", "departures", "learners")] == [None] * 3
    assert [each["assignments"] for each in plain["cycles"]] == [None, None]
    assert plain["learner_count"] == 6_000
    assert plain["cycles"][0]["counts"] == {"counted": 6_000}
    assert plain["cycles"][1]["samples_trained"] == int((who % 11).sum())
    assert len(found.plot().svg) < 200_000
