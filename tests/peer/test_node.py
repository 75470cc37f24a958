"""The state machine of a node: given these events, expect these commands and notices."""

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
    heartbeat,
    hello,
    new_node,
    of,
    receivers,
    rejected,
    sent,
    start,
    started,
    to_bytes,
    update,
)

DIFFERENCE_ALGORITHMS: list[Algorithm] = [
    EventTriggeredSgd(),
    GossipSgd(learning_rate=1.0, decay=0.0),
]


# Handshake.


def test_a_node_greets_its_neighbours_and_starts_when_all_have_answered() -> None:
    node = new_node(neighbours=("b", "c"))
    outputs = node.start(0.0)
    assert receivers(outputs) == ["b", "c"]
    assert all(message.degree == 2 for message in sent(outputs, messages.Hello))
    assert not of(node.on_message(0.1, accepted("b")), notices.TrainingStarted)
    outputs = node.on_message(0.2, accepted("c"))
    assert of(outputs, notices.TrainingStarted) == [
        notices.TrainingStarted(model_from="", updates_done=0)
    ]
    assert receivers(outputs) == ["b", "c"]
    assert of(outputs, commands.TakeSteps) == [
        commands.TakeSteps(number=1, steps=3, learning_rate=1.0)
    ]


def test_a_node_without_neighbours_starts_at_once() -> None:
    outputs = new_node(neighbours=()).start(0.0)
    assert of(outputs, notices.TrainingStarted)
    assert of(outputs, commands.TakeSteps)


def test_a_neighbour_that_does_not_answer_is_lost_after_patience_s_and_greeted_again() -> None:
    node = new_node(neighbours=("b", "c"))
    assert of(node.start(0.0), commands.Wake) == [commands.Wake(at_s=10.0)]
    node.on_message(0.2, accepted("b"))
    outputs = node.on_wake(10.0)
    assert of(outputs, notices.NeighbourLost) == [notices.NeighbourLost(name="c", alone=False)]
    assert of(outputs, commands.TakeSteps)
    outputs = node.on_wake(20.0)
    assert [each.sender for each in sent(outputs, messages.Hello)] == ["a"]
    assert receivers(outputs) == ["b", "c"]
    assert sent(outputs, messages.Heartbeat)


def test_a_node_continues_alone_when_the_last_neighbour_is_lost() -> None:
    node = start(new_node(neighbours=("b", "c")))
    assert of(node.on_unreachable(1.0, "b"), notices.NeighbourLost) == [
        notices.NeighbourLost(name="b", alone=False)
    ]
    assert of(node.on_unreachable(2.0, "c"), notices.NeighbourLost) == [
        notices.NeighbourLost(name="c", alone=True)
    ]
    assert node.on_unreachable(3.0, "c") == []
    for _ in range(9):
        outputs = compute(node)
        assert not of(outputs, commands.Send)
        assert of(outputs, commands.TakeSteps)
    assert of(compute(node), commands.Finish) == [commands.Finish()]


def test_a_different_model_is_rejected_with_the_difference() -> None:
    node = new_node(neighbours=("b", "c"))
    node.start(0.0)
    outputs = node.on_message(0.1, hello("b", model="lenet"))
    mismatch = "model here is a line of 4 parameters, there lenet"
    assert of(outputs, notices.MessageRejected)[0].reason == f"cannot be a neighbour: {mismatch}"
    (rejection,) = sent(outputs, messages.Rejected)
    assert (rejection.to_incarnation, rejection.reason) == (1, mismatch)
    # Training starts with the other neighbour.
    outputs = node.on_message(0.2, accepted("c"))
    assert of(outputs, commands.TakeSteps)
    assert receivers(compute(node)) == ["c"]


