"""The bound on updates, by itself and in nodes."""

import numpy as np
import pytest

from melisma.peer import notices
from melisma.peer.algorithms import Algorithm, EventTriggeredSgd, GossipSgd, LocalSgd
from melisma.peer.guard import NeighbourGuard
from tests.peer.tiny_nodes import INITIAL, accepted, compute, new_node, of, start, update

ROUNDS = LocalSgd(learning_rate=1.0, decay=0.0, gain=1.0, steps=3)
ALGORITHMS: list[Algorithm] = [ROUNDS, GossipSgd(), EventTriggeredSgd()]


def test_updates_are_compared_with_those_of_others_only() -> None:
    guard = NeighbourGuard("clip")
    for norm in (1.0, 2.0, 3.0):
        guard.record("a", norm)
        guard.record("b", 1000 * norm)
    assert guard.factor("b", 8.0, 0.0) == 1
    assert guard.factor("b", 16.0, 0.0) == 0.5
    assert guard.factor("b", 201.0, 0.0) == 0
    assert guard.factor("b", np.inf, 0.0) == guard.factor("b", np.nan, 0.0) == 0


@pytest.mark.parametrize(("mode", "factor"), [("clip", 0.8), ("drop", 0.0), ("off", 1.0)])
def test_the_mode_decides_about_moderately_large_updates(mode: str, factor: float) -> None:
    guard = NeighbourGuard(mode)  # type: ignore[arg-type]
    guard.record("a", 1.0)
    assert guard.factor("b", 5.0, 0.0) == factor
    assert guard.factor("b", 1e30, 0.0) == (1.0 if mode == "off" else 0.0)


def test_the_first_update_is_compared_with_the_model() -> None:
    guard = NeighbourGuard("clip")
    assert guard.factor("b", 10.0, 10.0) == 1
    assert guard.factor("b", 20.0, 10.0) == 0.5
    assert guard.factor("b", 1000.0, 10.0) == 0
    assert guard.factor("b", 1000.0, 0.0) == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_huge_update_does_not_move_a_node(algorithm: Algorithm) -> None:
    node = start(new_node(algorithm, guard="clip"))
    outputs = node.on_message(1.0, update(1, 1e30))
    (rejected,) = of(outputs, notices.MessageRejected)
    assert (rejected.number, rejected.reason) == (
        1,
        "update 1 is left out: far larger than others",
    )
    compute(node, gradient=1)
    assert np.linalg.norm(node.model.vector - INITIAL) < 10
    # It counts as received: this node does not wait for it.
    assert node.neighbours["b"].received == 1


def test_a_large_update_is_scaled_down_and_reported() -> None:
    node = start(new_node(ROUNDS, guard="clip"))
    compute(node, gradient=1)
    (applied,) = of(node.on_message(1.0, update(1, 8)), notices.UpdateApplied)
    assert applied.factor == 0.5
    assert np.array_equal(node.model.vector, INITIAL - 1 - 4)


def test_larger_rounds_of_a_faster_neighbour_are_not_scaled_down() -> None:
    node = start(new_node(ROUNDS, guard="clip"))
    node.neighbours["b"].share = 8.0
    compute(node, gradient=1)
    (applied,) = of(node.on_message(1.0, update(1, 8)), notices.UpdateApplied)
    assert applied.factor == 1


def test_the_learning_rate_of_an_update_counts() -> None:
    node = start(new_node(ROUNDS, guard="clip"))
    compute(node, gradient=1)
    assert of(node.on_message(1.0, update(1, 1, rate=1e6)), notices.MessageRejected)


def test_a_model_that_is_far_away_is_rejected() -> None:
    node = new_node(ROUNDS, guard="clip")
    node.start(0.0)
    outputs = node.on_message(0.0, accepted(done=3, steps=9, model=INITIAL * 1000))
    (rejected,) = of(outputs, notices.MessageRejected)
    assert rejected.reason == (
        "its model is 999 times the norm of this node's model away from it; expected at most 100 "
        "times"
    )
    assert np.array_equal(node.model.vector, INITIAL)


def test_one_of_three_offered_models_is_not_adopted_if_it_is_far_from_the_others() -> None:
    node = new_node(ROUNDS, neighbours=("b", "c", "d"), guard="clip")
    node.start(0.0)
    node.on_message(0.1, accepted("b", done=3, steps=9, model=INITIAL + 1))
    node.on_message(0.1, accepted("c", done=3, steps=9, model=INITIAL - 1))
    outputs = node.on_message(0.1, accepted("d", done=9, steps=27, model=INITIAL + 50))
    (started,) = of(outputs, notices.TrainingStarted)
    assert started.model_from == "c"


def test_the_pull_of_one_neighbour_is_bounded_by_those_of_the_others() -> None:
    settings = GossipSgd(learning_rate=1.0, decay=0.0)
    node = start(new_node(settings, neighbours=("b", "c"), guard="clip"))
    compute(node)
    node.neighbours["b"].model = INITIAL + 1
    node.neighbours["c"].model = INITIAL + 1000
    node.on_message(1.0, update(1, 0, sender="b"))
    node.on_message(1.0, update(1, 0, sender="c"))
    # Of both neighbours' weights 1/3: a third of 1 and of 4.
    assert np.allclose(node.model.vector, INITIAL + 5 / 3)
