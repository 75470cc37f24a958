"""Given these events, expect these commands."""

from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.allocation import SCHEMES
from melisma.cycle import commands, events
from melisma.cycle.machine import CycleMachine
from melisma.cycle.state import WorkStatus
from melisma.errors import InfeasibleError, MelismaError, SettingError
from melisma.runs.trace import Step, encode_step
from melisma.testing import FakeDevice, VirtualRun, commands_in, make_task
from tests.lanes import cases

SHARD_SAMPLES = 10

CYCLE_SCHEMES = ["dab", "equal", "proportional", "synchronous", "staleness"]
FLEET = [FakeDevice(0.1), FakeDevice(0.3), FakeDevice(0.8)]


def of_scheme(name: str, **said: Any) -> Any:
    passes = None if SCHEMES[name].passes == "chosen" else 2
    return make_task(scheme=name, passes=passes, **said)


def finish(trace: list[Step]) -> commands.Finish:
    (only,) = commands_in(trace, commands.Finish)
    assert isinstance(only, commands.Finish)
    return only


def received(trace: list[Step], kind: type) -> list[Any]:
    return [each.event for each in trace if isinstance(each.event, kind)]


@pytest.mark.parametrize("scheme", CYCLE_SCHEMES)
def test_every_scheme_trains_all_cycles(scheme: str) -> None:
    play = VirtualRun(of_scheme(scheme), FLEET)
    trace = play.run()
    assert finish(trace).outcome == "done"
    assert [each.cycle for each in commands_in(trace, commands.Dispatch)] == [1, 2, 3]
    assert [each.cycle for each in commands_in(trace, commands.Aggregate)] == [1, 2, 3]
    assert [each.cycle for each in commands_in(trace, commands.Evaluate)] == [1, 2, 3]


@pytest.mark.parametrize("scheme", CYCLE_SCHEMES)
def test_nobody_gets_a_shard_twice_in_a_cycle(scheme: str) -> None:
    for dispatch in commands_in(VirtualRun(of_scheme(scheme), FLEET).run(), commands.Dispatch):
        for shards in dispatch.shards:
            assert len(set(shards.tolist())) == shards.size


@pytest.mark.parametrize("scheme", ["equal", "proportional", "synchronous", "staleness"])
def test_planned_cycles_hand_out_each_shard_once(scheme: str) -> None:
    for dispatch in commands_in(VirtualRun(of_scheme(scheme), FLEET).run(), commands.Dispatch):
        assert sorted(np.concatenate(dispatch.shards).tolist()) == list(range(20))


def test_every_shard_is_seen_before_any_is_seen_again() -> None:
    seen = np.zeros(20, np.int64)
    for dispatch in commands_in(
        VirtualRun(make_task(), [FakeDevice(0.7), FakeDevice(0.9)]).run(), commands.Dispatch
    ):
        seen += np.bincount(np.concatenate(dispatch.shards), minlength=20)
        assert seen.max() - seen.min() <= 1
    assert seen.max() > 1


@pytest.mark.parametrize("scheme", CYCLE_SCHEMES)
def test_weights_are_samples_less_what_was_not_visited(scheme: str) -> None:
    play = VirtualRun(of_scheme(scheme, cycles=1), [FakeDevice(0.1), FakeDevice(3.0)])
    trace = play.run()
    (dispatch,), (aggregate,) = (
        commands_in(trace, commands.Dispatch),
        commands_in(trace, commands.Aggregate),
    )
    visits = {int(e.learners[0]): int(e.visits[0]) for e in received(trace, events.UpdatesReceived)}
    for learner, weight in zip(aggregate.learners.tolist(), aggregate.weights, strict=True):
        place = dispatch.learners.tolist().index(learner)
        samples = dispatch.shards[place].size * SHARD_SAMPLES
        assert weight == samples * visits[learner] / (samples * dispatch.passes[place])
        assert 0 < weight <= samples


def test_only_the_scheme_s_needs_are_asked_for() -> None:
    for scheme in CYCLE_SCHEMES:
        trace = VirtualRun(of_scheme(scheme), FLEET).run()
        needs = SCHEMES[scheme].needs
        assert bool(commands_in(trace, commands.Benchmark)) == (needs == "costs")
        assert bool(commands_in(trace, commands.AskBound)) == (needs == "bounds")


