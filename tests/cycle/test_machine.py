"""Given these events, expect these commands."""

from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.allocation import SCHEMES, CyclePlan, CycleProblem
from melisma.cycle import commands, events
from melisma.cycle.machine import CycleMachine
from melisma.cycle.ragged import RaggedArray
from melisma.cycle.state import WorkStatus
from melisma.errors import InfeasibleError, MelismaError, SettingError
from melisma.fleet.task import StopSettings
from melisma.runs.report import Report
from melisma.runs.trace import Step, encode_step
from melisma.testing import FakeDevice, ScriptedMachine, VirtualRun, commands_in, make_task
from tests.lanes import cases

SHARD_SAMPLES = 10

CYCLE_SCHEMES = ["dab", "equal", "proportional", "synchronous", "staleness"]
FLEET = [FakeDevice(0.1), FakeDevice(0.3), FakeDevice(0.8)]


def task_for(name: str, **settings: Any) -> Any:
    passes = None if SCHEMES[name].passes == "chosen" else 2
    return make_task(scheme=name, passes=passes, **settings)


def finish(trace: list[Step]) -> commands.Finish:
    (command,) = commands_in(trace, commands.Finish)
    assert isinstance(command, commands.Finish)
    return command


def received(trace: list[Step], kind: type) -> list[Any]:
    return [step.event for step in trace if isinstance(step.event, kind)]


@pytest.mark.parametrize("scheme", CYCLE_SCHEMES)
def test_every_scheme_trains_all_cycles(scheme: str) -> None:
    virtual_run = VirtualRun(task_for(scheme), FLEET)
    trace = virtual_run.run()
    assert finish(trace).outcome == "finished"
    assert [dispatch.cycle for dispatch in commands_in(trace, commands.Dispatch)] == [1, 2, 3]
    assert [aggregate.cycle for aggregate in commands_in(trace, commands.Aggregate)] == [1, 2, 3]
    assert [evaluate.cycle for evaluate in commands_in(trace, commands.Evaluate)] == [1, 2, 3]


@pytest.mark.parametrize("scheme", CYCLE_SCHEMES)
def test_no_learner_gets_a_shard_twice_in_a_cycle(scheme: str) -> None:
    for dispatch in commands_in(VirtualRun(task_for(scheme), FLEET).run(), commands.Dispatch):
        for shards in dispatch.shards:
            assert len(set(shards.tolist())) == shards.size


@pytest.mark.parametrize("scheme", ["equal", "proportional", "synchronous", "staleness"])
def test_planned_cycles_hand_out_each_shard_once(scheme: str) -> None:
    for dispatch in commands_in(VirtualRun(task_for(scheme), FLEET).run(), commands.Dispatch):
        assert sorted(np.concatenate(dispatch.shards).tolist()) == list(range(20))


def test_every_shard_is_dealt_before_any_is_dealt_again() -> None:
    seen = np.zeros(20, np.int64)
    for dispatch in commands_in(
        VirtualRun(make_task(), [FakeDevice(0.7), FakeDevice(0.9)]).run(), commands.Dispatch
    ):
        seen += np.bincount(np.concatenate(dispatch.shards), minlength=20)
        assert seen.max() - seen.min() <= 1
    assert seen.max() > 1


@pytest.mark.parametrize("scheme", CYCLE_SCHEMES)
def test_weights_are_samples_times_the_fraction_of_visits_done(scheme: str) -> None:
    virtual_run = VirtualRun(task_for(scheme, cycles=1), [FakeDevice(0.1), FakeDevice(3.0)])
    trace = virtual_run.run()
    (dispatch,), (aggregate,) = (
        commands_in(trace, commands.Dispatch),
        commands_in(trace, commands.Aggregate),
    )
    visits = {int(e.learners[0]): int(e.visits[0]) for e in received(trace, events.UpdatesReceived)}
    for learner, weight in zip(aggregate.learners.tolist(), aggregate.weights, strict=True):
        index = dispatch.learners.tolist().index(learner)
        samples = dispatch.shards[index].size * SHARD_SAMPLES
        assert weight == samples * visits[learner] / (samples * dispatch.passes[index])
        assert 0 < weight <= samples


def test_learners_are_asked_only_for_the_needs_of_the_scheme() -> None:
    for scheme in CYCLE_SCHEMES:
        trace = VirtualRun(task_for(scheme), FLEET).run()
        needs = SCHEMES[scheme].needs
        assert bool(commands_in(trace, commands.Benchmark)) == (needs == "costs")
        assert bool(commands_in(trace, commands.AskBound)) == (needs == "bounds")


def first_dispatch(trace: list[Step]) -> Step:
    return next(
        step for step in trace if any(isinstance(c, commands.Dispatch) for c in step.commands)
    )