def test_a_node_that_all_neighbours_reject_fails_with_the_reason() -> None:
    node = new_node(neighbours=("b", "c"))
    node.start(0.0)
    reason = "model here is x, there y"
    outputs = node.on_message(0.1, rejected("b", reason))
    assert of(outputs, notices.MessageRejected)[0].reason == f"rejected this node: {reason}"
    assert not of(outputs, commands.Finish)
    outputs = node.on_message(0.1, rejected("c", reason))
    assert of(outputs, commands.Finish) == [
        commands.Finish(reason=f"c rejected this node: {reason}")
    ]
    assert node.on_wake(10.0) == []


def test_a_rejection_of_a_former_incarnation_is_ignored() -> None:
    node = start(new_node())
    assert node.on_message(0.1, rejected("b", "old", to=0)) == []
    assert compute(node)


def test_messages_of_an_unknown_node_are_ignored_until_its_hello() -> None:
    node = start(new_node())
    assert node.on_message(1.0, heartbeat("x", 1)) == []
    assert "x" not in node.neighbours
    outputs = node.on_message(1.0, hello("x"))
    assert of(outputs, notices.NeighbourJoined) == [
        notices.NeighbourJoined(name="x", incarnation=1, assumed_updates=0)
    ]
    assert node.neighbours["x"].reachable


def test_a_new_neighbour_is_offered_the_model_and_counts_from_its_assumed_updates() -> None:
    node = start(new_node(LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3, max_lag=0)))
    compute(node, gradient=1)
    node.on_message(1.5, update(1, 0))
    outputs = node.on_message(2.0, hello("x"))
    (offer,) = sent(outputs, messages.Accepted)
    assert (offer.training, offer.updates_done, offer.steps, offer.to_incarnation) == (
        True,
        1,
        3,
        1,
    )
    assert np.array_equal(np.frombuffer(offer.model, np.float32), INITIAL - 1)
    compute(node)
    assert node.computing is None
    outputs = node.on_message(3.0, update(2, 0))
    assert not of(outputs, commands.TakeSteps), (
        "the new neighbour is assumed to have sent 1 update, and is awaited from there on"
    )
    outputs = node.on_message(3.1, started("x", done=2))
    assert of(outputs, commands.TakeSteps)


def test_a_neighbour_that_receives_all_updates_is_offered_no_model() -> None:
    """Its hello is late; it receives every update from the first one on."""
    node = start(new_node())
    compute(node, gradient=1)
    (answer,) = sent(node.on_message(2.0, hello("b")), messages.Accepted)
    assert (answer.training, answer.model) == (False, b"")
    # Unless it was lost in between: it may have missed an update.
    node.on_unreachable(3.0, "b")
    outputs = node.on_message(4.0, hello("b"))
    (answer,) = sent(outputs, messages.Accepted)
    assert answer.model == to_bytes(INITIAL - 1)
    assert [each.updates_done for each in sent(outputs, messages.Started)] == [1]


def test_a_new_neighbour_that_was_lost_keeps_its_assumed_updates() -> None:
    node = start(new_node(LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3, max_lag=5)))
    compute(node)
    node.on_message(2.0, hello("x"))
    node.on_unreachable(3.0, "x")
    outputs = node.on_message(4.0, heartbeat("x", 1))
    assert of(outputs, notices.NeighbourJoined) == [
        notices.NeighbourJoined(name="x", incarnation=1, assumed_updates=1)
    ]
    assert node.neighbours["x"].progress == 1


# Joining and returning.


def test_a_node_that_returns_adopts_the_model_with_most_steps() -> None:
    node = new_node(
        AetSgd(learning_rate=1.0, decay=0.0, gain=1.0, growth=3.0),
        neighbours=("b", "c"),
        iterations=60,
    )
    node.start(0.0)
    node.on_message(0.1, accepted("b", done=2, steps=9, model=INITIAL + 1))
    outputs = node.on_message(0.2, accepted("c", done=3, steps=18, model=INITIAL + 2))
    assert of(outputs, notices.TrainingStarted) == [
        notices.TrainingStarted(model_from="c", updates_done=3)
    ]
    assert np.array_equal(node.model.vector, INITIAL + 2)
    assert (node.update_number, node.steps) == (3, 18)
    assert of(outputs, commands.TakeSteps) == [
        commands.TakeSteps(number=4, steps=12, learning_rate=1.0)
    ]
    assert [each.updates_done for each in sent(outputs, messages.Started)] == [3, 3]
    # Updates that the adopted model contains are not applied.
    assert not of(node.on_message(0.3, update(2, 5, sender="c")), notices.UpdateApplied)
    assert of(node.on_message(0.3, update(4, 5, sender="c")), notices.UpdateApplied)
    assert np.array_equal(node.model.vector, INITIAL - 3)


