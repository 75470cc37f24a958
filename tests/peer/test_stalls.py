"""Neighbours that answer without progress, forged messages, and the limits of membership."""

import pytest

from melisma.peer import commands, messages, notices
from melisma.peer.keyring import MAX_UNEXPECTED_NAMES, KeyRing
from melisma.peer.membership import (
    MAX_GREETINGS,
    MAX_INCARNATION_JUMP,
    MAX_INVALID_MESSAGES,
    MAX_REFUTATIONS,
)
from melisma.peer.node import Node
from melisma.peer.stalls import MAX_STALLS
from tests.peer.tiny_nodes import (
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
    update,
)


def blocked() -> Node:
    """Return a node that waits for b since 2 s, after two rounds of a second."""
    node = start(new_node())
    compute(node, at_s=1.0)
    compute(node, at_s=2.0)
    assert node.computing is None
    return node


def test_a_neighbour_that_answers_without_progress_is_not_waited_for() -> None:
    """The limit is 10 s of patience, and 50 times a round of a second."""
    node = blocked()
    for at_s in (10.0, 60.0):
        node.on_message(at_s, heartbeat())
        assert not of(node.on_wake(at_s), notices.NeighbourStalled)
    outputs = node.on_wake(63.0)
    assert of(outputs, notices.NeighbourStalled) == [
        notices.NeighbourStalled(name="b", waited_s=61.0)
    ]
    assert of(outputs, commands.TakeSteps)
    assert sent(compute(node, at_s=64.0), messages.Update), "it still receives updates"


def test_a_neighbour_that_waits_itself_has_twice_the_time() -> None:
    node = blocked()
    node.on_message(3.0, messages.Heartbeat(sender="b", incarnation=1, waiting=True))
    assert not of(node.on_wake(63.0), notices.NeighbourStalled)
    assert of(node.on_wake(123.0), notices.NeighbourStalled)
    assert [each.waiting for each in sent(node.on_wake(124.0), messages.Heartbeat)] == [False]


def test_a_neighbour_with_progress_is_waited_for_again_up_to_a_number_of_times() -> None:
    node, at_s = blocked(), 2.0
    for number in range(1, MAX_STALLS + 1):
        assert node.computing is None
        at_s *= 1000
        assert of(node.on_wake(at_s), notices.NeighbourStalled)
        compute(node, at_s=at_s)
        node.on_message(at_s, update(number))
        assert node.neighbours["b"].awaited == (number < MAX_STALLS)
        while node.computing is not None and number < MAX_STALLS:
            compute(node, at_s=at_s + 1)
    # A restart does not help it.
    node.on_message(at_s, hello(incarnation=2))
    assert not node.neighbours["b"].awaited


def test_a_node_ends_without_a_neighbour_that_does_not() -> None:
    node = start(new_node(iterations=3))
    compute(node, at_s=1.0)
    assert not of(node.on_wake(10.0), commands.Finish)
    outputs = node.on_wake(62.0)
    assert of(outputs, notices.NeighbourStalled)
    assert of(outputs, commands.Finish) == [commands.Finish()]


# Keys.


def test_a_message_signed_with_another_key_changes_nothing_and_is_reported_once() -> None:
    node = new_node()
    node.start(0.0)
    node.on_message(0.0, accepted(), "key of b")
    for _ in range(3):
        outputs = node.on_message(1.0, heartbeat(incarnation=10**9), "another key")
        node.on_message(1.0, hello(incarnation=10**9), "another key")
    assert node.neighbours["b"].incarnation == 1
    assert node.membership.forgeries == {"b": 6}
    assert outputs == []
    assert of(node.on_message(2.0, update(1, 5), "key of b"), notices.UpdateApplied)


def test_a_name_belongs_to_a_given_key_or_to_the_first_one() -> None:
    keyring = KeyRing("a", ("b", "c"), {"b": "key of b"})
    assert keyring.bind("b", "another") == "the name b belongs to another key"
    assert keyring.bind("b", "key of b") == keyring.bind("c", "key of c") == ""
    assert keyring.bind("c", "another") == "the name c belongs to another key"
    assert keyring.bind("a", "another") == "a is the name of this node"