def test_the_machine_waits_for_slow_benchmarks_while_answers_arrive() -> None:
    """It waits longer than the deadline if no answer is much later than the previous one."""
    fleet = [FakeDevice(1.0), FakeDevice(4.0), FakeDevice(15.0)]
    trace = VirtualRun(task_for("proportional", deadline_s=1.0), fleet).run()
    reported = received(trace, events.CostsReported)
    assert first_dispatch(trace).event is reported[2]
    assert reported[2].at_s > 15


@pytest.mark.parametrize("scheme", ["dab", "proportional"])
def test_a_learner_that_never_answers_is_waited_for_once(scheme: str) -> None:
    def drop_answers(event: events.AnyEvent) -> list[events.AnyEvent]:
        if isinstance(event, events.BoundsReported | events.CostsReported):
            return [] if event.learners[0] == 1 else [event]
        return [event]

    trace = VirtualRun(task_for(scheme, cycles=4), FLEET, drop_answers).run()
    assert finish(trace).outcome == "finished"
    began = [
        step.event.at_s
        for step in trace
        if any(isinstance(c, commands.Dispatch) for c in step.commands)
    ]
    assert began[0] >= 20.0
    # Later cycles last as long as training: the machine does not wait for learner 1 again.
    assert all(after - before < 11.5 for before, after in pairwise(began))
    assert {tuple(d.learners.tolist()) for d in commands_in(trace, commands.Dispatch)} == {(0, 2)}


def test_a_shard_is_held_once_an_update_shows_that_it_was_trained() -> None:
    def drop_updates(event: events.AnyEvent) -> list[events.AnyEvent]:
        drop = isinstance(event, events.UpdatesReceived) and event.learners[0] == 1
        return [] if drop else [event]

    trace = VirtualRun(make_task(cycles=5), [FakeDevice(0.7), FakeDevice(0.9)], drop_updates).run()
    asked = commands_in(trace, commands.AskBound)
    assert all(request.held[request.learners.tolist().index(1)] == 0 for request in asked)
    assert any(request.held[0] > 0 for request in asked)


def test_each_learner_gets_the_held_shards_that_its_bound_assumed() -> None:
    trace = VirtualRun(
        make_task(cycles=12, seed=3), [FakeDevice(0.25), FakeDevice(0.35), FakeDevice(0.6)]
    ).run()
    held: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for ask, dispatch in zip(
        commands_in(trace, commands.AskBound), commands_in(trace, commands.Dispatch), strict=True
    ):
        total = sum(shards.size for shards in dispatch.shards)
        for index, learner in enumerate(dispatch.learners.tolist()):
            dealt = set(dispatch.shards[index].tolist())
            if total <= 20:
                promised = int(ask.held[ask.learners.tolist().index(learner)])
                assert len(dealt & held[learner]) >= min(promised, len(dealt))
            held[learner] |= dealt


def test_learners_that_cannot_meet_the_deadline_are_left_out_and_measured_again() -> None:
    trace = VirtualRun(
        task_for("synchronous"), [FakeDevice(0.1), FakeDevice(0.2), FakeDevice(12.0)]
    ).run()
    dispatches = commands_in(trace, commands.Dispatch)
    assert [d.learners.tolist() for d in dispatches] == [[0, 1]] * 3
    assert "device-2 cannot meet the deadline" in dispatches[0].reason
    again = commands_in(trace, commands.Benchmark)[1:]
    assert [b.learners.tolist() for b in again] == [[2]] * 3
    assert finish(trace).outcome == "finished"


def test_a_deadline_that_no_learner_can_meet_fails_with_a_feasible_one() -> None:
    trace = VirtualRun(make_task(deadline_s=0.05), FLEET).run()
    assert not commands_in(trace, commands.Dispatch)
    reason = finish(trace).reason
    # One shard of the fastest learner: 0.2 s fixed, 0.1 s to ship, 2 * 0.1 s to train; a margin.
    assert "use deadline_s >= 0.6" in reason
    assert finish(trace).outcome == "failed"
    trace = VirtualRun(make_task(deadline_s=0.51), FLEET).run()
    assert finish(trace).outcome == "finished"


def test_a_task_without_a_plan_fails_with_a_feasible_deadline() -> None:
    trace = VirtualRun(task_for("staleness", deadline_s=0.6), FLEET).run()
    assert not commands_in(trace, commands.Dispatch)
    assert "use deadline_s >= " in finish(trace).reason


def test_an_infeasible_plan_names_learners() -> None:
    trace = VirtualRun(task_for("synchronous"), [FakeDevice(12.0), FakeDevice(14.0)]).run()
    assert finish(trace).reason.startswith("2 of 2 learners (device-0, device-1) cannot ")