def first_dispatch(trace: list[Step]) -> Step:
    return next(
        each for each in trace if any(isinstance(c, commands.Dispatch) for c in each.commands)
    )


def test_slow_benchmarks_are_waited_for_while_answers_come() -> None:
    """Longer than any deadline, as long as the next answer is not much later than the last."""
    fleet = [FakeDevice(1.0), FakeDevice(4.0), FakeDevice(15.0)]
    trace = VirtualRun(of_scheme("proportional", deadline_s=1.0), fleet).run()
    reported = received(trace, events.EstimatesReported)
    assert first_dispatch(trace).event is reported[2]
    assert reported[2].at_s > 15


@pytest.mark.parametrize("scheme", ["dab", "proportional"])
def test_who_never_answers_is_not_waited_for_twice(scheme: str) -> None:
    def silent(event: events.Event) -> list[events.Event]:
        told = isinstance(event, events.BoundsReported | events.EstimatesReported)
        return [] if told and event.learners[0] == 1 else [event]  # type: ignore[attr-defined]

    trace = VirtualRun(of_scheme(scheme, cycles=4), FLEET, silent).run()
    assert finish(trace).outcome == "done"
    began = [
        each.event.at_s
        for each in trace
        if any(isinstance(c, commands.Dispatch) for c in each.commands)
    ]
    assert began[0] >= 20.0
    # Later cycles take what training takes: nobody waits for the silent one again.
    assert all(after - before < 11.5 for before, after in pairwise(began))
    assert {tuple(d.learners.tolist()) for d in commands_in(trace, commands.Dispatch)} == {(0, 2)}


def test_a_shard_counts_as_held_when_an_update_shows_it() -> None:
    def lost(event: events.Event) -> list[events.Event]:
        gone = isinstance(event, events.UpdatesReceived) and event.learners[0] == 1
        return [] if gone else [event]

    trace = VirtualRun(make_task(cycles=5), [FakeDevice(0.7), FakeDevice(0.9)], lost).run()
    asked = commands_in(trace, commands.AskBound)
    assert all(each.held[each.learners.tolist().index(1)] == 0 for each in asked)
    assert any(each.held[0] > 0 for each in asked)


def test_nobody_is_promised_what_another_gets() -> None:
    trace = VirtualRun(
        make_task(cycles=12, seed=3), [FakeDevice(0.25), FakeDevice(0.35), FakeDevice(0.6)]
    ).run()
    held: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for ask, dispatch in zip(
        commands_in(trace, commands.AskBound), commands_in(trace, commands.Dispatch), strict=True
    ):
        together = sum(shards.size for shards in dispatch.shards)
        for place, learner in enumerate(dispatch.learners.tolist()):
            dealt = set(dispatch.shards[place].tolist())
            if together <= 20:
                promised = int(ask.held[ask.learners.tolist().index(learner)])
                assert len(dealt & held[learner]) >= min(promised, len(dealt))
            held[learner] |= dealt


def test_learners_that_cannot_make_it_are_left_out_and_measured_anew() -> None:
    trace = VirtualRun(
        of_scheme("synchronous"), [FakeDevice(0.1), FakeDevice(0.2), FakeDevice(12.0)]
    ).run()
    dispatches = commands_in(trace, commands.Dispatch)
    assert [d.learners.tolist() for d in dispatches] == [[0, 1]] * 3
    assert "device-2 cannot meet the deadline" in dispatches[0].reason
    again = commands_in(trace, commands.Benchmark)[1:]
    assert [b.learners.tolist() for b in again] == [[2]] * 3
    assert finish(trace).outcome == "done"


def test_a_deadline_that_nobody_can_meet_is_refused_with_one_that_would_do() -> None:
    trace = VirtualRun(make_task(deadline_s=0.05), FLEET).run()
    assert not commands_in(trace, commands.Dispatch)
    reason = finish(trace).reason
    # One shard of the fastest: 0.2 fixed, 0.1 to ship, twice 0.1 to train; and a margin.
    assert "use deadline_s >= 0.6" in reason
    assert finish(trace).outcome == "failed"
    trace = VirtualRun(make_task(deadline_s=0.51), FLEET).run()
    assert finish(trace).outcome == "done"


def test_a_plan_that_cannot_be_found_is_refused_with_what_would_do() -> None:
    trace = VirtualRun(of_scheme("staleness", deadline_s=0.6), FLEET).run()
    assert not commands_in(trace, commands.Dispatch)
    assert "use deadline_s >= " in finish(trace).reason