def test_a_node_of_another_share_adopts_the_round_and_counts_its_own_steps() -> None:
    node = new_node(
        AetSgd(learning_rate=1.0, decay=0.0, gain=1.0, growth=10.0, share=0.5), iterations=1000
    )
    node.start(0.0)
    node.on_message(0.1, accepted("b", done=4, steps=100, model=INITIAL))
    assert (node.update_number, node.steps) == (4, 50)


def test_an_offered_model_without_steps_is_not_adopted() -> None:
    node = new_node()
    node.start(0.0)
    outputs = node.on_message(0.1, accepted("b", done=0, steps=0, model=INITIAL))
    assert of(outputs, notices.TrainingStarted) == [
        notices.TrainingStarted(model_from="", updates_done=0)
    ]


def test_an_early_update_that_the_offered_model_contains_is_not_applied() -> None:
    """A hello arrived twice: the second answer overtakes the first one and an update."""
    node = new_node(neighbours=("b", "c"))
    node.start(0.0)
    assert not of(node.on_message(0.1, update(6, 5)), notices.UpdateApplied)
    node.on_message(0.2, accepted("b", done=7, steps=21, model=INITIAL + 7))
    assert not of(
        node.on_message(0.2, accepted("b", done=5, steps=15, model=INITIAL + 5)),
        notices.UpdateApplied,
    )
    node.on_message(0.3, update(8, 1))
    outputs = node.on_message(0.4, accepted("c"))
    assert [each.number for each in of(outputs, notices.UpdateApplied)] == [8]
    assert np.array_equal(node.model.vector, INITIAL + 7 - 1)


def test_an_early_update_is_not_applied_twice_if_its_sender_had_started() -> None:
    node = new_node(neighbours=("b", "c"))
    node.start(0.0)
    node.on_message(0.1, started("b", done=0))
    for number in (1, 2, 3):
        node.on_message(0.1, update(number, 5))
    node.on_message(0.2, accepted("b", done=2, steps=6, model=INITIAL - 10))
    node.on_message(0.3, accepted("c"))
    assert np.array_equal(node.model.vector, INITIAL - 15)
    assert node.neighbours["b"].received == 3


def test_a_late_hello_of_a_lost_neighbour_announces_the_present_update() -> None:
    """It has answered before, and would ignore a second acceptance."""
    node = start(new_node(LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3, max_lag=5)))
    node.on_unreachable(1.0, "b")
    compute(node)
    outputs = node.on_message(2.0, hello("b"))
    assert [each.updates_done for each in sent(outputs, messages.Started)] == [1]
    assert of(outputs, notices.NeighbourReady)
    assert [each.number for each in sent(compute(node), messages.Update)] == [2]


def test_a_neighbour_that_returns_receives_started_and_goodbye() -> None:
    node = start(new_node(neighbours=("b", "c"), iterations=3))
    node.on_unreachable(0.5, "b")
    assert receivers(compute(node)) == ["c", "c"]
    outputs = node.on_message(2.0, heartbeat("b", 1))
    assert [each.updates_done for each in sent(outputs, messages.Started)] == [1]
    assert [each.last_update for each in sent(outputs, messages.Goodbye)] == [1]