def test_an_infeasible_plan_names_learners_by_their_numbers_in_the_run() -> None:
    """The first learner has left: learner 0 of the scheme's problem is learner 1 of the run."""

    def leave(event: events.AnyEvent) -> list[events.AnyEvent]:
        if isinstance(event, events.LearnersJoined) and event.learners[0] == 0:
            return [events.LearnersLeft(at_s=event.at_s, learners=event.learners, reason="broken")]
        return [event]

    fleet = [FakeDevice(0.1), FakeDevice(12.0), FakeDevice(14.0)]
    trace = VirtualRun(task_for("synchronous"), fleet, leave).run()
    assert finish(trace).reason.startswith("2 of 2 learners (device-1, device-2) cannot ")


def test_learners_are_named_if_the_message_of_a_scheme_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise InfeasibleError("too slow", constraint="x", miss=1, nearest={}, learners=[0, 1])

    def leave(event: events.AnyEvent) -> list[events.AnyEvent]:
        if isinstance(event, events.LearnersJoined) and event.learners[0] == 0:
            return [events.LearnersLeft(at_s=event.at_s, learners=event.learners, reason="broken")]
        return [event]

    scheme = replace(SCHEMES["synchronous"], name="own", decide=refuse)
    monkeypatch.setitem(SCHEMES, "own", scheme)
    trace = VirtualRun(
        task_for("own"), [FakeDevice(0.1), FakeDevice(0.1), FakeDevice(0.1)], leave
    ).run()
    assert finish(trace).reason == "too slow (device-1, device-2)"


def failing_scheme(problem: CycleProblem) -> NoReturn:
    raise ZeroDivisionError("no learner is free")


def fails_later(problem: CycleProblem) -> CyclePlan:
    if problem.held.any():
        raise ZeroDivisionError("some shards are held")
    return CyclePlan([4] * problem.learners, 1)


@pytest.mark.parametrize(("name", "cycles"), [("failing_scheme", 0), ("fails_later", 1)])
def test_a_scheme_of_the_user_that_fails_ends_the_run_and_dismisses_no_learner(
    name: str, cycles: int
) -> None:
    scheme = f"{__name__}:{name}"
    trace = VirtualRun(make_task(scheme=scheme, passes=None), FLEET).run()
    ended = finish(trace)
    assert ended.outcome == "failed"
    assert ended.reason.startswith(f"scheme {scheme}: ZeroDivisionError: ")
    assert not commands_in(trace, commands.Dismiss)
    assert len(commands_in(trace, commands.Dispatch)) == cycles


def test_an_update_counts_once() -> None:
    def repeat_updates(event: events.AnyEvent) -> list[events.AnyEvent]:
        return [event, event] if isinstance(event, events.UpdatesReceived) else [event]

    once, twice = VirtualRun(make_task(), FLEET), VirtualRun(make_task(), FLEET, repeat_updates)
    for first, second in zip(
        commands_in(once.run(), commands.Aggregate),
        commands_in(twice.run(), commands.Aggregate),
        strict=True,
    ):
        assert first.learners.tolist() == second.learners.tolist()
        assert first.weights.tolist() == second.weights.tolist()
    repeated = commands_in(twice.trace, commands.Withdraw)
    assert repeated
    assert {"the update was already counted, or its cycle is closed"} == {
        withdraw.reason for withdraw in repeated
    }


def test_a_late_update_is_dropped_and_withdrawn() -> None:
    def delay_update(event: events.AnyEvent) -> list[events.AnyEvent]:
        if (
            isinstance(event, events.UpdatesReceived)
            and event.learners[0] == 2
            and event.cycle == 1
        ):
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            return [events.UpdatesReceived(**fields | {"at_s": event.at_s + 5.0})]
        return [event]

    trace = VirtualRun(make_task(), FLEET, delay_update).run()
    aggregates = commands_in(trace, commands.Aggregate)
    assert aggregates[0].learners.tolist() == [0, 1]
    assert aggregates[1].learners.tolist() == [0, 1, 2]
    withdrawn, late = commands_in(trace, commands.Withdraw)
    assert withdrawn.learners.tolist() == late.learners.tolist() == [2]
    assert "tail" in withdrawn.reason
    assert finish(trace).outcome == "finished"


def test_the_tail_is_bounded_and_shrinks_again() -> None:
    def delay_updates(event: events.AnyEvent) -> list[events.AnyEvent]:
        if isinstance(event, events.UpdatesReceived) and event.learners[0] == 2 and event.cycle < 8:
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            return [events.UpdatesReceived(**fields | {"at_s": event.at_s + 0.99})]
        return [event]

    trace = VirtualRun(make_task(cycles=14), FLEET, delay_updates).run()
    tails = [dispatch.tail_s for dispatch in commands_in(trace, commands.Dispatch)]
    assert max(tails) <= 5.0
    assert tails[-1] == pytest.approx(1.0)


