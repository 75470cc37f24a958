"""Each violation of an invariant is detected."""

from collections.abc import Callable

import pytest

from melisma.learning.stepper import Stepper
from melisma.peer import commands, messages, notices
from melisma.peer.algorithms import AetSgd, EventTriggeredSgd, GossipSgd, LocalSgd
from melisma.peer.gradient_node import GradientNode
from melisma.peer.node import Node
from melisma.peer.node_state import Outputs
from melisma.peer.topologies import line
from melisma.runs.peer_report import NodeReport
from melisma.simulation.invariants.violations import InvariantError
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_driver import PeerDriver
from melisma.simulation.peers.peer_invariants import PeerInvariants
from melisma.simulation.peers.peer_scenario import PeerScenario
from tests.peer.simulated_group import SimulatedGroup
from tests.peer.tiny_nodes import new_node

APPLIED = notices.UpdateApplied(sender="b", incarnation=1, number=1)
JOINED = notices.NeighbourJoined(name="b", incarnation=1, assumed_updates=0)
READY = notices.NeighbourReady(name="b", incarnation=1, updates_done=0)
DONE = [NodeReport(name=name, outcome="finished", incarnation=1) for name in ("a", "b")]


def observe(
    *outputs: commands.AnyCommand | notices.AnyNotice, by: Node | None = None
) -> PeerInvariants:
    invariants = PeerInvariants()
    node = by or new_node(LocalSgd(max_lag=1))
    invariants.observe(node.identity.name, 0.0, node, [*outputs])
    return invariants


def compute(number: int) -> commands.TakeSteps:
    return commands.TakeSteps(number=number, steps=1, learning_rate=1.0)


def to_a(number: int, to_incarnation: int = 1) -> commands.Send:
    message = messages.Update(
        sender="b",
        incarnation=1,
        to_incarnation=to_incarnation,
        number=number,
        learning_rate=1.0,
        content=b"",
    )
    return commands.Send(to="a", message=message)


def test_an_update_that_is_applied_twice_is_detected() -> None:
    invariants = observe(APPLIED)
    with pytest.raises(InvariantError, match="a applied update 1 of b twice"):
        invariants.observe("a", 1.0, new_node(), [APPLIED])


def test_another_number_sender_or_incarnation_is_another_update() -> None:
    observe(
        APPLIED,
        notices.UpdateApplied(sender="b", incarnation=1, number=2),
        notices.UpdateApplied(sender="c", incarnation=1, number=1),
        notices.UpdateApplied(sender="b", incarnation=2, number=1),
    )


def test_a_round_that_begins_while_a_neighbour_lags_too_far_is_detected() -> None:
    node = new_node(LocalSgd(max_lag=1))
    invariants = observe(JOINED, READY, compute(1), compute(2), by=node)
    assert invariants.largest_lag == 1
    with pytest.raises(InvariantError, match="a begins round 3 while b lags 2 behind; at most 1"):
        invariants.observe("a", 1.0, node, [compute(3)])


def test_a_later_update_does_not_count_for_a_missing_one() -> None:
    node = new_node(LocalSgd(max_lag=0))
    invariants = observe(
        JOINED,
        READY,
        compute(1),
        notices.UpdateApplied(sender="b", incarnation=1, number=2),
        by=node,
    )
    with pytest.raises(InvariantError, match="lags 1 behind; at most 0"):
        invariants.observe("a", 1.0, node, [compute(2)])
    invariants = observe(
        JOINED,
        READY,
        APPLIED,
        notices.UpdateApplied(sender="b", incarnation=1, number=2),
        by=node,
    )
    invariants.observe("a", 1.0, node, [compute(3)])
    assert invariants.largest_lag == 0


def test_a_rejected_update_is_not_awaited() -> None:
    node = new_node(LocalSgd(max_lag=0))
    rejected = notices.MessageRejected(sender="b", reason="7 bytes", incarnation=1, number=1)
    invariants = observe(JOINED, READY, rejected, compute(2), by=node)
    assert invariants.largest_lag == 0


def test_gossip_allows_no_lag_and_event_triggered_sgd_any_lag() -> None:
    with pytest.raises(InvariantError, match="lags 1 behind; at most 0"):
        observe(JOINED, READY, compute(2), by=new_node(GossipSgd()))
    observe(JOINED, READY, compute(20), by=new_node(EventTriggeredSgd()))