def test_a_refusal_names_learners() -> None:
    trace = VirtualRun(of_scheme("synchronous"), [FakeDevice(12.0), FakeDevice(14.0)]).run()
    assert finish(trace).reason.startswith("2 of 2 learners (device-0, device-1) cannot ")


def test_a_refusal_names_learners_by_the_run_s_own_numbers() -> None:
    """The first has left: what a scheme calls 0 is number 1 here."""

    def leaving(event: events.Event) -> list[events.Event]:
        if isinstance(event, events.LearnersJoined) and event.learners[0] == 0:
            return [events.LearnersLeft(at_s=event.at_s, learners=event.learners, reason="broken")]
        return [event]

    fleet = [FakeDevice(0.1), FakeDevice(12.0), FakeDevice(14.0)]
    trace = VirtualRun(of_scheme("synchronous"), fleet, leaving).run()
    assert finish(trace).reason.startswith("2 of 2 learners (device-1, device-2) cannot ")


def test_learners_that_a_scheme_does_not_mention_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise InfeasibleError("too slow", constraint="x", miss=1, nearest={}, learners=[0, 1])

    def leaving(event: events.Event) -> list[events.Event]:
        if isinstance(event, events.LearnersJoined) and event.learners[0] == 0:
            return [events.LearnersLeft(at_s=event.at_s, learners=event.learners, reason="broken")]
        return [event]

    scheme = replace(SCHEMES["synchronous"], name="own", decide=refuse)
    monkeypatch.setitem(SCHEMES, "own", scheme)
    trace = VirtualRun(
        of_scheme("own"), [FakeDevice(0.1), FakeDevice(0.1), FakeDevice(0.1)], leaving
    ).run()
    assert finish(trace).reason == "too slow (device-1, device-2)"


def test_an_update_counts_once() -> None:
    def doubled(event: events.Event) -> list[events.Event]:
        return [event, event] if isinstance(event, events.UpdatesReceived) else [event]

    once, twice = VirtualRun(make_task(), FLEET), VirtualRun(make_task(), FLEET, doubled)
    for one, other in zip(
        commands_in(once.run(), commands.Aggregate),
        commands_in(twice.run(), commands.Aggregate),
        strict=True,
    ):
        assert one.learners.tolist() == other.learners.tolist()
        assert one.weights.tolist() == other.weights.tolist()
    repeated = commands_in(twice.trace, commands.Withdraw)
    assert repeated
    assert {"the update was already counted, or its cycle is closed"} == {
        each.reason for each in repeated
    }


def test_a_late_update_is_dropped_and_its_learner_told() -> None:
    def delayed(event: events.Event) -> list[events.Event]:
        if (
            isinstance(event, events.UpdatesReceived)
            and event.learners[0] == 2
            and event.cycle == 1
        ):
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            return [events.UpdatesReceived(**fields | {"at_s": event.at_s + 5.0})]
        return [event]

    trace = VirtualRun(make_task(), FLEET, delayed).run()
    aggregates = commands_in(trace, commands.Aggregate)
    assert aggregates[0].learners.tolist() == [0, 1]
    assert aggregates[1].learners.tolist() == [0, 1, 2]
    withdrawn, late = commands_in(trace, commands.Withdraw)
    assert withdrawn.learners.tolist() == late.learners.tolist() == [2]
    assert "tail" in withdrawn.reason
    assert finish(trace).outcome == "done"


def test_the_tail_is_bounded_and_forgets() -> None:
    def dawdling(event: events.Event) -> list[events.Event]:
        if isinstance(event, events.UpdatesReceived) and event.learners[0] == 2 and event.cycle < 8:
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            return [events.UpdatesReceived(**fields | {"at_s": event.at_s + 0.99})]
        return [event]

    trace = VirtualRun(make_task(cycles=14), FLEET, dawdling).run()
    tails = [each.tail_s for each in commands_in(trace, commands.Dispatch)]
    assert max(tails) <= 5.0
    assert tails[-1] == pytest.approx(1.0)