def test_a_new_incarnation_without_a_hello_is_greeted() -> None:
    node = start(new_node(LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3, max_lag=0)))
    outputs = node.on_message(1.0, started("b", incarnation=2, done=0))
    assert of(outputs, notices.NeighbourJoined) == [
        notices.NeighbourJoined(name="b", incarnation=2, assumed_updates=0)
    ]
    assert receivers(outputs) == ["b"]
    assert sent(outputs, messages.Hello)
    assert of(node.on_message(1.1, update(1, 5, incarnation=2)), notices.UpdateApplied)
    assert not sent(node.on_message(1.2, heartbeat("b", 2)), messages.Hello)


# Updates.


def test_an_update_that_arrives_twice_is_applied_once() -> None:
    node = start(new_node())
    assert of(node.on_message(1.0, update(1, 5)), notices.UpdateApplied) == [
        notices.UpdateApplied(sender="b", incarnation=1, number=1)
    ]
    assert node.on_message(1.0, update(1, 5)) == []
    assert np.array_equal(node.model.vector, INITIAL - 5)


def test_updates_are_applied_as_they_arrive_but_counted_without_a_gap() -> None:
    node = start(new_node())
    assert of(node.on_message(1.0, update(3, 1)), notices.UpdateApplied)
    assert of(node.on_message(1.0, update(2, 1)), notices.UpdateApplied)
    assert node.neighbours["b"].received == 0
    assert of(node.on_message(1.0, update(1, 1)), notices.UpdateApplied)
    assert node.neighbours["b"].received == 3
    assert node.neighbours["b"].out_of_order == set()
    assert np.array_equal(node.model.vector, INITIAL - 3)


def test_updates_that_arrive_before_the_start_are_applied_at_the_start() -> None:
    node = new_node(neighbours=("b", "c"))
    node.start(0.0)
    node.on_message(0.1, accepted("b"))
    for number in (2, 1, 2):
        assert node.on_message(0.2, update(number, number)) == []
    assert np.array_equal(node.model.vector, INITIAL)
    outputs = node.on_message(0.3, accepted("c"))
    assert sorted(each.number for each in of(outputs, notices.UpdateApplied)) == [1, 2]
    assert np.array_equal(node.model.vector, INITIAL - 3)


def test_messages_of_a_former_incarnation_are_rejected() -> None:
    node = start(new_node())
    node.on_message(1.0, hello("b", incarnation=2))
    outputs = node.on_message(1.1, update(1, 5, incarnation=1))
    assert of(outputs, notices.MessageRejected) == [
        notices.MessageRejected(sender="b", reason="sent by a former incarnation")
    ]
    assert not of(outputs, notices.UpdateApplied)
    assert of(node.on_message(1.1, hello("b", incarnation=1)), notices.MessageRejected)
    assert node.neighbours["b"].incarnation == 2
    assert of(node.on_message(1.2, update(1, 5, incarnation=2)), notices.UpdateApplied)
    assert np.array_equal(node.model.vector, INITIAL - 5)


@pytest.mark.parametrize(
    "algorithm", [LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3), *DIFFERENCE_ALGORITHMS]
)
def test_early_updates_of_a_former_incarnation_are_dropped(algorithm: Algorithm) -> None:
    node = new_node(algorithm, neighbours=("b", "c"))
    node.start(0.0)
    node.on_message(0.1, update(1, 5, incarnation=1))
    node.on_message(0.2, hello("b", incarnation=2))
    node.on_message(0.3, accepted("b", incarnation=2))
    outputs = node.on_message(0.4, accepted("c"))
    assert not of(outputs, notices.UpdateApplied)
    assert np.array_equal(node.model.vector, INITIAL)