def test_a_new_neighbour_counts_from_its_assumed_updates_and_a_lost_one_not_at_all() -> None:
    node = new_node(LocalSgd(max_lag=0))
    joined = notices.NeighbourJoined(name="b", incarnation=1, assumed_updates=5)
    invariants = observe(joined, compute(6), by=node)
    with pytest.raises(InvariantError, match="lags 1"):
        invariants.observe("a", 1.0, node, [compute(7)])
    invariants.observe("a", 2.0, node, [notices.NeighbourLost(name="b", alone=True), compute(8)])
    with pytest.raises(InvariantError, match="lags 8"):
        invariants.observe("a", 3.0, node, [READY, compute(9)])


def test_a_lost_update_is_detected_at_the_end() -> None:
    invariants = PeerInvariants()
    invariants.observe("b", 0.0, new_node(name="b"), [to_a(1), to_a(2), to_a(3)])
    invariants.observe(
        "a",
        1.0,
        new_node(),
        [APPLIED, notices.UpdateApplied(sender="b", incarnation=1, number=3)],
    )
    with pytest.raises(InvariantError, match=r"a lost updates \[2\] of b"):
        invariants.check_end(DONE)
    invariants.observe(
        "a", 2.0, new_node(), [notices.UpdateApplied(sender="b", incarnation=1, number=2)]
    )
    invariants.check_end(DONE)


@pytest.mark.parametrize(
    "excuse",
    [
        notices.MessageRejected(sender="b", reason="corrupt", incarnation=1, number=1),
        notices.NeighbourReady(name="b", incarnation=1, updates_done=1),
        notices.NeighbourLost(name="b", alone=True),
    ],
)
def test_an_update_that_was_rejected_skipped_or_sent_by_a_lost_neighbour_is_not_missed(
    excuse: notices.AnyNotice,
) -> None:
    invariants = PeerInvariants()
    invariants.observe("b", 0.0, new_node(name="b"), [to_a(1)])
    invariants.observe("a", 1.0, new_node(), [excuse])
    invariants.check_end(DONE)


def test_an_update_to_an_incarnation_that_ended_is_not_missed() -> None:
    invariants = PeerInvariants()
    invariants.observe("b", 0.0, new_node(name="b"), [to_a(1, to_incarnation=0)])
    invariants.check_end(DONE)
    invariants.observe("b", 0.0, new_node(name="b"), [to_a(1)])
    invariants.check_end([DONE[1], NodeReport(name="a", outcome="left", incarnation=1)])


# Whole runs with a defective node.


def run_with_defect(algorithm: AetSgd, defect: Callable[[Node], None]) -> None:
    group = SimulatedGroup(algorithm, "line", 3, iterations=300)

    def create_node(name: str, incarnation: int) -> tuple[Node, Stepper]:
        node, steps = group.create_node(name, incarnation)
        if name == "n1":
            defect(node)
        return node, steps

    invariants = PeerInvariants()
    scenario = PeerScenario(line(3), create_node, Delays(drawn="round", tail=1.0))
    invariants.check_end(PeerDriver(scenario, invariants.observe).run())


def apply_twice(node: Node) -> None:
    """Make a node forget which updates it has received."""
    on_message = node.on_message

    def forget() -> None:
        for neighbour in node.neighbours.values():
            neighbour.record_update = lambda number: True  # type: ignore[method-assign]

    def handle_twice(at_s: float, message: messages.Message, key: str = "") -> Outputs:
        again = on_message(at_s, message, key) if isinstance(message, messages.Update) else []
        forget()
        return [*again, *on_message(at_s, message, key)]

    forget()
    node.on_message = handle_twice  # type: ignore[method-assign]


def ignore_lag(node: Node) -> None:
    """Make a node compute however far its neighbours lag behind."""
    assert isinstance(node, GradientNode)
    next_compute = node.next_steps

    def compute_now() -> commands.TakeSteps | None:
        node.lag.fixed = 99
        computing = next_compute()
        node.lag.fixed = 0
        return computing

    node.next_steps = compute_now  # type: ignore[method-assign]


def drop_updates(node: Node) -> None:
    """Make a node record every third update without applying it."""
    on_message = node.on_message

    def drop_some(at_s: float, message: messages.Message, key: str = "") -> Outputs:
        if isinstance(message, messages.Update) and message.number % 3 == 0:
            node.neighbours[message.sender].record_update(message.number)
        return on_message(at_s, message, key)

    node.on_message = drop_some  # type: ignore[method-assign]


DEFECTS = {
    "applied update 1 of n[02] twice": apply_twice,
    "n1 begins round 2 while n. lags 1": ignore_lag,
    "lags": drop_updates,
}


@pytest.mark.parametrize("violation", DEFECTS)
def test_a_run_with_a_defective_node_is_detected(violation: str) -> None:
    with pytest.raises(InvariantError, match=violation):
        run_with_defect(AetSgd(max_lag=0), DEFECTS[violation])
