"""A machine by hand: given these events, expect these commands."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from melisma.peer import commands, messages, notices
from melisma.peer.algorithms import AetSgd, Algorithm, EventTriggeredSgd, GossipSgd, LocalSgd
from melisma.peer.node import Node
from tests.peer.tiny_nodes import (
    INITIAL,
    accepted,
    compute,
    hello,
    new_node,
    of,
    sent,
    start,
    started,
    to_bytes,
    update,
)

PUBLIC: list[Algorithm] = [EventTriggeredSgd(), GossipSgd(learning_rate=1.0, decay=0.0)]


# Meeting.


def test_it_greets_everybody_and_begins_when_all_have_answered() -> None:
    node = new_node(neighbours=("b", "c"))
    said = node.start(0.0)
    assert [each.to for each in of(said, commands.Send)] == ["b", "c"]
    assert all(message.degree == 2 for message in sent(said, messages.Hello))
    assert not of(node.on_message(0.1, accepted("b")), notices.TrainingStarted)
    said = node.on_message(0.2, accepted("c"))
    assert of(said, notices.TrainingStarted) == [
        notices.TrainingStarted(model_from="", updates_done=0)
    ]
    assert [each.to for each in of(said, commands.Send)] == ["b", "c"]
    assert of(said, commands.TakeSteps) == [
        commands.TakeSteps(number=1, steps=3, learning_rate=1.0)
    ]


def test_one_without_neighbours_begins_at_once() -> None:
    said = new_node(neighbours=()).start(0.0)
    assert of(said, notices.TrainingStarted)
    assert of(said, commands.TakeSteps)


def test_who_does_not_answer_is_given_up_when_patience_is_over_and_looked_for() -> None:
    node = new_node(neighbours=("b", "c"))
    assert of(node.start(0.0), commands.Wake) == [commands.Wake(at_s=10.0)]
    node.on_message(0.2, accepted("b"))
    said = node.on_wake(10.0)
    assert of(said, notices.NeighbourLost) == [notices.NeighbourLost(name="c", alone=False)]
    assert of(said, commands.TakeSteps)
    said = node.on_wake(20.0)
    assert [each.sender for each in sent(said, messages.Hello)] == ["a"]
    assert [each.to for each in of(said, commands.Send)] == ["b", "c"]
    assert sent(said, messages.Heartbeat)


def test_when_the_last_neighbour_is_gone_it_says_so_and_goes_on() -> None:
    node = start(new_node(neighbours=("b", "c")))
    assert of(node.on_unreachable(1.0, "b"), notices.NeighbourLost) == [
        notices.NeighbourLost(name="b", alone=False)
    ]
    assert of(node.on_unreachable(2.0, "c"), notices.NeighbourLost) == [
        notices.NeighbourLost(name="c", alone=True)
    ]
    assert node.on_unreachable(3.0, "c") == []
    for _ in range(9):
        said = compute(node)
        assert not of(said, commands.Send)
        assert of(said, commands.TakeSteps)
    assert of(compute(node), commands.Finish) == [commands.Finish()]


def test_different_models_are_refused_by_what_both_ends_have() -> None:
    node = new_node(neighbours=("b", "c"))
    node.start(0.0)
    said = node.on_message(0.1, hello("b", model="lenet"))
    words = "model here is a line of 4 parameters, there lenet"
    assert of(said, notices.MessageRejected)[0].reason == f"cannot be a neighbour: {words}"
    (refusal,) = sent(said, messages.Rejected)
    assert (refusal.to_incarnation, refusal.reason) == ("1", words)
    # The rest goes on.
    said = node.on_message(0.2, accepted("c"))
    assert of(said, commands.TakeSteps)
    assert [each.to for each in of(compute(node), commands.Send)] == ["c"]


def test_who_is_refused_by_all_ends_with_the_reason() -> None:
    node = new_node(neighbours=("b", "c"))
    node.start(0.0)
    why = "model here is x, there y"
    said = node.on_message(
        0.1, messages.Rejected(sender="b", incarnation="1", to_incarnation="1", reason=why)
    )
    assert of(said, notices.MessageRejected)[0].reason == f"rejected this node: {why}"
    assert not of(said, commands.Finish)
    said = node.on_message(
        0.1, messages.Rejected(sender="c", incarnation="1", to_incarnation="1", reason=why)
    )
    assert of(said, commands.Finish) == [commands.Finish(reason=f"c rejected this node: {why}")]
    assert node.on_wake(10.0) == []


def test_a_refusal_for_a_former_life_is_none() -> None:
    node = start(new_node())
    assert (
        node.on_message(
            0.1, messages.Rejected(sender="b", incarnation="1", to_incarnation="0", reason="old")
        )
        == []
    )
    assert compute(node)


def test_a_stranger_is_heard_only_when_it_greets() -> None:
    node = start(new_node())
    assert node.on_message(1.0, messages.Heartbeat(sender="x", incarnation="1")) == []
    assert "x" not in node.neighbours
    said = node.on_message(1.0, hello("x"))
    assert of(said, notices.NeighbourJoined) == [
        notices.NeighbourJoined(name="x", incarnation="1", assumed_updates=0)
    ]
    assert node.neighbours["x"].reachable


def test_a_newcomer_is_offered_the_model_as_it_is_and_is_not_waited_for_until_it_trains() -> None:
    node = start(new_node(LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3, max_lag=0)))
    compute(node, gradient=1)
    node.on_message(1.5, update(1, 0))
    said = node.on_message(2.0, hello("x"))
    (offer,) = sent(said, messages.Accepted)
    assert (offer.training, offer.updates_done, offer.steps, offer.to_incarnation) == (
        True,
        1,
        3,
        "1",
    )
    assert np.array_equal(np.frombuffer(offer.model, np.float32), INITIAL - 1)
    compute(node)
    assert node.computing is None
    said = node.on_message(3.0, update(2, 0))
    assert not of(said, commands.TakeSteps), (
        "the newcomer was at level 1, and is waited for from there on"
    )
    said = node.on_message(3.1, started("x", done=2))
    assert of(said, commands.TakeSteps)


def test_who_was_there_when_it_began_is_offered_no_model() -> None:
    """Its greeting is late; it has every update from the first one on, and skips no round."""
    node = start(new_node())
    compute(node, gradient=1)
    (answer,) = sent(node.on_message(2.0, hello("b")), messages.Accepted)
    assert (answer.training, answer.model) == (False, b"")
    # Unless it was given up in between: it may have missed something.
    node.on_unreachable(3.0, "b")
    said = node.on_message(4.0, hello("b"))
    (answer,) = sent(said, messages.Accepted)
    assert answer.model == to_bytes(INITIAL - 1)
    assert [each.updates_done for each in sent(said, messages.Started)] == [1]


def test_a_newcomer_that_was_gone_for_a_while_is_still_at_its_level() -> None:
    node = start(new_node(LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3, max_lag=5)))
    compute(node)
    node.on_message(2.0, hello("x"))
    node.on_unreachable(3.0, "x")
    said = node.on_message(4.0, messages.Heartbeat(sender="x", incarnation="1"))
    assert of(said, notices.NeighbourJoined) == [
        notices.NeighbourJoined(name="x", incarnation="1", assumed_updates=1)
    ]
    assert node.neighbours["x"].progress == 1


# Coming back.


def test_who_comes_back_goes_on_from_the_neighbour_that_is_farthest() -> None:
    node = new_node(
        AetSgd(learning_rate=1.0, decay=0.0, gain=1.0, growth=3.0),
        neighbours=("b", "c"),
        iterations=60,
    )
    node.start(0.0)
    node.on_message(0.1, accepted("b", done=2, steps=9, model=INITIAL + 1))
    said = node.on_message(0.2, accepted("c", done=3, steps=18, model=INITIAL + 2))
    assert of(said, notices.TrainingStarted) == [
        notices.TrainingStarted(model_from="c", updates_done=3)
    ]
    assert np.array_equal(node.model.vector, INITIAL + 2)
    assert (node.update_number, node.steps) == (3, 18)
    assert of(said, commands.TakeSteps) == [
        commands.TakeSteps(number=4, steps=12, learning_rate=1.0)
    ]
    assert [each.updates_done for each in sent(said, messages.Started)] == [3, 3]
    # Updates that the offer has in it do not count, nor are they waited for.
    assert not of(node.on_message(0.3, update(2, 5, sender="c")), notices.UpdateApplied)
    assert of(node.on_message(0.3, update(4, 5, sender="c")), notices.UpdateApplied)
    assert np.array_equal(node.model.vector, INITIAL - 3)


def test_with_another_share_the_round_is_the_same_and_the_steps_are_its_own() -> None:
    node = new_node(
        AetSgd(learning_rate=1.0, decay=0.0, gain=1.0, growth=10.0, share=0.5), iterations=1000
    )
    node.start(0.0)
    node.on_message(0.1, accepted("b", done=4, steps=100, model=INITIAL))
    assert (node.update_number, node.steps) == (4, 50)


def test_a_model_on_which_nobody_has_trained_is_not_said_to_be_taken_over() -> None:
    node = new_node()
    node.start(0.0)
    said = node.on_message(0.1, accepted("b", done=0, steps=0, model=INITIAL))
    assert of(said, notices.TrainingStarted) == [
        notices.TrainingStarted(model_from="", updates_done=0)
    ]


def test_what_came_before_an_offer_that_has_it_in_it_is_not_applied_again() -> None:
    """A greeting came twice: the second answer overtakes the first node and an update between."""
    node = new_node(neighbours=("b", "c"))
    node.start(0.0)
    assert not of(node.on_message(0.1, update(6, 5)), notices.UpdateApplied)
    node.on_message(0.2, accepted("b", done=7, steps=21, model=INITIAL + 7))
    assert not of(
        node.on_message(0.2, accepted("b", done=5, steps=15, model=INITIAL + 5)),
        notices.UpdateApplied,
    )
    node.on_message(0.3, update(8, 1))
    said = node.on_message(0.4, accepted("c"))
    assert [each.number for each in of(said, notices.UpdateApplied)] == [8]
    assert np.array_equal(node.model.vector, INITIAL + 7 - 1)


def test_nor_if_the_neighbour_had_said_that_it_began() -> None:
    node = new_node(neighbours=("b", "c"))
    node.start(0.0)
    node.on_message(0.1, started("b", done=0))
    for number in (1, 2, 3):
        node.on_message(0.1, update(number, 5))
    node.on_message(0.2, accepted("b", done=2, steps=6, model=INITIAL - 10))
    node.on_message(0.3, accepted("c"))
    assert np.array_equal(node.model.vector, INITIAL - 15)
    assert node.neighbours["b"].received == 3


def test_a_late_greeting_of_one_that_was_given_up_counts_it_in_from_here() -> None:
    """It has answered long ago: that it missed something is not in a second answer."""
    node = start(new_node(LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3, max_lag=5)))
    node.on_unreachable(1.0, "b")
    compute(node)
    said = node.on_message(2.0, hello("b"))
    assert [each.updates_done for each in sent(said, messages.Started)] == [1]
    assert of(said, notices.NeighbourReady)
    assert [each.number for each in sent(compute(node), messages.Update)] == [2]


def test_who_is_found_again_is_told_that_there_will_be_no_more() -> None:
    node = start(new_node(neighbours=("b", "c"), iterations=3))
    node.on_unreachable(0.5, "b")
    assert [each.to for each in of(compute(node), commands.Send)] == ["c", "c"]
    said = node.on_message(2.0, messages.Heartbeat(sender="b", incarnation="1"))
    assert [each.updates_done for each in sent(said, messages.Started)] == [1]
    assert [each.last_update for each in sent(said, messages.Goodbye)] == [1]


def test_a_new_life_that_is_heard_before_it_greets_is_greeted() -> None:
    node = start(new_node(LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3, max_lag=0)))
    said = node.on_message(1.0, started("b", incarnation="2", done=0))
    assert of(said, notices.NeighbourJoined) == [
        notices.NeighbourJoined(name="b", incarnation="2", assumed_updates=0)
    ]
    assert [each.to for each in of(said, commands.Send)] == ["b"]
    assert sent(said, messages.Hello)
    assert of(node.on_message(1.1, update(1, 5, incarnation="2")), notices.UpdateApplied)
    assert not sent(
        node.on_message(1.2, messages.Heartbeat(sender="b", incarnation="2")), messages.Hello
    )


# Updates.


def test_an_update_that_comes_twice_is_applied_once() -> None:
    node = start(new_node())
    assert of(node.on_message(1.0, update(1, 5)), notices.UpdateApplied) == [
        notices.UpdateApplied(sender="b", incarnation="1", number=1)
    ]
    assert node.on_message(1.0, update(1, 5)) == []
    assert np.array_equal(node.model.vector, INITIAL - 5)


def test_out_of_order_they_are_applied_as_they_come_but_counted_without_a_gap() -> None:
    node = start(new_node())
    assert of(node.on_message(1.0, update(3, 1)), notices.UpdateApplied)
    assert of(node.on_message(1.0, update(2, 1)), notices.UpdateApplied)
    assert node.neighbours["b"].received == 0
    assert of(node.on_message(1.0, update(1, 1)), notices.UpdateApplied)
    assert node.neighbours["b"].received == 3
    assert node.neighbours["b"].out_of_order == set()
    assert np.array_equal(node.model.vector, INITIAL - 3)


def test_what_comes_before_it_has_begun_is_kept() -> None:
    node = new_node(neighbours=("b", "c"))
    node.start(0.0)
    node.on_message(0.1, accepted("b"))
    for number in (2, 1, 2):
        assert node.on_message(0.2, update(number, number)) == []
    assert np.array_equal(node.model.vector, INITIAL)
    said = node.on_message(0.3, accepted("c"))
    assert sorted(each.number for each in of(said, notices.UpdateApplied)) == [1, 2]
    assert np.array_equal(node.model.vector, INITIAL - 3)


def test_what_a_former_life_sent_is_refused() -> None:
    node = start(new_node())
    node.on_message(1.0, hello("b", incarnation="2"))
    said = node.on_message(1.1, update(1, 5, incarnation="1"))
    assert of(said, notices.MessageRejected) == [
        notices.MessageRejected(sender="b", reason="sent by a former incarnation")
    ]
    assert not of(said, notices.UpdateApplied)
    assert of(node.on_message(1.1, hello("b", incarnation="1")), notices.MessageRejected)
    assert node.neighbours["b"].incarnation == "2"
    assert of(node.on_message(1.2, update(1, 5, incarnation="2")), notices.UpdateApplied)
    assert np.array_equal(node.model.vector, INITIAL - 5)


@pytest.mark.parametrize(
    "said", [LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3), *PUBLIC]
)
def test_what_a_former_life_sent_before_it_began_is_not_kept(said: Algorithm) -> None:
    node = new_node(said, neighbours=("b", "c"))
    node.start(0.0)
    node.on_message(0.1, update(1, 5, incarnation="1"))
    node.on_message(0.2, hello("b", incarnation="2"))
    node.on_message(0.3, accepted("b", incarnation="2"))
    found = node.on_message(0.4, accepted("c"))
    assert not of(found, notices.UpdateApplied)
    assert np.array_equal(node.model.vector, INITIAL)


def test_what_is_meant_for_another_life_is_left_alone() -> None:
    node = start(new_node())
    assert node.on_message(1.0, replace(update(1, 5), to_incarnation="0")) == []
    assert node.neighbours["b"].received == 0
    assert np.array_equal(node.model.vector, INITIAL)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff" * 7, "update 1: 7 bytes; expected 16 for 4 numbers"),
        (to_bytes([1, np.nan, 1, 1]), "update 1: number 1 is nan; expected finite numbers"),
    ],
)
def test_corrupt_content_is_refused_and_counted_and_nobody_waits_for_it(
    content: bytes, why: str
) -> None:
    node = start(new_node(LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3, max_lag=0)))
    compute(node)
    assert node.computing is None
    said = node.on_message(1.0, replace(update(1), content=content))
    assert of(said, notices.MessageRejected) == [
        notices.MessageRejected(sender="b", reason=why, incarnation="1", number=1)
    ]
    assert not of(said, notices.UpdateApplied)
    assert of(said, commands.TakeSteps)
    assert np.array_equal(node.model.vector, INITIAL)


class Order:
    """A random order of what two neighbours and the node itself do, with repetitions."""

    def __init__(self, draw: st.DrawFn) -> None:
        whole = st.integers(-50, 50)
        four = st.lists(whole, min_size=4, max_size=4)
        some = st.lists(st.tuples(four, st.sampled_from([0.25, 0.5, 1.0, 2.0])), max_size=6)
        self.own = draw(st.lists(four, max_size=5))
        self.theirs = {name: draw(some) for name in ("b", "c")}
        acts = [(name, place) for name, each in self.theirs.items() for place in range(len(each))]
        again = draw(st.lists(st.sampled_from(acts), max_size=8)) if acts else []
        turns = [("", place) for place in range(len(self.own))]
        self.acts = draw(st.permutations([*acts, *again, *turns]))


@given(order=st.composite(Order)())
def test_the_model_is_the_start_less_every_step_once_in_whatever_order(order: Order) -> None:
    node = start(
        new_node(
            LocalSgd(learning_rate=0.5, decay=0.0, gain=1.0, steps=1, max_lag=99),
            ("b", "c"),
            iterations=99,
        )
    )
    left, taken = iter(order.own), 0
    for name, place in order.acts:
        if not name:
            compute(node, np.array(next(left), np.float32))
            continue
        change, rate = order.theirs[name][place]
        said = node.on_message(1.0, update(place + 1, np.array(change), rate, sender=name))
        taken += len(of(said, notices.UpdateApplied))
    expected = INITIAL.astype(np.float64)
    for each in order.own:
        expected = expected - 0.5 * np.array(each)
    for theirs in order.theirs.values():
        for change, rate in theirs:
            expected = expected - rate * np.array(change)
    assert np.array_equal(node.model.vector, expected)
    assert taken == sum(map(len, order.theirs.values()))


# Waiting, and the end.


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_it_computes_only_while_no_neighbour_lags_farther_behind_than_was_said(lag: int) -> None:
    node = start(
        new_node(LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=1, max_lag=lag), ("b", "c"))
    )
    for _ in range(lag):
        assert of(compute(node), commands.TakeSteps)
    assert not of(compute(node), commands.TakeSteps)
    assert not of(node.on_message(2.0, update(1, sender="b")), commands.TakeSteps)
    # Later ones of the other do not stand for the first.
    assert not of(node.on_message(2.0, update(2, sender="c")), commands.TakeSteps)
    assert of(node.on_message(2.0, update(1, sender="c")), commands.TakeSteps)


def test_who_has_ended_is_not_waited_for_once_all_of_it_is_in() -> None:
    node = start(new_node(LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3, max_lag=0)))
    compute(node)
    node.on_message(1.0, messages.Goodbye(sender="b", incarnation="1", last_update=1))
    assert node.computing is None
    assert of(node.on_message(1.1, update(1)), commands.TakeSteps)
    for _ in range(8):
        assert of(compute(node), commands.TakeSteps)
    assert of(compute(node), commands.Finish) == [commands.Finish()]


def test_it_ends_when_its_neighbours_have_and_all_of_theirs_is_in() -> None:
    node = start(new_node(iterations=3))
    said = compute(node)
    assert [each.last_update for each in sent(said, messages.Goodbye)] == [1]
    assert not of(said, commands.Finish)
    assert not of(
        node.on_message(1.0, messages.Goodbye(sender="b", incarnation="1", last_update=2)),
        commands.Finish,
    )
    assert not of(node.on_message(1.0, update(2, 1)), commands.Finish)
    said = node.on_message(1.0, update(1, 1))
    assert of(said, notices.UpdateApplied)
    assert of(said, commands.Finish)
    assert np.array_equal(node.model.vector, INITIAL - 2)


def test_a_model_that_is_no_number_any_more_ends_it_with_a_reason() -> None:
    node = start(new_node())
    assert node.computing is not None
    node.model.gradient_sum[:] = np.nan
    (finish,) = node.on_computed(1.0)
    assert isinstance(finish, commands.Finish)
    assert finish.reason == (
        "training diverged: number 0 is nan; expected finite numbers; use a smaller learning rate"
    )


# Models that are told by their changes.


def estimate(node: Node, name: str = "b") -> list[float]:
    found = node.neighbours[name].model
    assert found is not None
    return [float(each) for each in found - INITIAL]


@pytest.mark.parametrize("said", PUBLIC)
@pytest.mark.parametrize("order", [(1, 2, 0), (1, 0, 2), (0, 2, 1), (2, 1, 0)])
def test_a_neighbours_model_is_what_it_told_in_whatever_order(
    said: Algorithm, order: tuple[int, ...]
) -> None:
    """Number 0 stands for the word that it has start."""
    node = new_node(said)
    node.start(0.0)
    node.on_message(0.0, accepted("b"))
    for number in order:
        node.on_message(0.1, update(number, 10.0**number) if number else started("b"))
    if isinstance(said, GossipSgd):
        compute(node)
        compute(node)
    assert estimate(node) == [110.0] * 4


@pytest.mark.parametrize("said", PUBLIC)
def test_who_was_away_learns_a_model_anew(said: Algorithm) -> None:
    node = start(new_node(said))
    node.on_unreachable(1.0, "b")
    node.on_message(2.0, started("b", done=7, model=INITIAL + 7))
    node.on_message(2.1, update(6, 1.0))
    assert estimate(node) == [7.0] * 4
    if isinstance(said, EventTriggeredSgd):
        node.on_message(2.2, update(8, 1.0))
        assert estimate(node) == [8.0] * 4


@pytest.mark.parametrize("said", PUBLIC)
def test_what_was_kept_is_not_in_a_model_twice(said: Algorithm) -> None:
    node = new_node(said, neighbours=("b", "c"))
    node.start(0.0)
    node.on_message(0.1, update(6, 1.0))
    node.on_message(0.2, accepted("b", done=7, steps=7, model=INITIAL + 7))
    node.on_message(0.3, accepted("c"))
    assert estimate(node) == [7.0] * 4


@pytest.mark.parametrize("said", PUBLIC)
def test_what_was_kept_goes_into_a_model_in_its_order(said: Algorithm) -> None:
    """Sums are rounded: in another order they would not be what the other end has."""
    node = new_node(said, neighbours=("b", "c"))
    node.start(0.0)
    node.on_message(0.1, accepted("b"))
    for number, change in [(2, 1e-5), (1, -399.99998)]:
        node.on_message(0.2, update(number, change))
    node.on_message(0.3, accepted("c"))
    if isinstance(said, GossipSgd):
        node.neighbours["c"].lost = True
        compute(node)
        compute(node)
    own = INITIAL + np.float32(-399.99998)
    own += np.float32(1e-5)
    found = node.neighbours["b"].model
    assert found is not None
    assert found.tobytes() == own.tobytes()