def test_an_update_to_another_incarnation_is_ignored() -> None:
    node = start(new_node())
    assert node.on_message(1.0, replace(update(1, 5), to_incarnation=0)) == []
    assert node.neighbours["b"].received == 0
    assert np.array_equal(node.model.vector, INITIAL)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff" * 7, "update 1: 7 bytes; expected 16 for 4 numbers"),
        (to_bytes([1, np.nan, 1, 1]), "update 1: number 1 is nan; expected finite numbers"),
    ],
)
def test_corrupt_content_is_rejected_and_not_awaited(content: bytes, reason: str) -> None:
    node = start(new_node(LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3, max_lag=0)))
    compute(node)
    assert node.computing is None
    outputs = node.on_message(1.0, replace(update(1), content=content))
    assert of(outputs, notices.MessageRejected) == [
        notices.MessageRejected(sender="b", reason=reason, incarnation=1, number=1)
    ]
    assert not of(outputs, notices.UpdateApplied)
    assert of(outputs, commands.TakeSteps)
    assert np.array_equal(node.model.vector, INITIAL)


class Order:
    """Updates of two neighbours in random order and with repetitions, and steps in between."""

    def __init__(self, draw: st.DrawFn) -> None:
        integers = st.integers(-50, 50)
        gradients = st.lists(integers, min_size=4, max_size=4)
        updates = st.lists(st.tuples(gradients, st.sampled_from([0.25, 0.5, 1.0, 2.0])), max_size=6)
        self.own = draw(st.lists(gradients, max_size=5))
        self.theirs = {name: draw(updates) for name in ("b", "c")}
        arrivals = [(name, n) for name, sent in self.theirs.items() for n in range(len(sent))]
        repeated = draw(st.lists(st.sampled_from(arrivals), max_size=8)) if arrivals else []
        steps = [("", n) for n in range(len(self.own))]
        self.events = draw(st.permutations([*arrivals, *repeated, *steps]))


@given(order=st.composite(Order)())
def test_the_model_is_the_sum_of_all_steps_once_in_any_order(order: Order) -> None:
    node = start(
        new_node(
            LocalSgd(learning_rate=0.5, decay=0.0, gain=1.0, steps=1, max_lag=99),
            ("b", "c"),
            iterations=99,
        )
    )
    gradients, applied = iter(order.own), 0
    for name, index in order.events:
        if not name:
            compute(node, np.array(next(gradients), np.float32))
            continue
        change, rate = order.theirs[name][index]
        outputs = node.on_message(1.0, update(index + 1, np.array(change), rate, sender=name))
        applied += len(of(outputs, notices.UpdateApplied))
    expected = INITIAL.astype(np.float64)
    for gradient in order.own:
        expected = expected - 0.5 * np.array(gradient)
    for theirs in order.theirs.values():
        for change, rate in theirs:
            expected = expected - rate * np.array(change)
    assert np.array_equal(node.model.vector, expected)
    assert applied == sum(map(len, order.theirs.values()))


# Lag, and the end.


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_node_computes_only_while_no_lag_exceeds_the_maximum(lag: int) -> None:
    node = start(
        new_node(LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=1, max_lag=lag), ("b", "c"))
    )
    for _ in range(lag):
        assert of(compute(node), commands.TakeSteps)
    assert not of(compute(node), commands.TakeSteps)
    assert not of(node.on_message(2.0, update(1, sender="b")), commands.TakeSteps)
    # A later update does not count for a missing one.
    assert not of(node.on_message(2.0, update(2, sender="c")), commands.TakeSteps)
    assert of(node.on_message(2.0, update(1, sender="c")), commands.TakeSteps)


def test_a_neighbour_is_not_awaited_after_its_last_update() -> None:
    node = start(new_node(LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3, max_lag=0)))
    compute(node)
    node.on_message(1.0, messages.Goodbye(sender="b", incarnation=1, last_update=1))
    assert node.computing is None
    assert of(node.on_message(1.1, update(1)), commands.TakeSteps)
    for _ in range(8):
        assert of(compute(node), commands.TakeSteps)
    assert of(compute(node), commands.Finish) == [commands.Finish()]