def test_a_cycle_closes_at_the_deadline_and_its_tail() -> None:
    def drop_updates(event: events.AnyEvent) -> list[events.AnyEvent]:
        drop = isinstance(event, events.UpdatesReceived) and event.learners[0] == 2
        return [] if drop else [event]

    trace = VirtualRun(make_task(cycles=1), FLEET, drop_updates).run()
    began = next(
        s.event.at_s for s in trace if any(isinstance(c, commands.Dispatch) for c in s.commands)
    )
    closed = next(
        s.event.at_s for s in trace if any(isinstance(c, commands.Aggregate) for c in s.commands)
    )
    assert closed - began == pytest.approx(10.0 * 1.1)


def test_a_refused_update_is_not_waited_for() -> None:
    def refuse_update(event: events.AnyEvent) -> list[events.AnyEvent]:
        if isinstance(event, events.UpdatesReceived) and event.learners[0] == 0:
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            return [events.UpdatesReceived(**fields | {"refused": "weight is not finite"})]
        return [event]

    trace = VirtualRun(make_task(), FLEET, refuse_update).run()
    assert [
        aggregate.learners.tolist() for aggregate in commands_in(trace, commands.Aggregate)
    ] == [[1, 2]] * 3
    assert {withdraw.reason for withdraw in commands_in(trace, commands.Withdraw)} == {
        "weight is not finite"
    }
    assert all(
        aggregate.reason == "all updates are in"
        for aggregate in commands_in(trace, commands.Aggregate)
    )


def test_three_empty_cycles_end_the_run_with_the_reason() -> None:
    def drop_updates(event: events.AnyEvent) -> list[events.AnyEvent]:
        return [] if isinstance(event, events.UpdatesReceived) else [event]

    trace = VirtualRun(make_task(cycles=9), FLEET, drop_updates).run()
    assert finish(trace).outcome == "failed"
    assert "3 cycles in a row were empty" in finish(trace).reason
    assert "no update was received" in finish(trace).reason
    aggregates = commands_in(trace, commands.Aggregate)
    assert [aggregate.learners.size for aggregate in aggregates] == [0, 0]
    assert all(aggregate.reason.startswith("empty") for aggregate in aggregates)


def test_a_run_whose_updates_are_all_refused_ends_with_the_reason() -> None:
    def refuse_update(event: events.AnyEvent) -> list[events.AnyEvent]:
        if isinstance(event, events.UpdatesReceived):
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            return [events.UpdatesReceived(**fields | {"refused": "weight is not finite"})]
        return [event]

    assert (
        "weight is not finite" in finish(VirtualRun(make_task(), FLEET, refuse_update).run()).reason
    )


def test_a_plan_that_fails_once_is_tried_again_with_new_measurements() -> None:
    reported: list[int] = []

    def report_slow_costs(event: events.AnyEvent) -> list[events.AnyEvent]:
        if isinstance(event, events.Aggregated) and event.cycle == 1:
            reported.append(1)
            worse = np.array([[9.0, 0.01, 10.0], [0.1, 0.0, 10.0], [0.2, 0.0, 10.0]])
            estimates = [
                events.CostsReported(
                    at_s=event.at_s, learners=np.array([k]), costs=worse[:, :, None]
                )
                for k in range(3)
            ]
            return [*estimates, event]
        return [event]

    trace = VirtualRun(task_for("synchronous", cycles=4), FLEET, report_slow_costs).run()
    assert reported
    assert finish(trace).outcome == "finished"
    assert [aggregate.learners.size for aggregate in commands_in(trace, commands.Aggregate)] == [
        3,
        0,
        3,
        3,
    ]


def test_empty_cycles_that_are_not_in_a_row_do_not_end_the_run() -> None:
    def drop_updates(event: events.AnyEvent) -> list[events.AnyEvent]:
        drop = isinstance(event, events.UpdatesReceived) and event.cycle % 2
        return [] if drop else [event]

    trace = VirtualRun(make_task(cycles=8), FLEET, drop_updates).run()
    assert finish(trace).outcome == "finished"


def test_a_learner_that_leaves_is_not_waited_for() -> None:
    def leave(event: events.AnyEvent) -> list[events.AnyEvent]:
        if isinstance(event, events.UpdatesReceived) and event.learners[0] == 2:
            return [events.LearnersLeft(at_s=event.at_s, learners=event.learners, reason="cable")]
        return [event]

    trace = VirtualRun(make_task(), FLEET, leave).run()
    assert finish(trace).outcome == "finished"
    assert [dispatch.learners.tolist() for dispatch in commands_in(trace, commands.Dispatch)] == [
        [0, 1, 2],
        [0, 1],
        [0, 1],
    ]


def test_a_run_ends_when_its_last_learner_leaves_with_the_reason() -> None:
    def leave(event: events.AnyEvent) -> list[events.AnyEvent]:
        if isinstance(event, events.UpdatesReceived):
            return [
                events.LearnersLeft(at_s=event.at_s, learners=event.learners, reason="no power")
            ]
        return [event]

    assert "no power" in finish(VirtualRun(make_task(), FLEET, leave).run()).reason