def test_made_up_names_are_limited_but_expected_ones_are_not() -> None:
    node = start(new_node(neighbours=("b", "c")))
    for number in range(100):
        outputs = node.on_message(1.0, hello(f"x{number}"), f"key {number}")
    assert len(node.neighbours) == 2 + MAX_UNEXPECTED_NAMES
    (rejection,) = sent(outputs, messages.Rejected)
    assert "nodes have joined that are not named as neighbours" in rejection.reason
    assert sent(node.on_message(1.0, hello("c")), messages.Accepted)


# Limits.


def test_a_rejected_node_that_does_not_answer_is_no_neighbour_to_lose() -> None:
    node = start(new_node())
    assert sent(node.on_message(1.0, hello("x", model="another")), messages.Rejected)
    assert node.on_unreachable(2.0, "x") == []


def test_a_node_that_greets_too_often_is_not_answered() -> None:
    node = start(new_node())
    answers = [len(sent(node.on_message(1.0, hello()), messages.Accepted)) for _ in range(20)]
    assert sum(answers) == MAX_GREETINGS
    assert sent(node.on_message(12.0, hello()), messages.Accepted)


def test_a_neighbour_with_many_invalid_messages_is_rejected() -> None:
    node = start(new_node(neighbours=("b", "c")))
    reported = 0
    for _ in range(2 * MAX_INVALID_MESSAGES):
        outputs = node.on_message(1.0, heartbeat(incarnation=0))
        reported += len(of(outputs, notices.MessageRejected))
    assert reported == MAX_INVALID_MESSAGES + 1
    assert node.neighbours["b"].rejected


def test_an_incarnation_that_is_too_far_ahead_is_rejected() -> None:
    node = start(new_node())
    for message in (
        heartbeat(incarnation=MAX_INCARNATION_JUMP + 2),
        hello(incarnation=MAX_INCARNATION_JUMP + 2),
    ):
        assert of(node.on_message(1.0, message), notices.MessageRejected)
    assert node.neighbours["b"].incarnation == 1
    node.on_message(1.0, hello(incarnation=MAX_INCARNATION_JUMP + 1))
    assert node.neighbours["b"].incarnation == MAX_INCARNATION_JUMP + 1


# Refutation.


def later(known: int, to: int = 1) -> messages.Rejected:
    return messages.Rejected(
        sender="b", incarnation=1, to_incarnation=to, reason="later", known_incarnation=known
    )


def test_a_node_refutes_a_later_incarnation_of_itself() -> None:
    node = new_node(neighbours=("b", "c"))
    node.start(0.0)
    node.on_message(0.1, accepted("c"))
    outputs = node.on_message(0.2, later(7))
    assert of(outputs, notices.IncarnationRefuted) == [
        notices.IncarnationRefuted(known_by="b", incarnation=8)
    ]
    assert receivers(outputs) == ["b", "c"]
    assert {each.incarnation for each in sent(outputs, messages.Hello)} == {8}
    assert not node.neighbours["b"].rejected
    # The rejected hello tells the other node what to refute.
    other = start(new_node(neighbours=("a",), name="b"))
    other.on_message(1.0, hello("a", incarnation=7))
    (rejection,) = sent(other.on_message(1.0, hello("a", incarnation=6)), messages.Rejected)
    assert rejection.known_incarnation == 7


@pytest.mark.parametrize("known", [0, 1, MAX_INCARNATION_JUMP + 2])
def test_an_implausible_claim_is_not_refuted_but_taken_as_a_rejection(known: int) -> None:
    node = start(new_node(neighbours=("b", "c")))
    assert not of(node.on_message(0.2, later(known)), notices.IncarnationRefuted)
    assert node.identity.incarnation == 1
    assert node.neighbours["b"].rejected


def test_a_neighbour_cannot_ask_for_refutations_without_end() -> None:
    node = start(new_node(neighbours=("b", "c")))
    for number in range(MAX_REFUTATIONS):
        mine = node.identity.incarnation
        node.on_message(float(number), later(mine + 5, to=mine))
        assert node.identity.incarnation == mine + 6
    mine = node.identity.incarnation
    outputs = node.on_message(9.0, later(mine + 5, to=mine))
    assert node.identity.incarnation == mine
    assert of(outputs, notices.MessageRejected)
    assert rejected("b", "x").known_incarnation == 0
