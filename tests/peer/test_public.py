"""Gossip and event-triggered SGD by hand: what is told when, and what is made of it."""

import numpy as np
import pytest
from msgspec.structs import replace

from melisma.peer import commands, messages
from melisma.peer.algorithms import EventTriggeredSgd, GossipSgd
from melisma.peer.difference_node import DifferenceNode
from tests.peer.staging import START, begun, computed, hello, node, of, sent, update, welcome

QUIET = EventTriggeredSgd(learning_rate=1.0, decay=0.0, coupling=0.25, threshold=0.5)


def test_a_model_is_told_only_when_it_is_farther_than_the_threshold() -> None:
    """Half a step for each of 4 parameters is 2."""
    one = begun(node(replace(QUIET, coupling=1e-30)))
    assert not of(computed(one, np.array([2, 0, 0, 0])), commands.Send)
    assert one.update_number == 0
    (message,) = sent(computed(one, np.array([0, 0.5, 0, 0])), messages.Update)
    assert np.frombuffer(message.content, np.float32).tolist() == [-2, -0.5, 0, 0]
    assert (message.number, message.learning_rate) == (1, 1.0)
    # From there on it is counted anew.
    assert not of(computed(one, np.array([0, 0, 2, 0])), commands.Send)


def test_the_threshold_shrinks_with_the_steps() -> None:
    one = begun(node(replace(QUIET, coupling=1e-30, decay=1.0)))
    told = []
    for far in (0.8, 0.0, 0.0, 0.0):
        assert one.computing is not None
        assert one.computing.learning_rate == pytest.approx(1 / (1 + one.steps))
        told.append(bool(sent(computed(one, np.array([far, 0, 0, 0])), messages.Update)))
    # It was 2, 1, and then 2/3, which is less than 0.8.
    assert told == [False, False, True, False]


def test_nobody_waits_in_event_triggered_training_and_the_last_model_is_always_told() -> None:
    one = begun(node(QUIET, iterations=5))
    for _ in range(4):
        said = computed(one)
        assert of(said, commands.Compute)
        assert not of(said, commands.Send)
    said = computed(one)
    assert len(sent(said, messages.Update)) == 1
    assert [each.last_update for each in sent(said, messages.Goodbye)] == [1]


def test_it_is_pulled_towards_what_its_neighbours_told() -> None:
    one = begun(node(QUIET, neighbours=("b", "c")))
    one.on_message(0.5, update(1, np.array([8, 0, 0, 0]), sender="b"))
    # It came while a step was under way, which began without it.
    computed(one)
    assert np.array_equal(one.model.vector, START)
    computed(one)
    assert np.array_equal(one.model.vector, START + np.array([2, 0, 0, 0]))
    one.on_message(1.5, update(1, np.array([0, 0, 0, 4]), sender="c"))
    computed(one)
    # A quarter of the way from what it told itself, which is still the start.
    assert np.array_equal(one.model.vector, START + np.array([4, 0, 0, 0]))


# Gossip.


def test_the_mean_is_weighed_by_the_larger_of_both_degrees() -> None:
    one = node(GossipSgd(learning_rate=1.0, decay=0.0), neighbours=("b", "c"))
    one.start(0.0)
    one.on_message(0.1, welcome("b"))
    one.on_message(0.1, replace(welcome("c"), degree=3))
    assert one.computing is not None
    said = computed(one, np.array([12, 0, 0, 0]))
    assert not of(said, commands.Compute)
    one.on_message(1.0, update(1, np.array([0, 12, 0, 0]), sender="b"))
    said = one.on_message(1.0, update(1, np.array([0, 0, 12, 0]), sender="c"))
    assert of(said, commands.Compute)
    # b has 1 neighbour and this node 2: a third; c has 3: a quarter; the rest is its own.
    expected = START + np.array([-12 * (1 - 1 / 3 - 1 / 4), 12 / 3, 12 / 4, 0])
    np.testing.assert_allclose(one.model.vector, expected, rtol=1e-6)


def test_a_model_that_is_one_ahead_is_for_the_next_mean() -> None:
    one = begun(node(GossipSgd(learning_rate=1.0, decay=0.0)))
    one.on_message(0.5, update(1, 10))
    one.on_message(0.5, update(2, 1000))
    computed(one)
    assert np.array_equal(one.model.vector, START + 5)
    computed(one)
    assert np.array_equal(one.model.vector, START + 5 + (1010 - 5) / 2)


def test_only_a_part_of_the_way_with_gamma() -> None:
    one = begun(node(GossipSgd(learning_rate=1.0, decay=0.0, mixing=0.5)))
    one.on_message(0.5, update(1, 16))
    computed(one)
    assert np.array_equal(one.model.vector, START + 4)


def test_a_neighbour_that_is_gone_is_neither_awaited_nor_in_the_mean() -> None:
    one = begun(node(GossipSgd(learning_rate=1.0, decay=0.0), neighbours=("b", "c")))
    one.on_message(0.5, update(1, 300, sender="b"))
    computed(one)
    said = one.on_unreachable(2.0, "c")
    assert of(said, commands.Compute)
    assert np.array_equal(one.model.vector, START + 100)
    one.on_unreachable(2.0, "b")
    computed(one)
    assert np.array_equal(one.model.vector, START + 100)


def test_a_newcomer_begins_with_what_was_told_so_that_differences_go_on_from_there() -> None:
    one = begun(node(GossipSgd(learning_rate=1.0, decay=0.0), compression="topk:0.25"))
    computed(one, np.array([1, 2, 3, 4]))
    (offer,) = sent(
        one.on_message(1.0, hello("x")),
        messages.Accepted,
    )
    assert isinstance(one, DifferenceNode)
    assert offer.model == one.own_public.tobytes()
    assert np.array_equal(one.own_public, START - np.array([0, 0, 0, 4]))