@pytest.mark.parametrize("scheme", CYCLE_SCHEMES)
@pytest.mark.parametrize("leaves_on", [events.UpdatesReceived, events.Aggregated])
def test_a_run_goes_on_when_learners_come_back_that_had_all_left(
    scheme: str, leaves_on: type
) -> None:
    gone = False

    def leave(event: events.AnyEvent) -> list[events.AnyEvent]:
        nonlocal gone
        if isinstance(event, events.TaskSubmitted):
            return [msgspec.structs.replace(event, absence_s=600.0)]
        if not isinstance(event, leaves_on) or gone:
            return [event]
        gone, numbers = True, np.arange(len(FLEET))
        names = tuple(f"device-{number}" for number in numbers)
        back = events.LearnersJoined(
            at_s=event.at_s + 500.0, learners=numbers, names=names, discloses=("costs",) * 3
        )
        return [
            *([] if leaves_on is events.UpdatesReceived else [event]),
            events.LearnersLeft(at_s=event.at_s, learners=numbers, reason="Ctrl-C"),
            back,
        ]

    trace = VirtualRun(task_for(scheme), FLEET, leave).run()
    assert finish(trace).outcome == "finished"
    assert [each.cycle for each in commands_in(trace, commands.Aggregate)] == [1, 2, 3]
    (left,) = received(trace, events.LearnersLeft)
    after = [each for each in received(trace, events.UpdatesReceived) if each.at_s > left.at_s]
    assert after


def test_a_run_whose_learners_all_left_waits_for_one_and_then_fails() -> None:
    script = ScriptedMachine(make_task(scheme="equal", passes=1), ["a", "b"], absence_s=600.0)
    script.join(0.1)
    script.leave(1.0, "a", reason="a: its owner stopped it")
    script.leave(2.0, "b", reason="b: revoked by the owner")
    script.aggregate(2.1)
    (wake,) = script.evaluate(2.2)
    assert isinstance(wake, commands.Wake)
    assert wake.at_s == 602.0
    assert wake.reason == "no learner is left: b: revoked by the owner; wait 600 s for one"
    assert script.reach(601.0) == []
    (end,) = script.reach(602.0)
    assert isinstance(end, commands.Finish)
    assert (end.outcome, end.reason) == (
        "failed",
        "no learner is left: b: revoked by the owner; none joined for 600 s",
    )


def test_a_cycle_whose_only_learner_at_work_left_is_followed_by_one_of_the_others() -> None:
    script = ScriptedMachine(make_task(scheme="equal", passes=1), ["a", "b"], absence_s=600.0)
    script.join(0.1)
    script.update(0.5, {"b": 0})
    *_, empty = script.leave(1.0, "a", reason="a: revoked by the owner")
    assert isinstance(empty, commands.Aggregate)
    assert empty.reason == "empty: no update was received; a: revoked by the owner"
    script.aggregate(1.1)
    dispatch, *_ = script.evaluate(1.2)
    assert isinstance(dispatch, commands.Dispatch)
    assert (dispatch.cycle, dispatch.learners.tolist()) == (2, [1])


def test_learners_that_leave_while_they_are_asked_are_awaited_in_the_same_cycle() -> None:
    script = ScriptedMachine(make_task(scheme="dab", passes=1), ["a", "b"], absence_s=600.0)
    script.join(0.1)
    script.leave(1.0, "a")
    (wake,) = script.leave(2.0, "b")
    assert isinstance(wake, commands.Wake)
    assert wake.at_s == 602.0
    asked, _ = script.join(300.0, "b")
    assert isinstance(asked, commands.AskBound)
    assert (asked.cycle, asked.learners.tolist()) == (1, [1])
    dispatch, _ = script.report_bounds(301.0, {"b": 3})
    assert isinstance(dispatch, commands.Dispatch)
    assert dispatch.learners.tolist() == [1]


def test_cycles_that_are_empty_because_all_learners_left_do_not_fail_the_run() -> None:
    task = make_task(scheme="equal", passes=1, cycles=10)
    script = ScriptedMachine(task, ["a"], absence_s=600.0)
    now_s = 0.1
    for _ in range(5):
        script.join(now_s)
        script.leave(now_s + 1.0, "a")
        script.aggregate(now_s + 1.1)
        script.evaluate(now_s + 1.2)
        now_s += 100.0
    script.join(now_s)
    samples = int(script.machine.state.learners.samples[0])
    script.update(now_s + 1.0, {"a": samples})
    assert not commands_in(script.trace, commands.Finish)
    assert commands_in(script.trace, commands.Aggregate)[-1].learners.tolist() == [0]


