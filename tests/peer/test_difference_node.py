"""Event-triggered SGD and gossip: when models are sent, and how they are mixed."""

import numpy as np
import pytest
from msgspec.structs import replace

from melisma.peer import commands, messages
from melisma.peer.algorithms import EventTriggeredSgd, GossipSgd
from melisma.peer.difference_node import DifferenceNode
from tests.peer.tiny_nodes import (
    INITIAL,
    accepted,
    compute,
    hello,
    new_node,
    of,
    sent,
    start,
    update,
)

QUIET = EventTriggeredSgd(learning_rate=1.0, decay=0.0, coupling=0.25, threshold=0.5)


def test_a_model_is_sent_only_beyond_the_threshold() -> None:
    """The threshold is half a learning rate for each of 4 parameters, 2 in all."""
    node = start(new_node(replace(QUIET, coupling=1e-30)))
    assert not of(compute(node, np.array([2, 0, 0, 0])), commands.Send)
    assert node.update_number == 0
    (message,) = sent(compute(node, np.array([0, 0.5, 0, 0])), messages.Update)
    assert np.frombuffer(message.content, np.float32).tolist() == [-2, -0.5, 0, 0]
    assert (message.number, message.learning_rate) == (1, 1.0)
    # The distance is measured from the model that was sent.
    assert not of(compute(node, np.array([0, 0, 2, 0])), commands.Send)


def test_the_threshold_shrinks_with_the_learning_rate() -> None:
    node = start(new_node(replace(QUIET, coupling=1e-30, decay=1.0)))
    was_sent = []
    for far in (0.8, 0.0, 0.0, 0.0):
        assert node.computing is not None
        assert node.computing.learning_rate == pytest.approx(1 / (1 + node.steps))
        was_sent.append(bool(sent(compute(node, np.array([far, 0, 0, 0])), messages.Update)))
    # The threshold is 2, 1, and then 2/3, which is less than 0.8.
    assert was_sent == [False, False, True, False]


def test_event_triggered_sgd_never_waits_and_always_sends_the_last_model() -> None:
    node = start(new_node(QUIET, iterations=5))
    for _ in range(4):
        outputs = compute(node)
        assert of(outputs, commands.TakeSteps)
        assert not of(outputs, commands.Send)
    outputs = compute(node)
    assert len(sent(outputs, messages.Update)) == 1
    assert [each.last_update for each in sent(outputs, messages.Goodbye)] == [1]


def test_event_triggered_sgd_moves_towards_the_models_of_neighbours() -> None:
    node = start(new_node(QUIET, neighbours=("b", "c")))
    node.on_message(0.5, update(1, np.array([8, 0, 0, 0]), sender="b"))
    # The step under way began before the update arrived.
    compute(node)
    assert np.array_equal(node.model.vector, INITIAL)
    compute(node)
    assert np.array_equal(node.model.vector, INITIAL + np.array([2, 0, 0, 0]))
    node.on_message(1.5, update(1, np.array([0, 0, 0, 4]), sender="c"))
    compute(node)
    # A quarter of the way from its public model, which is still the initial one.
    assert np.array_equal(node.model.vector, INITIAL + np.array([4, 0, 0, 0]))


# Gossip.


def test_the_mean_is_weighted_by_the_larger_of_both_degrees() -> None:
    node = new_node(GossipSgd(learning_rate=1.0, decay=0.0), neighbours=("b", "c"))
    node.start(0.0)
    node.on_message(0.1, accepted("b"))
    node.on_message(0.1, replace(accepted("c"), degree=3))
    assert node.computing is not None
    outputs = compute(node, np.array([12, 0, 0, 0]))
    assert not of(outputs, commands.TakeSteps)
    node.on_message(1.0, update(1, np.array([0, 12, 0, 0]), sender="b"))
    outputs = node.on_message(1.0, update(1, np.array([0, 0, 12, 0]), sender="c"))
    assert of(outputs, commands.TakeSteps)
    # b has 1 neighbour and this node 2: a third; c has 3: a quarter; the rest is its own.
    expected = INITIAL + np.array([-12 * (1 - 1 / 3 - 1 / 4), 12 / 3, 12 / 4, 0])
    np.testing.assert_allclose(node.model.vector, expected, rtol=1e-6)


def test_a_model_that_is_one_ahead_counts_in_the_next_mean() -> None:
    node = start(new_node(GossipSgd(learning_rate=1.0, decay=0.0)))
    node.on_message(0.5, update(1, 10))
    node.on_message(0.5, update(2, 1000))
    compute(node)
    assert np.array_equal(node.model.vector, INITIAL + 5)
    compute(node)
    assert np.array_equal(node.model.vector, INITIAL + 5 + (1010 - 5) / 2)


def test_mixing_is_the_fraction_of_the_way_to_the_mean() -> None:
    node = start(new_node(GossipSgd(learning_rate=1.0, decay=0.0, mixing=0.5)))
    node.on_message(0.5, update(1, 16))
    compute(node)
    assert np.array_equal(node.model.vector, INITIAL + 4)


def test_a_lost_neighbour_is_neither_awaited_nor_in_the_mean() -> None:
    node = start(new_node(GossipSgd(learning_rate=1.0, decay=0.0), neighbours=("b", "c")))
    node.on_message(0.5, update(1, 300, sender="b"))
    compute(node)
    outputs = node.on_unreachable(2.0, "c")
    assert of(outputs, commands.TakeSteps)
    assert np.array_equal(node.model.vector, INITIAL + 100)
    node.on_unreachable(2.0, "b")
    compute(node)
    assert np.array_equal(node.model.vector, INITIAL + 100)


def test_a_new_neighbour_is_offered_the_public_model() -> None:
    node = start(new_node(GossipSgd(learning_rate=1.0, decay=0.0), compression="topk:0.25"))
    compute(node, np.array([1, 2, 3, 4]))
    (offer,) = sent(
        node.on_message(1.0, hello("x")),
        messages.Accepted,
    )
    assert isinstance(node, DifferenceNode)
    assert offer.model == node.own_public.tobytes()
    assert np.array_equal(node.own_public, INITIAL - np.array([0, 0, 0, 4]))
