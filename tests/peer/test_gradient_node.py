"""Rounds: their steps, their learning rates, and error feedback."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from melisma.errors import SettingError
from melisma.learning.compression import compression_for
from melisma.learning.steps import NoSteps
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


def alone(group: PeerSettings) -> GradientNode[AetSgd] | GradientNode[LocalSgd]:
    steps = NoSteps(16, 1000)
    found = group.create_node("n0", "1", (), steps)
    assert isinstance(found, GradientNode)
    return found


def rounds(node: Node) -> list[commands.TakeSteps]:
    """All that a node computes which has no neighbours."""
    found, emitted = [], node.start(0.0)
    while node.computing is not None:
        found.append(node.computing)
        emitted = node.on_computed(1.0)
    assert emitted == [commands.Finish()]
    return found


@pytest.mark.parametrize(
    ("iterations", "count", "last"), [(60_000, 110, 50), (10_000, 45, 100), (550, 10, 100)]
)
def test_rounds_of_10_i_are_as_many_as_the_paper_says(
    iterations: int, count: int, last: int
) -> None:
    found = rounds(alone(PeerSettings(TASK, AetSgd(), iterations)))
    assert [each.number for each in found] == [*range(1, count + 1)]
    assert [each.steps for each in found[:-1]] == [10 * number for number in range(1, count)]
    assert found[-1].steps == last
    assert sum(each.steps for each in found) == iterations


@pytest.mark.parametrize(
    "said",
    [AetSgd(learning_rate=0.02, decay=0.03), LocalSgd(learning_rate=0.02, decay=0.03, steps=70)],
)
def test_a_step_is_smaller_with_the_root_of_the_steps_before_its_round(said: Algorithm) -> None:
    taken = 0
    for each in rounds(alone(PeerSettings(TASK, said, 2000))):
        assert each.learning_rate == 0.02 / (1 + 0.03 * sqrt(taken))
        taken += each.steps


def test_other_powers_and_an_addend() -> None:
    found = rounds(alone(PeerSettings(TASK, AetSgd(growth=2.0, power=2.0, base_steps=3.0), 200)))
    assert [each.steps for each in found] == [5, 11, 21, 35, 53, 75]


@given(
    speeds=st.lists(st.floats(0.2, 5.0), min_size=2, max_size=5),
    said=st.sampled_from(
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
def test_unlike_nodes_have_as_many_rounds_each_with_its_share_of_the_steps(
    speeds: list[float], said: Algorithm, count: int, short: bool
) -> None:
    whole = alone(PeerSettings(TASK, said, 1)).round_size
    steps = [whole(number) for number in range(1, count + 1)]
    # The last one is as long as the others, or half as long.
    iterations = sum(steps) - (steps[-1] // 2 if short and steps[-1] > 20 else 0)
    peers = Peers(PeerSettings(TASK, said, iterations), ring(len(speeds)), "ring", tuple(speeds))
    for speed, group in zip(speeds, peers.node_settings, strict=True):
        share = speed / np.mean(speeds)
        found = rounds(alone(group))
        if share * min(steps) >= 1:
            assert len(found) == count
        assert sum(each.steps for each in found) == max(1, round(share * iterations))
        assert all(
            abs(each.steps - share * size) <= 1
            for each, size in zip(found[:-1], steps, strict=False)
            if share * min(steps) >= 1
        )


def test_shares_are_for_algorithms_with_rounds_and_one_for_each_node() -> None:
    with pytest.raises(SettingError, match="algorithm gossip has no shares"):
        Peers(PeerSettings(TASK, GossipSgd(), 10), ring(3), "ring", (1.0, 2.0, 3.0))
    with pytest.raises(SettingError, match="2 shares for 3 nodes"):
        Peers(PeerSettings(TASK, AetSgd(), 10), ring(3), "ring", (1.0, 2.0))


# Compression.


@pytest.mark.parametrize("compression", ["q8", "q4", "topk:0.01", "topk:0.3"])
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_what_was_sent_is_all_gradients_but_what_is_kept_back(
    compression: str, beta: float
) -> None:
    """In parameters: every gradient times the step size of its round."""
    steps = IntegerSteps(np.random.default_rng(1), size=1000)
    said, packing = AetSgd(learning_rate=0.5, decay=beta, growth=1.0), compression_for(compression)
    me = NodeIdentity("a", "1", 3000, COMPATIBILITY, patience_s=10.0)
    node = create_node(me, ("b",), Model(steps.vector, steps.slopes), packing, said)
    assert isinstance(node, GradientNode)
    start(node)
    initial, arrived = steps.vector.copy(), np.zeros(1000)
    kept: list[float] = []
    for number in range(1, 60):
        assert node.computing is not None
        for _ in range(node.computing.steps):
            steps.step(node.computing.learning_rate)
        (message,) = sent(node.on_computed(float(number)), messages.Update)
        arrived += message.learning_rate * packing.unpack(message.content, 1000)
        moved = initial - steps.vector
        np.testing.assert_allclose(arrived + node.error_feedback, moved, rtol=0, atol=2e-3)
        kept.append(float(np.abs(node.error_feedback).mean()))
        assert not steps.slopes.any()
        node.on_message(
            float(number),
            messages.Update(
                sender="b",
                incarnation="1",
                to_incarnation="1",
                number=number,
                learning_rate=0.0,
                content=packing.pack(np.zeros(1000, np.float32)),
            ),
        )
    assert kept[-1] > 0
    # It does not pile up: what is kept back is much less than all that was moved.
    assert np.abs(node.error_feedback).sum() < 0.9 * np.abs(moved).sum()
    dropped = np.abs(moved - arrived).sum()
    assert dropped == pytest.approx(np.abs(node.error_feedback).sum(), rel=0.05)


def test_without_compression_nothing_is_kept_back_and_what_is_sent_is_the_sum_itself() -> None:
    node = start(new_node(LocalSgd(learning_rate=0.3, decay=0.0, steps=3)))
    (message,) = sent(compute(node, np.array([1, -2, 3, 4])), messages.Update)
    assert np.frombuffer(message.content, np.float32).tolist() == [1, -2, 3, 4]
    assert message.learning_rate == 0.3
    assert isinstance(node, GradientNode)
    assert not node.error_feedback.any()


# What a neighbour's update counts.


def test_a_neighbours_update_counts_by_the_larger_of_both_degrees_unless_a_gain_is_said() -> None:
    node = new_node(LocalSgd(learning_rate=1.0, decay=0.0, steps=3), neighbours=("b", "c"))
    node.start(0.0)
    node.on_message(0.1, accepted("b"))
    node.on_message(0.1, replace(accepted("c"), degree=3))
    node.on_message(1.0, update(1, np.array([12, 0, 0, 0]), rate=0.5, sender="b"))
    node.on_message(1.0, update(1, np.array([0, 12, 0, 0]), rate=0.5, sender="c"))
    # This node has 2 neighbours, and c has 3.
    assert np.allclose(node.model.vector, INITIAL - np.array([2, 1.5, 0, 0]))
    said = new_node(LocalSgd(learning_rate=1.0, decay=0.0, steps=3, gain=2.0))
    start(said).on_message(1.0, update(1, 3, rate=0.5))
    assert np.array_equal(said.model.vector, INITIAL - 3)