def test_a_run_starts_without_a_learner_that_left_before_joining() -> None:
    def leave(event: events.AnyEvent) -> list[events.AnyEvent]:
        if isinstance(event, events.LearnersJoined) and event.learners[0] == 1:
            return [events.LearnersLeft(at_s=event.at_s, learners=event.learners, reason="broken")]
        return [event]

    trace = VirtualRun(make_task(), FLEET, leave).run()
    assert finish(trace).outcome == "finished"
    assert commands_in(trace, commands.Dispatch)[0].learners.tolist() == [0, 2]


def test_a_learner_that_joins_later_takes_part_from_the_next_cycle_on() -> None:
    virtual_run = VirtualRun(make_task(), [FakeDevice(0.1), FakeDevice(0.3)])
    virtual_run.devices.append(FakeDevice(0.2))
    late = events.LearnersJoined(
        at_s=3.0, learners=np.array([2]), names=("new",), discloses=("costs",)
    )
    joined: list[bool] = []

    def change(event: events.AnyEvent) -> list[events.AnyEvent]:
        if isinstance(event, events.TaskSubmitted):
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            return [events.TaskSubmitted(**fields | {"learner_count": 2})]
        if isinstance(event, events.LearnersJoined) and event.learners[0] == 2 and not joined:
            joined.append(True)
            return [late]
        return [event]

    virtual_run.intercept = change
    trace = virtual_run.run()
    assert [dispatch.learners.tolist() for dispatch in commands_in(trace, commands.Dispatch)] == [
        [0, 1],
        [0, 1, 2],
        [0, 1, 2],
    ]


def test_cancelling_withdraws_work_and_ends_the_run() -> None:
    virtual_run = VirtualRun(make_task(), FLEET)
    virtual_run.schedule(events.TaskCancelled(at_s=2.0, reason="interrupted"))
    trace = virtual_run.run()
    assert finish(trace).outcome == "cancelled"
    (withdrawn,) = commands_in(trace, commands.Withdraw)
    assert withdrawn.learners.tolist() == [0, 1, 2]


@pytest.mark.parametrize("stop", [{"accuracy": 0.7}, {"loss": 1.5}])
def test_a_run_stops_when_its_stop_setting_is_reached(stop: dict[str, float]) -> None:
    trace = VirtualRun(make_task(cycles=50, stop=StopSettings(**stop)), FLEET).run()
    assert finish(trace).outcome == "reached goal"
    assert len(commands_in(trace, commands.Aggregate)) == 2


