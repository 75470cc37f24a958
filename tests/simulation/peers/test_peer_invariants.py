"""The books on nodes can fail: each thing that must not be is noticed."""

import pytest

from melisma.peer import commands, messages
from melisma.peer.algorithms import AetSgd, EventTriggeredSgd, GossipSgd, LocalSgd
from melisma.peer.node import Node, Outputs
from melisma.peer.topology import line
from melisma.runs.peer_report import NodeReport
from melisma.simulation.invariants import InvariantError
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_driver import PeerDriver, PeerScenario
from melisma.simulation.peers.peer_invariants import PeerInvariants
from tests.peer.exchange import Exchange
from tests.peer.staging import node

TOOK = commands.UpdateApplied(sender="b", incarnation="1", number=1)
MET = commands.NeighbourJoined(name="b", incarnation="1", assumed_updates=0)
FOUND = commands.NeighbourReady(name="b", incarnation="1", updates_done=0)
DONE = [NodeReport(name=name, outcome="done", incarnation="1") for name in ("a", "b")]


def heard(*emitted: commands.AnyCommand, by: Node | None = None) -> PeerInvariants:
    books = PeerInvariants()
    one = by or node(LocalSgd(max_lag=1))
    books.observe(one.identity.name, 0.0, one, [*emitted])
    return books


def compute(number: int) -> commands.Compute:
    return commands.Compute(number=number, steps=1, learning_rate=1.0)


def to_a(number: int, life: str = "1") -> commands.Send:
    message = messages.Update(
        sender="b",
        incarnation="1",
        to_incarnation=life,
        number=number,
        learning_rate=1.0,
        content=b"",
    )
    return commands.Send(to="a", message=message)


def test_an_update_that_is_applied_twice_is_noticed() -> None:
    books = heard(TOOK)
    with pytest.raises(InvariantError, match="a took b's 1 twice"):
        books.observe("a", 1.0, node(), [TOOK])


def test_another_number_sender_or_life_is_another_update() -> None:
    heard(
        TOOK,
        commands.UpdateApplied(sender="b", incarnation="1", number=2),
        commands.UpdateApplied(sender="c", incarnation="1", number=1),
        commands.UpdateApplied(sender="b", incarnation="2", number=1),
    )


def test_a_round_that_begins_while_a_neighbour_lags_too_far_is_noticed() -> None:
    one = node(LocalSgd(max_lag=1))
    books = heard(MET, FOUND, compute(1), compute(2), by=one)
    assert books.largest_lag == 1
    with pytest.raises(InvariantError, match="a begins round 3 while b lags 2 behind; at most 1"):
        books.observe("a", 1.0, one, [compute(3)])


def test_an_update_that_overtook_one_that_is_missing_does_not_stand_for_it() -> None:
    one = node(LocalSgd(max_lag=0))
    books = heard(
        MET,
        FOUND,
        compute(1),
        commands.UpdateApplied(sender="b", incarnation="1", number=2),
        by=one,
    )
    with pytest.raises(InvariantError, match="lags 1 behind; at most 0"):
        books.observe("a", 1.0, one, [compute(2)])
    books = heard(
        MET, FOUND, TOOK, commands.UpdateApplied(sender="b", incarnation="1", number=2), by=one
    )
    books.observe("a", 1.0, one, [compute(3)])
    assert books.largest_lag == 0


def test_what_was_refused_is_not_waited_for() -> None:
    one = node(LocalSgd(max_lag=0))
    refused = commands.MessageRejected(sender="b", reason="7 bytes", incarnation="1", number=1)
    books = heard(MET, FOUND, refused, compute(2), by=one)
    assert books.largest_lag == 0


def test_in_gossip_nobody_may_be_behind_and_in_event_triggered_training_everybody() -> None:
    with pytest.raises(InvariantError, match="lags 1 behind; at most 0"):
        heard(MET, FOUND, compute(2), by=node(GossipSgd()))
    heard(MET, FOUND, compute(20), by=node(EventTriggeredSgd()))


def test_a_newcomer_counts_from_where_it_was_met_and_one_that_is_gone_does_not_count() -> None:
    one = node(LocalSgd(max_lag=0))
    met = commands.NeighbourJoined(name="b", incarnation="1", assumed_updates=5)
    books = heard(met, compute(6), by=one)
    with pytest.raises(InvariantError, match="lags 1"):
        books.observe("a", 1.0, one, [compute(7)])
    books.observe("a", 2.0, one, [commands.NeighbourLost(name="b", alone=True), compute(8)])
    with pytest.raises(InvariantError, match="lags 8"):
        books.observe("a", 3.0, one, [FOUND, compute(9)])