def test_a_cycle_closes_at_the_deadline_and_its_tail() -> None:
    def lost(event: events.Event) -> list[events.Event]:
        gone = isinstance(event, events.UpdatesReceived) and event.learners[0] == 2
        return [] if gone else [event]

    trace = VirtualRun(make_task(cycles=1), FLEET, lost).run()
    began = next(
        s.event.at_s for s in trace if any(isinstance(c, commands.Dispatch) for c in s.commands)
    )
    closed = next(
        s.event.at_s for s in trace if any(isinstance(c, commands.Aggregate) for c in s.commands)
    )
    assert closed - began == pytest.approx(10.0 * 1.1)


def test_a_refused_update_is_not_waited_for() -> None:
    def broken(event: events.Event) -> list[events.Event]:
        if isinstance(event, events.UpdatesReceived) and event.learners[0] == 0:
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            return [events.UpdatesReceived(**fields | {"refused": "weight is no number"})]
        return [event]

    trace = VirtualRun(make_task(), FLEET, broken).run()
    assert [each.learners.tolist() for each in commands_in(trace, commands.Aggregate)] == [
        [1, 2]
    ] * 3
    assert {each.reason for each in commands_in(trace, commands.Withdraw)} == {
        "weight is no number"
    }
    assert all(
        each.reason == "all updates are in" for each in commands_in(trace, commands.Aggregate)
    )


def test_three_empty_cycles_end_the_run_and_say_why() -> None:
    def lost(event: events.Event) -> list[events.Event]:
        return [] if isinstance(event, events.UpdatesReceived) else [event]

    trace = VirtualRun(make_task(cycles=9), FLEET, lost).run()
    assert finish(trace).outcome == "failed"
    assert "3 cycles in a row were empty" in finish(trace).reason
    assert "no update was received" in finish(trace).reason
    aggregates = commands_in(trace, commands.Aggregate)
    assert [each.learners.size for each in aggregates] == [0, 0]
    assert all(each.reason.startswith("empty") for each in aggregates)


def test_when_all_updates_are_refused_the_end_says_why() -> None:
    def broken(event: events.Event) -> list[events.Event]:
        if isinstance(event, events.UpdatesReceived):
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            return [events.UpdatesReceived(**fields | {"refused": "weight is no number"})]
        return [event]

    assert "weight is no number" in finish(VirtualRun(make_task(), FLEET, broken).run()).reason


def test_a_plan_that_fails_once_is_tried_again_with_new_measurements() -> None:
    slow: list[int] = []

    def stumbling(event: events.Event) -> list[events.Event]:
        if isinstance(event, events.Aggregated) and event.cycle == 1:
            slow.append(1)
            worse = np.array([[9.0, 0.01, 10.0], [0.1, 0.0, 10.0], [0.2, 0.0, 10.0]])
            late = [
                events.EstimatesReported(
                    at_s=event.at_s, learners=np.array([k]), costs=worse[:, :, None]
                )
                for k in range(3)
            ]
            return [*late, event]
        return [event]

    trace = VirtualRun(of_scheme("synchronous", cycles=4), FLEET, stumbling).run()
    assert slow
    assert finish(trace).outcome == "done"
    assert [each.learners.size for each in commands_in(trace, commands.Aggregate)] == [3, 0, 3, 3]


def test_an_empty_cycle_between_others_is_forgiven() -> None:
    def lost(event: events.Event) -> list[events.Event]:
        gone = isinstance(event, events.UpdatesReceived) and event.cycle % 2
        return [] if gone else [event]

    trace = VirtualRun(make_task(cycles=8), FLEET, lost).run()
    assert finish(trace).outcome == "done"


def test_a_learner_that_leaves_is_not_waited_for() -> None:
    def leaving(event: events.Event) -> list[events.Event]:
        if isinstance(event, events.UpdatesReceived) and event.learners[0] == 2:
            return [events.LearnersLeft(at_s=event.at_s, learners=event.learners, reason="cable")]
        return [event]

    trace = VirtualRun(make_task(), FLEET, leaving).run()
    assert finish(trace).outcome == "done"
    assert [each.learners.tolist() for each in commands_in(trace, commands.Dispatch)] == [
        [0, 1, 2],
        [0, 1],
        [0, 1],
    ]


def test_when_the_last_one_leaves_the_run_ends_with_its_reason() -> None:
    def leaving(event: events.Event) -> list[events.Event]:
        if isinstance(event, events.UpdatesReceived):
            return [
                events.LearnersLeft(at_s=event.at_s, learners=event.learners, reason="no power")
            ]
        return [event]

    assert "no power" in finish(VirtualRun(make_task(), FLEET, leaving).run()).reason


