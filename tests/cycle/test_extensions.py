"""Given these events within a cycle, expect these extensions, late updates and closings."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.cycle import commands, events
from melisma.cycle.late_work import MAX_LATE_CYCLES
from melisma.cycle.ragged import RaggedArray
from melisma.testing import ScriptedMachine, make_task
from tests.lanes import cases

RULES: dict[str, Any] = {"extension": True, "quorum": 0.8, "late": "carry"}
DEADLINE_S = 10.0


def script_of(bounds: dict[str, int], **settings: Any) -> ScriptedMachine:
    """Return a machine whose first cycle began at 0 with these shards for each learner."""
    script = ScriptedMachine(make_task(**(RULES | {"cycles": 9} | settings)), list(bounds))
    script.join(0.0)
    script.report_bounds(0.0, bounds)
    return script


def only(issued: list[Any], kind: type) -> Any:
    (command,) = [each for each in issued if isinstance(each, kind)]
    return command


def of_kind(issued: list[Any], kind: type) -> list[Any]:
    return [each for each in issued if isinstance(each, kind)]


def dispatched(script: ScriptedMachine) -> dict[str, list[int]]:
    """Return the shards of the latest dispatch by learner."""
    command = [c for step in script.trace for c in of_kind(step.commands, commands.Dispatch)][-1]
    names = [script.names[learner] for learner in command.learners.tolist()]
    return dict(zip(names, (row.tolist() for row in command.shards), strict=True))


def next_cycle(script: ScriptedMachine, at_s: float, bounds: dict[str, int]) -> list[Any]:
    script.aggregate(at_s)
    script.evaluate(at_s)
    return script.report_bounds(at_s, bounds)


def test_a_request_is_answered_from_shards_that_were_not_dealt() -> None:
    script = script_of({"a": 4, "b": 5})
    given = dispatched(script)
    extend = only(script.request(3.0, {"a": 3}), commands.Extend)
    (shards,) = extend.shards
    assert (extend.learners.tolist(), extend.attempts.tolist()) == ([0], [2])
    assert extend.passes.tolist() == [2]
    assert shards.size == 3
    assert not set(shards.tolist()) & {*given["a"], *given["b"]}
    assert extend.handed_on.size == 0


def test_shards_of_a_learner_that_left_are_handed_on_before_others() -> None:
    script = script_of({"a": 4, "b": 5, "c": 1})
    given = dispatched(script)
    script.leave(2.0, "b")
    extend = only(script.request(3.0, {"a": 7}), commands.Extend)
    (shards,) = extend.shards
    assert sorted(extend.handed_on.tolist()) == sorted(given["b"])
    assert set(shards[:5].tolist()) == set(given["b"])
    assert shards.size == 7


def test_shards_are_handed_on_to_learners_that_hold_them() -> None:
    """First `a` and `b` train 5 shards each; in the third cycle `c` is given most of them."""
    script = script_of({"a": 5, "b": 5, "c": 0})
    held = dispatched(script)
    script.update(9.0, {"a": 100, "b": 100})
    next_cycle(script, 10.0, {"a": 5, "b": 5, "c": 0})
    script.update(19.0, {"a": 100, "b": 100})
    next_cycle(script, 20.0, {"a": 1, "b": 1, "c": 10})
    given = dispatched(script)
    script.leave(22.0, "c")
    extend = only(script.request(23.0, {"a": 3, "b": 3}), commands.Extend)
    for name, shards in zip("ab", extend.shards, strict=True):
        available = set(held[name]) & set(given["c"])
        assert len(available) >= 3
        assert set(shards.tolist()) <= available


@pytest.mark.parametrize("how", ["leave", "release", "refuse", "restart", "empty update"])
def test_a_request_that_is_not_met_is_answered_when_shards_come_back(how: str) -> None:
    script = script_of({"a": 10, "b": 10})
    assert script.request(3.0, {"a": 4}) == []
    shards = dispatched(script)["b"]
    if how == "leave":
        issued = script.leave(4.0, "b")
    elif how == "release":
        issued = script.release(4.0, {"b": shards[6:]})
    elif how == "restart":
        issued = script.join(4.0, "b")
    else:
        refused = "not finite" if how == "refuse" else ""
        issued = script.update(4.0, {"b": 200 if refused else 0}, refused)
    extend = only(issued, commands.Extend)
    assert extend.learners.tolist() == [0]
    assert set(extend.shards.values.tolist()) == set(extend.handed_on.tolist())
    assert set(extend.handed_on.tolist()) <= set(shards)
    assert extend.shards.counts.tolist() == [4]


def test_a_learner_never_gets_back_a_shard_that_it_had() -> None:
    script = script_of({"a": 10, "b": 10})
    released = dispatched(script)["b"][7:]
    script.release(3.0, {"b": released})
    assert script.request(4.0, {"b": 3}) == []
    extend = only(script.request(5.0, {"a": 3}), commands.Extend)
    assert sorted(extend.shards.values.tolist()) == sorted(released)


def test_a_shard_that_one_learner_had_goes_to_another_that_asks() -> None:
    script = script_of({"a": 10, "b": 10})
    released = dispatched(script)["a"][8:]
    script.request(3.0, {"a": 2, "b": 2})
    extend = only(script.release(4.0, {"a": released}), commands.Extend)
    assert extend.learners.tolist() == [1]
    assert sorted(extend.shards.values.tolist()) == sorted(released)


def test_an_update_without_its_last_extension_gives_the_shards_back() -> None:
    script = script_of({"a": 8, "b": 8})
    extend = only(script.request(3.0, {"a": 4}), commands.Extend)
    script.request(4.0, {"b": 2})
    unused = extend.shards.values.tolist()
    again = only(script.update(9.0, {"a": 160}, attempt=1), commands.Extend)
    assert set(again.handed_on.tolist()) <= set(unused)
    assert script.machine.state.learners.weights(np.array([0])).tolist() == [80.0]


def test_unused_shards_return_to_the_deck_and_are_dealt_first_in_the_next_cycle() -> None:
    script = script_of({"a": 6, "b": 6})
    extend = only(script.request(3.0, {"a": 3}), commands.Extend)
    script.update(9.0, {"a": 120}, attempt=1)
    script.update(9.5, {"b": 120})
    next_cycle(script, 10.0, {"a": 2, "b": 2})
    given = dispatched(script)
    assert set(extend.shards.values.tolist()) <= {*given["a"], *given["b"]}


def test_shards_that_come_back_are_not_dealt_twice_in_a_cycle() -> None:
    """All 20 shards are dealt; one that comes back lies ahead of the next position."""
    script = script_of({"a": 10, "b": 10})
    script.leave(1.0, "b")
    script.update(9.0, {"a": 200})
    script.join(9.1, "b")
    next_cycle(script, 10.0, {"a": 7, "b": 6})
    given = dispatched(script)
    extend = only(script.request(12.0, {"a": 7}), commands.Extend)
    assert not set(extend.shards.values.tolist()) & {*given["a"], *given["b"]}


def test_work_that_is_dropped_returns_to_the_deck() -> None:
    script = script_of({"a": 8, "b": 4}, late="drop")
    lost = dispatched(script)["b"]
    script.update(9.0, {"a": 160})
    issued = script.reach(DEADLINE_S)
    issued = issued if of_kind(issued, commands.Aggregate) else script.reach(11.0)
    assert only(issued, commands.Withdraw).learners.tolist() == [1]
    next_cycle(script, 12.0, {"a": 4, "b": 2})
    given = dispatched(script)
    assert set(lost) <= {*given["a"], *given["b"]}


def test_extensions_keep_to_max_shards() -> None:
    script = script_of({"a": 4, "b": 4}, max_shards=6)
    extend = only(script.request(3.0, {"a": 9}), commands.Extend)
    assert extend.shards.counts.tolist() == [2]
    assert script.request(4.0, {"a": 9}) == []


def test_in_federated_learning_a_learner_is_given_further_shards_of_its_own() -> None:
    task = make_task(**RULES, mode="federated", cycles=2)
    script = ScriptedMachine(task, ["a"])
    script.send(
        events.LearnersJoined(
            at_s=0.0,
            learners=np.array([0]),
            names=("a",),
            discloses=("costs",),
            local_shard_samples=RaggedArray.from_rows([np.full(8, 10)]),
        )
    )
    script.report_bounds(0.0, {"a": 5})
    given = dispatched(script)["a"]
    (shards,) = only(script.request(3.0, {"a": 6}), commands.Extend).shards
    assert sorted([*given, *shards.tolist()]) == list(range(8))
    aggregate = only(script.update(9.0, {"a": 100}, attempt=1), commands.Aggregate)
    assert aggregate.weights.tolist() == [50.0]


@pytest.mark.parametrize("late", [False, True])
def test_in_federated_learning_an_extension_that_crosses_an_upload_comes_next(late: bool) -> None:
    """Learner `a` has 8 shards and trains 3; an extension by 2 arrives when it uploads."""
    script = ScriptedMachine(make_task(**RULES, mode="federated", cycles=3), ["a", "b"])
    script.send(
        events.LearnersJoined(
            at_s=0.0,
            learners=np.array([0, 1]),
            names=("a", "b"),
            discloses=("costs", "costs"),
            local_shard_samples=RaggedArray.from_rows([np.full(8, 10), np.full(100, 10)]),
        )
    )
    script.report_bounds(0.0, {"a": 3, "b": 50})
    given = dispatched(script)["a"]
    (unused,) = only(script.request(3.0, {"a": 2}), commands.Extend).shards
    script.update(9.0, {"b": 1000})
    if late:
        script.reach(DEADLINE_S)
    script.update(10.0, {"a": 60}, cycle=1, attempt=1)
    next_cycle(script, 12.0, {"a": 4, "b": 50})
    again = dispatched(script)["a"]
    assert again[:2] == unused.tolist()
    assert not set(again) & set(given)
    more = only(script.request(13.0, {"a": 9}), commands.Extend).shards.values.tolist()
    assert sorted([*again, *more]) == list(range(8))


def test_without_extension_requests_and_releases_change_nothing() -> None:
    script = script_of({"a": 4, "b": 5}, extension=False)
    assert script.request(3.0, {"a": 3}) == []
    assert script.release(3.0, {"b": dispatched(script)["b"]}) == []
    assert script.machine.state.learners.samples.tolist() == [40, 50]


def test_from_the_deadline_on_a_cycle_closes_with_the_quorum() -> None:
    script = script_of({"a": 16, "b": 4})
    assert script.update(9.0, {"a": 320}) == []
    aggregate = only(script.reach(DEADLINE_S), commands.Aggregate)
    assert aggregate.learners.tolist() == [0]
    assert aggregate.reason == "the deadline has passed"


def test_below_the_quorum_a_cycle_waits_for_the_tail() -> None:
    script = script_of({"a": 8, "b": 4})
    script.update(9.0, {"a": 160})
    wake = only(script.reach(DEADLINE_S), commands.Wake)
    assert wake.at_s == pytest.approx(DEADLINE_S * 1.1)
    assert only(script.reach(wake.at_s), commands.Aggregate).learners.tolist() == [0]


def test_empty_updates_do_not_bring_the_quorum() -> None:
    script = script_of({"a": 16, "b": 2, "c": 2}, extension=False)
    script.update(8.0, {"a": 0})
    script.update(9.0, {"b": 40})
    assert only(script.reach(DEADLINE_S), commands.Wake).at_s == pytest.approx(DEADLINE_S * 1.1)


def test_below_the_quorum_a_cycle_closes_when_an_update_brings_it() -> None:
    script = script_of({"a": 8, "b": 8, "c": 4})
    script.update(9.0, {"a": 160})
    script.reach(DEADLINE_S)
    aggregate = only(script.update(10.5, {"b": 160}), commands.Aggregate)
    assert aggregate.learners.tolist() == [0, 1]


def carry(script: ScriptedMachine, cycles: int) -> tuple[list[Any], float]:
    """Let `b` be late for `cycles` cycles; return the commands after its update, and the time."""
    now_s = DEADLINE_S
    script.update(now_s - 1, {"a": 320})
    script.reach(now_s)
    for _ in range(cycles - 1):
        next_cycle(script, now_s, {"a": 4})
        # With extension the machine waits a little for learner b.
        script.reach(now_s + 1)
        now_s += 20
        script.update(now_s - 10, {"a": 80})
    next_cycle(script, now_s, {"a": 4})
    script.reach(now_s + 1)
    return script.update(now_s + 2, {"b": 80}, cycle=1, attempt=1), now_s + 2


@pytest.mark.parametrize("cycles", range(1, MAX_LATE_CYCLES + 1))
def test_a_late_update_is_carried_once_with_a_discount(cycles: int) -> None:
    script = script_of({"a": 16, "b": 4})
    issued, now_s = carry(script, cycles)
    assert issued == []
    again = only(script.update(now_s, {"b": 80}, cycle=1, attempt=1), commands.Withdraw)
    assert again.learners.tolist() == [1]
    late = only(script.update(now_s + 1, {"a": 80}), commands.Aggregate).late
    assert (late.learners.tolist(), late.cycles.tolist()) == ([1], [1])
    assert late.weights.tolist() == [40 / (1 + cycles)]
    next_cycle(script, now_s + 2, {"a": 4})
    script.reach(now_s + 5)
    assert only(script.update(now_s + 6, {"a": 80}), commands.Aggregate).late.learners.size == 0


def test_an_update_that_is_late_for_too_many_cycles_is_withdrawn() -> None:
    script = script_of({"a": 16, "b": 4})
    issued, _ = carry(script, MAX_LATE_CYCLES + 1)
    assert only(issued, commands.Withdraw).cycle == 1
    withdrawn = [c for step in script.trace for c in of_kind(step.commands, commands.Withdraw)]
    assert withdrawn[0].reason == f"late for more than {MAX_LATE_CYCLES} cycles"


def test_a_late_update_without_its_extension_weighs_less_and_gives_shards_back() -> None:
    script = script_of({"a": 12, "b": 2})
    extend = only(script.request(3.0, {"b": 2}), commands.Extend)
    script.release(4.0, {"b": extend.shards.values[:1].tolist()})
    script.update(9.0, {"a": 240})
    script.reach(DEADLINE_S)
    script.update(DEADLINE_S + 1, {"b": 40}, cycle=1, attempt=1)
    assert script.machine.state.carried[0].weights.tolist() == [20.0]
    next_cycle(script, 12.0, {"a": 4, "b": 4})
    given = dispatched(script)
    assert set(extend.shards.values.tolist()) <= {*given["a"], *given["b"]}


def test_a_later_update_that_is_late_too_overtakes_the_first() -> None:
    script = script_of({"a": 16, "b": 4})
    script.update(9.0, {"a": 320})
    script.reach(DEADLINE_S)
    next_cycle(script, 10.0, {"a": 16, "b": 4})
    script.update(19.0, {"a": 320})
    withdrawn = only(script.reach(20.0), commands.Withdraw)
    assert (withdrawn.learners.tolist(), withdrawn.cycle) == ([1], 1)
    assert "later update" in withdrawn.reason
    assert script.update(20.5, {"b": 80}, cycle=2, attempt=1) == []


def lose_late_work(script: ScriptedMachine, how: str, shards: int = 1) -> None:
    """Let the late work of `b`, of cycle 1, be lost; `a` gets `shards` in each later cycle."""
    script.update(9.0, {"a": 240})
    script.reach(DEADLINE_S)
    if how == "overdue":
        for cycle in range(2, MAX_LATE_CYCLES + 2):
            next_cycle(script, 20.0 * cycle, {"a": shards})
            script.reach(20.0 * cycle + 1)
            script.update(20.0 * cycle + 9, {"a": 20 * shards})
        script.aggregate(99.0)
        script.evaluate(99.0)
    elif how == "overtaken":
        next_cycle(script, 10.0, {"a": 2, "b": 1})
        script.update(19.0, {"a": 40})
        script.reach(21.0)
    elif how == "leave":
        script.leave(11.0, "b")
    elif how == "restart":
        script.join(11.0, "b")
    else:
        refused = "not finite" if how == "refused" else ""
        script.update(11.0, {"b": 60 if refused else 0}, refused, cycle=1, attempt=1)


@pytest.mark.parametrize("how", ["overtaken", "overdue", "leave", "restart", "refused", "empty"])
def test_late_work_that_is_lost_returns_to_the_deck_at_once(how: str) -> None:
    script = script_of({"a": 12, "b": 3})
    lost = dispatched(script)["b"]
    lose_late_work(script, how)
    deck = script.machine.state.deck
    assert sorted(deck.shards[deck.returned].tolist()) == sorted(lost)


def test_late_work_that_was_dealt_again_since_does_not_return() -> None:
    script = script_of({"a": 12, "b": 3})
    lose_late_work(script, "overdue", shards=8)
    assert script.machine.state.deck.returned.size == 0


@pytest.mark.parametrize("change", ["leave", "join"])
def test_the_late_work_of_a_learner_that_left_or_restarted_is_lost(change: str) -> None:
    script = script_of({"a": 16, "b": 4})
    script.update(9.0, {"a": 320})
    script.reach(DEADLINE_S)
    getattr(script, change)(11.0, "b")
    assert only(script.update(12.0, {"b": 80}, cycle=1, attempt=1), commands.Withdraw)
    assert script.machine.state.carried == []


def test_with_drop_late_work_is_withdrawn() -> None:
    script = script_of({"a": 16, "b": 4}, late="drop")
    script.update(9.0, {"a": 320})
    issued = script.reach(DEADLINE_S)
    assert only(issued, commands.Withdraw).learners.tolist() == [1]
    assert only(script.update(10.5, {"b": 80}, cycle=1, attempt=1), commands.Withdraw)


def test_a_late_joiner_gets_the_seconds_that_are_left() -> None:
    script = ScriptedMachine(make_task(**RULES), ["a", "b"])
    script.join(0.0)
    script.report_bounds(0.0, {"a": 6})
    begun = only(script.reach(2.0), commands.Dispatch)
    assert begun.learners.tolist() == [0]
    joined = only(script.report_bounds(3.0, {"b": 10}), commands.Dispatch)
    assert joined.learners.tolist() == [1]
    assert joined.cycle == begun.cycle
    assert joined.seconds_left == pytest.approx(begun.seconds_left - 1.0)
    assert joined.shards.counts.tolist() == [9]
    assert not set(joined.shards.values.tolist()) & set(begun.shards.values.tolist())


def test_a_learner_that_is_ready_too_late_waits_for_the_next_cycle() -> None:
    script = ScriptedMachine(make_task(**RULES), ["a", "b"])
    script.join(0.0)
    script.report_bounds(0.0, {"a": 6})
    script.reach(2.0)
    assert script.report_bounds(10.5, {"b": 10}) == []


def test_a_late_joiner_is_handed_on_shards_without_copies_of_them() -> None:
    script = ScriptedMachine(make_task(**RULES), ["a", "b", "c"])
    script.join(0.0)
    script.report_bounds(0.0, {"a": 10, "b": 10})
    script.reach(2.0)
    lost = dispatched(script)["b"]
    script.leave(2.0, "b")
    (shards,) = only(script.report_bounds(2.0, {"c": 20}), commands.Dispatch).shards
    assert np.unique(shards).size == shards.size
    assert set(lost) <= set(shards.tolist())


def test_a_late_joiner_trains_copies_if_all_shards_are_with_others() -> None:
    script = ScriptedMachine(make_task(**RULES, scheme="proportional"), ["a", "b"])
    script.join(0.0)
    script.report_costs(0.0, "a", 0.1)
    (given,) = only(script.reach(2.0), commands.Dispatch).shards
    joined = only(script.report_costs(3.0, "b", 0.1), commands.Dispatch)
    assert set(given.tolist()) == set(range(script.machine.state.shard_samples.size))
    assert joined.learners.tolist() == [1]
    assert joined.shards.counts[0] > 0


@pytest.mark.parametrize(("cycle", "begins_s"), [(1, 1.7), (2, 0.7)])
def test_a_cycle_begins_a_little_after_the_first_learner_is_ready(
    cycle: int, begins_s: float
) -> None:
    """In the first cycle, a little after the time that a benchmark may take."""
    script = ScriptedMachine(make_task(**RULES), ["a", "b"])
    script.join(0.0)
    now_s = 0.0
    if cycle == 2:
        script.report_bounds(0.0, {"a": 16, "b": 4})
        script.update(9.0, {"a": 320})
        script.update(9.0, {"b": 80})
        script.aggregate(now_s := 9.0)
        script.evaluate(now_s)
    wake = only(script.report_bounds(now_s + 0.5, {"a": 6}), commands.Wake)
    assert wake.at_s == pytest.approx(now_s + begins_s)
    assert only(script.reach(wake.at_s), commands.Dispatch).learners.tolist() == [0]


@settings(max_examples=cases(200), deadline=None)
@given(st.data())
def test_no_shard_is_trained_by_two_learners_or_lost(data: st.DataObject) -> None:
    """Whatever the order of requests, releases, departures and updates: each shard once."""
    names = ["a", "b", "c", "d"]
    bounds = {name: data.draw(st.integers(1, 5)) for name in names}
    script = script_of(bounds)
    state = script.machine.state
    active, now_s = set(names), 1.0
    for _ in range(data.draw(st.integers(1, 12))):
        if not active or state.cycle > 1 or str(state.stage) != "training":
            break
        name = data.draw(st.sampled_from(sorted(active)))
        number, now_s = names.index(name), now_s + 0.5
        kind = data.draw(st.sampled_from(["request", "release", "leave", "update", "early"]))
        mine = state.deck.shards[state.given.between(number, number + 1)[1]].tolist()
        if kind == "request":
            script.request(now_s, {name: data.draw(st.integers(1, 6))})
        elif kind == "release" and mine:
            script.release(now_s, {name: data.draw(st.lists(st.sampled_from(mine), unique=True))})
        elif kind == "leave" and len(active) > 1:
            script.leave(now_s, name)
            active.remove(name)
        elif kind in ("update", "early"):
            attempt = 1 if kind == "early" else None
            script.update(now_s, {name: 20}, attempt=attempt)
            active.remove(name)
        owners, positions = state.given.between(0, len(names))
        assert np.unique(positions).size == positions.size
        assert not np.isin(positions, state.to_hand_on).any()
        assert sorted([*positions, *state.to_hand_on]) == np.flatnonzero(state.dealt).tolist()
        counts = np.bincount(owners, minlength=len(names))
        assert counts.tolist() == state.learners.shards.tolist()
        assert (state.learners.samples == 10 * counts).all()


def test_an_update_that_arrived_before_the_deadline_closes_the_cycle_after_it() -> None:
    """It may have been written to disk while the deadline passed."""
    script = script_of({"a": 8, "b": 1})
    assert only(script.reach(DEADLINE_S), commands.Wake)
    assert only(script.update(DEADLINE_S - 0.1, {"a": 160}), commands.Aggregate)


def test_further_passes_over_a_few_shards_add_no_weight() -> None:
    script = script_of({"a": 10, "b": 1})
    learners, visits = np.array([0]), np.array([400])
    script.send(
        events.UpdatesReceived(
            at_s=9.0,
            learners=learners,
            cycle=1,
            attempts=np.array([1]),
            visits=visits,
            shipped=np.array([2]),
            loss=np.array([0.5]),
            phases=np.zeros((1, 6)),
            planned_visits=np.array([40]),
        )
    )
    assert script.machine.state.learners.weights(learners).tolist() == [20.0]
    assert script.machine.state.learners.held.pairs.size == 2


def test_late_updates_alone_make_no_empty_cycle() -> None:
    script = script_of({"a": 8, "b": 2})
    script.update(9.0, {"a": 160})
    script.reach(DEADLINE_S)
    script.update(10.5, {"b": 40}, cycle=1)
    script.aggregate(11.0)
    script.evaluate(11.0)
    issued = script.report_bounds(11.0, {"a": 0, "b": 0})
    aggregate = only(issued, commands.Aggregate)
    assert aggregate.late.learners.tolist() == [1]
    assert script.machine.state.empty_cycles == 0


def test_a_learner_that_joins_while_others_are_asked_is_asked_too() -> None:
    script = ScriptedMachine(make_task(**RULES), ["a", "b", "c"])
    script.join(0.0)
    script.leave(0.1, "c")
    asked = only(script.join(0.2, "c"), commands.AskBound)
    assert asked.learners.tolist() == [2]