def test_a_lost_update_is_noticed_in_the_end() -> None:
    books = PeerInvariants()
    books.observe("b", 0.0, node(name="b"), [to_a(1), to_a(2), to_a(3)])
    books.observe(
        "a", 1.0, node(), [TOOK, commands.UpdateApplied(sender="b", incarnation="1", number=3)]
    )
    with pytest.raises(InvariantError, match=r"a lost \[2\] of b"):
        books.check_end(DONE)
    books.observe("a", 2.0, node(), [commands.UpdateApplied(sender="b", incarnation="1", number=2)])
    books.check_end(DONE)


@pytest.mark.parametrize(
    "excuse",
    [
        commands.MessageRejected(sender="b", reason="corrupt", incarnation="1", number=1),
        commands.NeighbourReady(name="b", incarnation="1", updates_done=1),
        commands.NeighbourLost(name="b", alone=True),
    ],
)
def test_what_was_refused_agreed_upon_or_of_one_that_is_gone_is_not_lost(
    excuse: commands.AnyCommand,
) -> None:
    books = PeerInvariants()
    books.observe("b", 0.0, node(name="b"), [to_a(1)])
    books.observe("a", 1.0, node(), [excuse])
    books.check_end(DONE)


def test_what_was_for_a_life_that_ended_is_not_lost() -> None:
    books = PeerInvariants()
    books.observe("b", 0.0, node(name="b"), [to_a(1, life="0")])
    books.check_end(DONE)
    books.observe("b", 0.0, node(name="b"), [to_a(1)])
    books.check_end([DONE[1], NodeReport(name="a", outcome="gone", incarnation="1")])


# Machines that are broken on purpose, in a whole run.


def broken(said: AetSgd, spoil: str) -> None:
    exchange = Exchange(said, "line", 3, iterations=300)

    def made(name: str, life: str) -> tuple[Node, object]:
        one, steps = exchange.made(name, life)
        if name == "n1":
            SPOILED[spoil](one)
        return one, steps

    books = PeerInvariants()
    scene = PeerScenario(line(3), made, Delays(drawn="round", tail=1.0))  # type: ignore[arg-type]
    books.check_end(PeerDriver(scene, books.observe).run())


def forget(one: Node) -> None:
    """It does not remember what came."""
    for neighbour in one.neighbours.values():
        neighbour.record_update = lambda number: True  # type: ignore[method-assign]
    doubled = one.on_message

    def twice(at_s: float, message: messages.Message) -> Outputs:
        again = doubled(at_s, message) if isinstance(message, messages.Update) else []
        for neighbour in one.neighbours.values():
            neighbour.record_update = lambda number: True  # type: ignore[method-assign]
        return [*again, *doubled(at_s, message)]

    one.on_message = twice  # type: ignore[method-assign]


def hurry(one: Node) -> None:
    """It waits for nobody."""
    one.lag.max_lag = lambda number, iterations: 0  # type: ignore[attr-defined]
    plain = one.next_compute

    def now() -> commands.Compute | None:
        one.lag.fixed, most = 0, one.lag.max_lag  # type: ignore[attr-defined]
        one.lag.max_lag = lambda number, iterations: 99  # type: ignore[attr-defined]
        found = plain()
        one.lag.max_lag = most  # type: ignore[attr-defined]
        return found

    one.next_compute = now  # type: ignore[method-assign]


def drop(one: Node) -> None:
    """It loses every third update, and counts it as if it had come."""
    plain = one._updated

    def some(neighbour: object, update: messages.Update) -> Outputs:
        if update.number % 3 == 0:
            one.neighbours[update.sender].record_update(update.number)
            return []
        return plain(one.neighbours[update.sender], update)

    one._updated = some  # type: ignore[method-assign]


SPOILED = {"took n[02]'s 1 twice": forget, "n1 begins round 2 while n. lags 1": hurry, "lags": drop}


@pytest.mark.parametrize("spoil", SPOILED)
def test_a_broken_machine_does_not_come_through_a_run(spoil: str) -> None:
    with pytest.raises(InvariantError, match=spoil):
        broken(AetSgd(max_lag=0), spoil)