def test_a_learner_that_never_joins_holds_nobody_up() -> None:
    def leaving(event: events.Event) -> list[events.Event]:
        if isinstance(event, events.LearnersJoined) and event.learners[0] == 1:
            return [events.LearnersLeft(at_s=event.at_s, learners=event.learners, reason="broken")]
        return [event]

    trace = VirtualRun(make_task(), FLEET, leaving).run()
    assert finish(trace).outcome == "done"
    assert commands_in(trace, commands.Dispatch)[0].learners.tolist() == [0, 2]


def test_a_learner_that_joins_later_takes_part_from_the_next_cycle_on() -> None:
    play = VirtualRun(make_task(), [FakeDevice(0.1), FakeDevice(0.3)])
    play.devices.append(FakeDevice(0.2))
    late = events.LearnersJoined(
        at_s=3.0, learners=np.array([2]), names=("new",), discloses=("costs",)
    )
    joined: list[bool] = []

    def change(event: events.Event) -> list[events.Event]:
        if isinstance(event, events.TaskSubmitted):
            fields = {name: getattr(event, name) for name in event.__struct_fields__}
            return [events.TaskSubmitted(**fields | {"learners": 2})]
        if isinstance(event, events.LearnersJoined) and event.learners[0] == 2 and not joined:
            joined.append(True)
            return [late]
        return [event]

    play.intercept = change
    trace = play.run()
    assert [each.learners.tolist() for each in commands_in(trace, commands.Dispatch)] == [
        [0, 1],
        [0, 1, 2],
        [0, 1, 2],
    ]


def test_cancelling_takes_work_back_and_ends_the_run() -> None:
    play = VirtualRun(make_task(), FLEET)
    play.schedule(events.TaskCancelled(at_s=2.0, reason="interrupted"))
    trace = play.run()
    assert finish(trace).outcome == "cancelled"
    (withdrawn,) = commands_in(trace, commands.Withdraw)
    assert withdrawn.learners.tolist() == [0, 1, 2]


@pytest.mark.parametrize("goal", [{"accuracy": 0.7}, {"loss": 1.5}])
def test_a_goal_that_is_reached_ends_the_run(goal: dict[str, float]) -> None:
    trace = VirtualRun(make_task(cycles=50, stop=goal_of(goal)), FLEET).run()
    assert finish(trace).outcome == "stopped"
    assert len(commands_in(trace, commands.Aggregate)) == 2


def goal_of(goal: dict[str, float]) -> Any:
    from melisma.fleet.task import StopSettings

    return StopSettings(**goal)