def test_a_scheme_that_needs_more_than_learners_disclose_is_refused() -> None:
    private = [FakeDevice(0.1), FakeDevice(0.3, discloses="bounds")]
    reason = finish(VirtualRun(task_for("staleness"), private).run()).reason
    assert 'device-1 has discloses = "bounds"' in reason
    assert "use scheme dab with passes" in reason
    assert finish(VirtualRun(task_for("dab"), private).run()).outcome == "finished"
    with_third = [FakeDevice(0.1), FakeDevice(0.3, discloses="bounds"), FakeDevice(0.2)]

    def leave(event: events.AnyEvent) -> list[events.AnyEvent]:
        if isinstance(event, events.LearnersJoined) and event.learners[0] == 2:
            return [events.LearnersLeft(at_s=event.at_s, learners=event.learners, reason="broken")]
        return [event]

    reason = finish(VirtualRun(task_for("staleness"), with_third, leave).run()).reason
    assert 'device-1 has discloses = "bounds"' in reason
    private = [FakeDevice(0.1), FakeDevice(0.3, discloses="nothing")]
    assert "use scheme equal" in finish(VirtualRun(task_for("dab"), private).run()).reason
    assert finish(VirtualRun(task_for("equal"), private).run()).outcome == "finished"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheme": "med"}, "cannot run a cycle of one task"),
        ({"scheme": "feel"}, "cannot run a cycle of one task"),
        ({"scheme": "staleness", "passes": 2}, "chooses passes itself"),
        ({"scheme": "dab", "passes": None}, "needs passes"),
        ({"scheme": "fastest"}, "no scheme is called 'fastest'"),
    ],
)
def test_a_task_that_cannot_be_run_is_refused_at_once(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        VirtualRun(make_task(**settings), FLEET).run()


@pytest.mark.parametrize("scheme", ["equal", "proportional"])
def test_without_passes_each_learner_makes_those_that_fit_by_the_deadline(scheme: str) -> None:
    trace = VirtualRun(make_task(scheme=scheme, passes=None), FLEET).run()
    assert finish(trace).outcome == "finished"
    assert commands_in(trace, commands.Benchmark)
    for dispatch in commands_in(trace, commands.Dispatch):
        assert dispatch.learners.tolist() == list(range(len(FLEET)))
        assert np.all(dispatch.predicted_s <= 10.0)
        shards = dispatch.shards.counts
        more_s = np.array([device.train_s for device in FLEET]) * shards
        assert np.all(dispatch.predicted_s + more_s > 10.0)
        if scheme == "equal":
            assert shards.max() - shards.min() <= 1
            assert len(set(dispatch.passes.tolist())) > 1


def test_equal_shares_without_passes_need_costs_and_with_passes_need_nothing() -> None:
    private = [FakeDevice(0.1), FakeDevice(0.3, discloses="nothing")]
    reason = finish(VirtualRun(make_task(scheme="equal", passes=None), private).run()).reason
    assert reason.startswith("scheme equal needs from each learner: train_s, ship_s")
    assert reason.endswith("use scheme equal with passes")
    assert finish(VirtualRun(make_task(scheme="equal"), private).run()).outcome == "finished"


@pytest.mark.parametrize("scheme", ["equal", "proportional"])
def test_a_learner_too_slow_for_one_pass_is_measured_again_each_cycle(
    scheme: str,
) -> None:
    slow = FakeDevice(9.9)
    virtual_run = VirtualRun(
        make_task(scheme=scheme, passes=None, cycles=4), [FakeDevice(0.1), FakeDevice(0.2), slow]
    )

    def speed_up(event: events.AnyEvent) -> list[events.AnyEvent]:
        if isinstance(event, events.Aggregated):
            slow.train_s = 0.3
        return [event]

    virtual_run.intercept = speed_up
    trace = virtual_run.run()
    first, *_, last = commands_in(trace, commands.Dispatch)
    assert (first.learners.tolist(), first.no_pass.tolist()) == ([0, 1], [2])
    assert (last.learners.tolist(), last.no_pass.tolist()) == ([0, 1, 2], [])


def test_a_deadline_by_which_no_learner_can_make_one_pass_is_refused() -> None:
    end = finish(VirtualRun(make_task(scheme="equal", passes=None, deadline_s=0.5), FLEET).run())
    assert end.outcome == "failed"
    assert end.reason.startswith("deadline_s = 0.5 is too short: none of the")


def test_an_event_before_any_task_is_an_error() -> None:
    with pytest.raises(MelismaError, match="before any task"):
        CycleMachine().handle(events.TimeReached(at_s=0.0))


def test_in_federated_learning_each_learner_trains_its_own_shards() -> None:
    fleet = [FakeDevice(0.1, local_shards=4), FakeDevice(0.3, local_shards=6)]
    trace = VirtualRun(make_task(mode="federated"), fleet).run()
    for dispatch in commands_in(trace, commands.Dispatch):
        assert [shards.max() < count for shards, count in zip(dispatch.shards, (4, 6), strict=True)]
        assert [len(set(shards.tolist())) for shards in dispatch.shards] == [4, 6]


def test_a_learner_gets_the_shards_that_it_holds_again() -> None:
    trace = VirtualRun(task_for("proportional", cycles=4), FLEET).run()
    first, second, *_ = commands_in(trace, commands.Dispatch)
    for before, after in zip(first.shards, second.shards, strict=True):
        kept = len(set(before.tolist()) & set(after.tolist()))
        assert kept == min(before.size, after.size)


@settings(max_examples=cases(40), deadline=None)
@given(
    speeds=st.lists(st.floats(0.02, 3.0), min_size=1, max_size=6),
    scheme=st.sampled_from(CYCLE_SCHEMES),
    lost=st.lists(st.integers(0, 200), max_size=10),
    doubled=st.lists(st.integers(0, 200), max_size=10),
)
def test_each_assignment_counts_at_most_once_even_if_messages_are_lost_or_repeated(
    speeds: list[float], scheme: str, lost: list[int], doubled: list[int]
) -> None:
    received_events = 0

    def change(event: events.AnyEvent) -> list[events.AnyEvent]:
        nonlocal received_events
        if not isinstance(
            event, events.UpdatesReceived | events.BoundsReported | events.CostsReported
        ):
            return [event]
        received_events += 1
        if received_events in lost and isinstance(event, events.UpdatesReceived):
            return []
        return [event, event] if received_events in doubled else [event]

    virtual_run = VirtualRun(task_for(scheme, cycles=4), [FakeDevice(s) for s in speeds], change)
    trace = virtual_run.run()
    assert finish(trace).outcome in ("finished", "failed")
    assigned_samples = {
        (d.cycle, learner): shards.size * SHARD_SAMPLES
        for d in commands_in(trace, commands.Dispatch)
        for learner, shards in zip(d.learners.tolist(), d.shards, strict=True)
    }
    for aggregate in commands_in(trace, commands.Aggregate):
        assert len(set(aggregate.learners.tolist())) == aggregate.learners.size
        for learner, weight in zip(aggregate.learners.tolist(), aggregate.weights, strict=True):
            assert 0 < weight <= assigned_samples[aggregate.cycle, learner]
    assert not (virtual_run.machine.state.learners.work == WorkStatus.ASSIGNED).any()


def test_the_same_run_gives_the_same_trace_byte_for_byte() -> None:
    first, second = (VirtualRun(task_for("staleness"), FLEET).run() for _ in range(2))
    assert b"".join(map(encode_step, first)) == b"".join(map(encode_step, second))


def lose_models(event: events.AnyEvent, cycles: range) -> list[events.AnyEvent]:
    """Return the event, with a loss that is not finite after these cycles."""
    if isinstance(event, events.Evaluated) and event.cycle in cycles:
        return [msgspec.structs.replace(event, loss=None, finite=False)]
    return [event]


def test_a_model_that_is_not_finite_is_replaced_by_the_one_before() -> None:
    task = task_for("equal", cycles=4)
    trace = VirtualRun(task, FLEET, lambda event: lose_models(event, range(2, 4))).run()
    assert [command.cycle for command in commands_in(trace, commands.Restore)] == [2, 3]
    assert finish(trace).outcome == "finished"
    report = Report.from_trace(trace)
    assert [cycle.rejected for cycle in report.cycles] == [False, True, True, False]
    assert report.cycles[1].empty
    assert report.cycles[1].visits_counted == 0
    assert report.loss == report.cycles[3].loss


def test_three_models_in_a_row_that_are_not_finite_end_the_run_as_failed() -> None:
    task = task_for("equal", cycles=8)
    trace = VirtualRun(task, FLEET, lambda event: lose_models(event, range(3, 9))).run()
    assert finish(trace).outcome == "failed"
    assert "not finite after 3 cycles in a row" in finish(trace).reason
    assert len(commands_in(trace, commands.Restore)) == 3
    report = Report.from_trace(trace)
    assert report.accuracy == report.cycles[1].accuracy


def test_a_run_whose_last_model_is_not_finite_is_not_done() -> None:
    task = task_for("equal", cycles=2)
    trace = VirtualRun(task, FLEET, lambda event: lose_models(event, range(2, 3))).run()
    assert finish(trace).outcome == "failed"
    assert "the model before it is kept" in finish(trace).reason


def test_a_model_that_is_not_finite_does_not_stop_the_run_by_its_accuracy() -> None:
    task = task_for("equal", cycles=3, stop=StopSettings(accuracy=0.05))
    trace = VirtualRun(task, FLEET, lambda event: lose_models(event, range(1, 3))).run()
    assert len(commands_in(trace, commands.Restore)) == 2
    assert finish(trace).outcome == "reached goal"


def test_averages_whose_updates_are_all_left_out_end_the_run_as_failed() -> None:
    def leave_out(event: events.AnyEvent) -> list[events.AnyEvent]:
        if not isinstance(event, events.Aggregated):
            return [event]
        everyone, cycles = np.arange(3), np.full(3, event.cycle)
        return [
            msgspec.structs.replace(
                event, guarded=everyone, guarded_cycles=cycles, scales=np.zeros(3)
            )
        ]

    trace = VirtualRun(task_for("equal", cycles=8), FLEET, leave_out).run()
    assert finish(trace).outcome == "failed"
    assert "were left out" in finish(trace).reason
    assert Report.from_trace(trace).left_out == {"device-0": 3, "device-1": 3, "device-2": 3}


def test_in_federated_learning_no_update_weighs_more_than_ten_times_the_median() -> None:
    """Two learners have 10 samples each; the third says that it has a billion."""
    task = make_task(scheme="equal", passes=1, mode="federated", guard="clip")
    script = ScriptedMachine(task, ["a", "b", "c"])
    shards = RaggedArray(np.array([1, 1, 1]), np.array([10, 10, 10**9]))
    joined = events.LearnersJoined(
        at_s=0.0,
        learners=np.arange(3),
        names=("a", "b", "c"),
        discloses=("costs",) * 3,
        local_shard_samples=shards,
    )
    issued = script.send(joined)
    for number, visits in enumerate((10, 10, 10**9)):
        issued = script.send(update_of(number, visits))
    (command,) = [each for each in issued if isinstance(each, commands.Aggregate)]
    assert command.weights.tolist() == [10.0, 10.0, 100.0]


def update_of(learner: int, visits: int) -> events.UpdatesReceived:
    return events.UpdatesReceived(
        at_s=1.0,
        learners=np.array([learner]),
        cycle=1,
        attempts=np.array([1]),
        visits=np.array([visits]),
        shipped=np.array([0]),
        loss=np.array([0.5]),
        phases=np.zeros((1, len(events.PHASES))),
    )


def test_visits_that_a_learner_reports_are_limited_by_those_planned() -> None:
    script = ScriptedMachine(make_task(scheme="equal", passes=1), ["a"])
    script.join(0.0, "a")
    planned = int(script.machine.state.learners.samples[0])
    issued = script.send(update_of(0, 2**53))
    (command,) = [each for each in issued if isinstance(each, commands.Aggregate)]
    assert command.visits.tolist() == [10 * planned]
    assert command.weights.tolist() == [planned]
