"""Rounds: their steps, their learning rates, and error feedback."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from melisma.errors import SettingError
from melisma.learning.compression import compression_for
from melisma.learning.stepper import NullStepper
from melisma.peer import commands, messages
from melisma.peer.algorithms import AetSgd, Algorithm, GossipSgd, LocalSgd
from melisma.peer.gradient_node import GradientNode
from melisma.peer.group import Peers, PeerSettings, create_node
from melisma.peer.identity import Model, NodeIdentity
from melisma.peer.node import Node
from melisma.peer.topologies import ring
from tests.peer.tiny_nodes import (
    COMPATIBILITY,
    INITIAL,
    TASK,
    IntegerSteps,
    accepted,
    compute,
    new_node,
    sent,
    start,
    update,
)


def node_without_neighbours(
    settings: PeerSettings,
) -> GradientNode[AetSgd] | GradientNode[LocalSgd]:
    steps = NullStepper(16, 1000)
    node = settings.create_node("n0", 1, (), steps)
    assert isinstance(node, GradientNode)
    return node


def run_rounds(node: Node) -> list[commands.TakeSteps]:
    """Return the rounds of a node without neighbours."""
    rounds, outputs = [], node.start(0.0)
    while node.computing is not None:
        rounds.append(node.computing)
        outputs = node.on_computed(1.0)
    assert outputs == [commands.Finish()]
    return rounds


@pytest.mark.parametrize(
    ("iterations", "count", "last"), [(60_000, 110, 50), (10_000, 45, 100), (550, 10, 100)]
)
def test_rounds_of_10_i_are_as_many_as_in_the_paper(iterations: int, count: int, last: int) -> None:
    rounds = run_rounds(node_without_neighbours(PeerSettings(TASK, AetSgd(), iterations)))
    assert [each.number for each in rounds] == [*range(1, count + 1)]
    assert [each.steps for each in rounds[:-1]] == [10 * number for number in range(1, count)]
    assert rounds[-1].steps == last
    assert sum(each.steps for each in rounds) == iterations


@pytest.mark.parametrize(
    "algorithm",
    [AetSgd(learning_rate=0.02, decay=0.03), LocalSgd(learning_rate=0.02, decay=0.03, steps=70)],
)
def test_the_learning_rate_decays_with_the_root_of_earlier_steps(algorithm: Algorithm) -> None:
    taken = 0
    for each in run_rounds(node_without_neighbours(PeerSettings(TASK, algorithm, 2000))):
        assert each.learning_rate == 0.02 / (1 + 0.03 * sqrt(taken))
        taken += each.steps


def test_rounds_with_another_power_and_base_steps() -> None:
    rounds = run_rounds(
        node_without_neighbours(
            PeerSettings(TASK, AetSgd(growth=2.0, power=2.0, base_steps=3.0), 200)
        )
    )
    assert [each.steps for each in rounds] == [5, 11, 21, 35, 53, 75]


@given(
    speeds=st.lists(st.floats(0.2, 5.0), min_size=2, max_size=5),
    algorithm=st.sampled_from(
        [
            AetSgd(),
            AetSgd(growth=3.0, power=0.5),
            AetSgd(growth=1.0, power=1.5, base_steps=4.0),
            LocalSgd(steps=10),
        ]
    ),
    count=st.integers(1, 40),
    short=st.booleans(),
)
def test_nodes_of_different_shares_have_the_same_number_of_rounds(
    speeds: list[float], algorithm: Algorithm, count: int, short: bool
) -> None:
    round_size = node_without_neighbours(PeerSettings(TASK, algorithm, 1)).round_size
    steps = [round_size(number) for number in range(1, count + 1)]
    # The last round is complete, or half as long.
    iterations = sum(steps) - (steps[-1] // 2 if short and steps[-1] > 20 else 0)
    peers = Peers(
        PeerSettings(TASK, algorithm, iterations), ring(len(speeds)), "ring", tuple(speeds)
    )
    for speed, group in zip(speeds, peers.node_settings, strict=True):
        share = speed / np.mean(speeds)
        rounds = run_rounds(node_without_neighbours(group))
        if share * min(steps) >= 1:
            assert len(rounds) == count
        assert sum(each.steps for each in rounds) == max(1, round(share * iterations))
        assert all(
            abs(each.steps - share * size) <= 1
            for each, size in zip(rounds[:-1], steps, strict=False)
            if share * min(steps) >= 1
        )


def test_shares_need_an_algorithm_with_rounds_and_one_share_per_node() -> None:
    with pytest.raises(SettingError, match="algorithm gossip has no shares"):
        Peers(PeerSettings(TASK, GossipSgd(), 10), ring(3), "ring", (1.0, 2.0, 3.0))
    with pytest.raises(SettingError, match="2 shares for 3 nodes"):
        Peers(PeerSettings(TASK, AetSgd(), 10), ring(3), "ring", (1.0, 2.0))


# Error feedback.


@pytest.mark.parametrize("compression", ["q8", "q4", "topk:0.01", "topk:0.3"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_sent_updates_and_error_feedback_add_up_to_all_gradients(
    compression: str, decay: float
) -> None:
    """Measured in parameters: every gradient times the learning rate of its round."""
    steps = IntegerSteps(np.random.default_rng(1), size=1000)
    outputs, packing = (
        AetSgd(learning_rate=0.5, decay=decay, growth=1.0),
        compression_for(compression),
    )
    identity = NodeIdentity("a", 1, 3000, COMPATIBILITY, patience_s=10.0)
    node = create_node(identity, ("b",), Model(steps.vector, steps.gradient_sum), packing, outputs)
    assert isinstance(node, GradientNode)
    start(node)
    initial, arrived = steps.vector.copy(), np.zeros(1000)
    feedback: list[float] = []
    for number in range(1, 60):
        assert node.computing is not None
        for _ in range(node.computing.steps):
            steps.step(node.computing.learning_rate)
        (message,) = sent(node.on_computed(float(number)), messages.Update)
        arrived += message.learning_rate * packing.unpack(message.content, 1000)
        moved = initial - steps.vector
        np.testing.assert_allclose(arrived + node.error_feedback, moved, rtol=0, atol=2e-3)
        feedback.append(float(np.abs(node.error_feedback).mean()))
        assert not steps.gradient_sum.any()
        node.on_message(
            float(number),
            messages.Update(
                sender="b",
                incarnation=1,
                to_incarnation=1,
                number=number,
                learning_rate=0.0,
                content=packing.pack(np.zeros(1000, np.float32)),
            ),
        )
    assert feedback[-1] > 0
    # It does not accumulate: it stays below the whole change.
    assert np.abs(node.error_feedback).sum() < 0.9 * np.abs(moved).sum()
    dropped = np.abs(moved - arrived).sum()
    assert dropped == pytest.approx(np.abs(node.error_feedback).sum(), rel=0.05)


def test_without_compression_the_sum_is_sent_exactly() -> None:
    node = start(new_node(LocalSgd(learning_rate=0.3, decay=0.0, steps=3)))
    (message,) = sent(compute(node, np.array([1, -2, 3, 4])), messages.Update)
    assert np.frombuffer(message.content, np.float32).tolist() == [1, -2, 3, 4]
    assert message.learning_rate == 0.3
    assert isinstance(node, GradientNode)
    assert not node.error_feedback.any()


# Gain.


def test_an_update_is_weighted_by_the_larger_of_both_degrees_or_by_the_gain() -> None:
    node = new_node(LocalSgd(learning_rate=1.0, decay=0.0, steps=3), neighbours=("b", "c"))
    node.start(0.0)
    node.on_message(0.1, accepted("b"))
    node.on_message(0.1, replace(accepted("c"), degree=3))
    node.on_message(1.0, update(1, np.array([12, 0, 0, 0]), rate=0.5, sender="b"))
    node.on_message(1.0, update(1, np.array([0, 12, 0, 0]), rate=0.5, sender="c"))
    # This node has 2 neighbours, and c has 3.
    assert np.allclose(node.model.vector, INITIAL - np.array([2, 1.5, 0, 0]))
    node = new_node(LocalSgd(learning_rate=1.0, decay=0.0, steps=3, gain=2.0))
    start(node).on_message(1.0, update(1, 3, rate=0.5))
    assert np.array_equal(node.model.vector, INITIAL - 3)