def test_a_scheme_that_needs_what_learners_do_not_tell_is_refused() -> None:
    private = [FakeDevice(0.1), FakeDevice(0.3, discloses="bounds")]
    reason = finish(VirtualRun(of_scheme("staleness"), private).run()).reason
    assert 'device-1 has discloses = "bounds"' in reason
    assert "use scheme dab with passes" in reason
    assert finish(VirtualRun(of_scheme("dab"), private).run()).outcome == "done"
    gone = [FakeDevice(0.1), FakeDevice(0.3, discloses="bounds"), FakeDevice(0.2)]

    def leaving(event: events.Event) -> list[events.Event]:
        if isinstance(event, events.LearnersJoined) and event.learners[0] == 2:
            return [events.LearnersLeft(at_s=event.at_s, learners=event.learners, reason="broken")]
        return [event]

    reason = finish(VirtualRun(of_scheme("staleness"), gone, leaving).run()).reason
    assert 'device-1 has discloses = "bounds"' in reason
    silent = [FakeDevice(0.1), FakeDevice(0.3, discloses="nothing")]
    assert "use scheme equal" in finish(VirtualRun(of_scheme("dab"), silent).run()).reason
    assert finish(VirtualRun(of_scheme("equal"), silent).run()).outcome == "done"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"scheme": "med"}, "cannot run a cycle of one task"),
        ({"scheme": "feel"}, "cannot run a cycle of one task"),
        ({"scheme": "staleness", "passes": 2}, "chooses passes itself"),
        ({"scheme": "dab", "passes": None}, "needs passes"),
        ({"scheme": "fastest"}, "no scheme is called 'fastest'"),
    ],
)
def test_a_task_that_cannot_be_run_is_refused_at_once(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        VirtualRun(make_task(**settings), FLEET).run()


@pytest.mark.parametrize("scheme", ["equal", "proportional"])
def test_without_passes_each_learner_makes_those_that_fit_by_the_deadline(scheme: str) -> None:
    trace = VirtualRun(make_task(scheme=scheme, passes=None), FLEET).run()
    assert finish(trace).outcome == "done"
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
    silent = [FakeDevice(0.1), FakeDevice(0.3, discloses="nothing")]
    reason = finish(VirtualRun(make_task(scheme="equal", passes=None), silent).run()).reason
    assert reason.startswith("scheme equal needs from each learner: train_s, ship_s")
    assert reason.endswith("use scheme equal with passes")
    assert finish(VirtualRun(make_task(scheme="equal"), silent).run()).outcome == "done"


@pytest.mark.parametrize("scheme", ["equal", "proportional"])
def test_a_learner_too_slow_for_one_pass_is_measured_again_each_cycle(
    scheme: str,
) -> None:
    slow = FakeDevice(9.9)
    play = VirtualRun(
        make_task(scheme=scheme, passes=None, cycles=4), [FakeDevice(0.1), FakeDevice(0.2), slow]
    )

    def faster(event: events.Event) -> list[events.Event]:
        if isinstance(event, events.Aggregated):
            slow.train_s = 0.3
        return [event]

    play.intercept = faster
    trace = play.run()
    first, *_, last = commands_in(trace, commands.Dispatch)
    assert (first.learners.tolist(), first.no_pass.tolist()) == ([0, 1], [2])
    assert (last.learners.tolist(), last.no_pass.tolist()) == ([0, 1, 2], [])


def test_a_deadline_by_which_no_learner_can_make_one_pass_is_refused() -> None:
    end = finish(VirtualRun(make_task(scheme="equal", passes=None, deadline_s=0.5), FLEET).run())
    assert end.outcome == "failed"
    assert end.reason.startswith("deadline_s = 0.5 is too short: none of the")


def test_nothing_can_happen_before_a_task() -> None:
    with pytest.raises(MelismaError, match="before any task"):
        CycleMachine().handle(events.TimeReached(at_s=0.0))


def test_in_federated_learning_data_stays_where_it_is() -> None:
    fleet = [FakeDevice(0.1, local_shards=4), FakeDevice(0.3, local_shards=6)]
    trace = VirtualRun(make_task(mode="federated"), fleet).run()
    for dispatch in commands_in(trace, commands.Dispatch):
        assert [shards.max() < own for shards, own in zip(dispatch.shards, (4, 6), strict=True)]
        assert [len(set(shards.tolist())) for shards in dispatch.shards] == [4, 6]


def test_what_a_learner_holds_it_gets_again() -> None:
    trace = VirtualRun(of_scheme("proportional", cycles=4), FLEET).run()
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
def test_whatever_is_lost_or_repeated_each_assignment_counts_at_most_once(
    speeds: list[float], scheme: str, lost: list[int], doubled: list[int]
) -> None:
    heard = 0

    def change(event: events.Event) -> list[events.Event]:
        nonlocal heard
        if not isinstance(
            event, events.UpdatesReceived | events.BoundsReported | events.EstimatesReported
        ):
            return [event]
        heard += 1
        if heard in lost and isinstance(event, events.UpdatesReceived):
            return []
        return [event, event] if heard in doubled else [event]

    play = VirtualRun(of_scheme(scheme, cycles=4), [FakeDevice(s) for s in speeds], change)
    trace = play.run()
    assert finish(trace).outcome in ("done", "failed")
    given_out = {
        (d.cycle, learner): shards.size * SHARD_SAMPLES
        for d in commands_in(trace, commands.Dispatch)
        for learner, shards in zip(d.learners.tolist(), d.shards, strict=True)
    }
    for aggregate in commands_in(trace, commands.Aggregate):
        assert len(set(aggregate.learners.tolist())) == aggregate.learners.size
        for learner, weight in zip(aggregate.learners.tolist(), aggregate.weights, strict=True):
            assert 0 < weight <= given_out[aggregate.cycle, learner]
    assert not (play.machine.state.learners.work == WorkStatus.ASSIGNED).any()


def test_the_same_play_gives_the_same_trace_byte_for_byte() -> None:
    one, other = (VirtualRun(of_scheme("staleness"), FLEET).run() for _ in range(2))
    assert b"".join(map(encode_step, one)) == b"".join(map(encode_step, other))