def test_a_node_finishes_after_the_last_updates_of_its_neighbours() -> None:
    node = start(new_node(iterations=3))
    outputs = compute(node)
    assert [each.last_update for each in sent(outputs, messages.Goodbye)] == [1]
    assert not of(outputs, commands.Finish)
    assert not of(
        node.on_message(1.0, messages.Goodbye(sender="b", incarnation=1, last_update=2)),
        commands.Finish,
    )
    assert not of(node.on_message(1.0, update(2, 1)), commands.Finish)
    outputs = node.on_message(1.0, update(1, 1))
    assert of(outputs, notices.UpdateApplied)
    assert of(outputs, commands.Finish)
    assert np.array_equal(node.model.vector, INITIAL - 2)


def test_a_model_that_diverges_fails_with_the_reason() -> None:
    node = start(new_node())
    assert node.computing is not None
    node.model.gradient_sum[:] = np.nan
    (finish,) = node.on_computed(1.0)
    assert isinstance(finish, commands.Finish)
    assert finish.reason == (
        "training diverged: number 0 is nan; expected finite numbers; use a smaller learning rate"
    )


# Copies of the models of neighbours.


def copy_change(node: Node, name: str = "b") -> list[float]:
    model = node.neighbours[name].model
    assert model is not None
    return [float(change) for change in model - INITIAL]


@pytest.mark.parametrize("algorithm", DIFFERENCE_ALGORITHMS)
@pytest.mark.parametrize("order", [(1, 2, 0), (1, 0, 2), (0, 2, 1), (2, 1, 0)])
def test_differences_that_arrive_in_any_order_give_the_same_copy(
    algorithm: Algorithm, order: tuple[int, ...]
) -> None:
    """Number 0 stands for `Started`."""
    node = new_node(algorithm)
    node.start(0.0)
    node.on_message(0.0, accepted("b"))
    for number in order:
        node.on_message(0.1, update(number, 10.0**number) if number else started("b"))
    if isinstance(algorithm, GossipSgd):
        compute(node)
        compute(node)
    assert copy_change(node) == [110.0] * 4


@pytest.mark.parametrize("algorithm", DIFFERENCE_ALGORITHMS)
def test_the_copy_of_a_neighbour_that_returns_is_replaced(algorithm: Algorithm) -> None:
    node = start(new_node(algorithm))
    node.on_unreachable(1.0, "b")
    node.on_message(2.0, started("b", done=7, model=INITIAL + 7))
    node.on_message(2.1, update(6, 1.0))
    assert copy_change(node) == [7.0] * 4
    if isinstance(algorithm, EventTriggeredSgd):
        node.on_message(2.2, update(8, 1.0))
        assert copy_change(node) == [8.0] * 4


@pytest.mark.parametrize("algorithm", DIFFERENCE_ALGORITHMS)
def test_an_early_difference_is_not_applied_twice(algorithm: Algorithm) -> None:
    node = new_node(algorithm, neighbours=("b", "c"))
    node.start(0.0)
    node.on_message(0.1, update(6, 1.0))
    node.on_message(0.2, accepted("b", done=7, steps=7, model=INITIAL + 7))
    node.on_message(0.3, accepted("c"))
    assert copy_change(node) == [7.0] * 4


@pytest.mark.parametrize("algorithm", DIFFERENCE_ALGORITHMS)
def test_early_differences_are_applied_in_order(algorithm: Algorithm) -> None:
    """Rounding depends on the order, which must be the same at both ends."""
    node = new_node(algorithm, neighbours=("b", "c"))
    node.start(0.0)
    node.on_message(0.1, accepted("b"))
    for number, change in [(2, 1e-5), (1, -399.99998)]:
        node.on_message(0.2, update(number, change))
    node.on_message(0.3, accepted("c"))
    if isinstance(algorithm, GossipSgd):
        node.neighbours["c"].lost = True
        compute(node)
        compute(node)
    own = INITIAL + np.float32(-399.99998)
    own += np.float32(1e-5)
    model = node.neighbours["b"].model
    assert model is not None
    assert model.tobytes() == own.tobytes()
