"""What must hold of nodes whatever goes wrong: kept in books of its own.

- An update that was sent to a life that did not end is applied there exactly once, unless its
  sender was gone for a while and both agreed to count on from a later one, or it is given up.
- No round begins while a neighbour lags farther behind than d: its history is consistent with the
  delay that was allowed. With d = 0 neighbours are in lock-step.
- Nobody waits for ever; `PeerDriver` sees to that.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from melisma.peer import commands, messages
from melisma.peer.gossip_sgd import GossipNode
from melisma.peer.gradient_node import GradientNode
from melisma.peer.node import Node, Outputs
from melisma.runs.peer_report import NodeReport
from melisma.simulation.invariants import InvariantError

Incarnation = tuple[str, str]


@dataclass
class ReceivedUpdates:
    """What one life took from one life of a neighbour: numbers, and from where it counts."""

    applied: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    start_after: int = 0
    assumed_updates: int = 0
    _done: int = 0

    @property
    def progress(self) -> int:
        """How far its sender is; until it trains, as far as both were when they met."""
        return max(self.received, self.assumed_updates)

    @property
    def received(self) -> int:
        """All up to here are in, or will not come."""
        self._done = max(self._done, self.start_after)
        while self._done + 1 in self.applied or self._done + 1 in self.refused:
            self._done += 1
        return self._done


class PeerInvariants:
    """Books on one run; `hear` raises `BrokenError` at the first thing that is off."""

    def __init__(self) -> None:
        self._pages: dict[tuple[Incarnation, Incarnation], ReceivedUpdates] = defaultdict(
            ReceivedUpdates
        )
        self._sent: dict[tuple[Incarnation, Incarnation], set[int]] = defaultdict(set)
        self._known: dict[Incarnation, dict[str, str]] = defaultdict(dict)
        self._gone: set[tuple[Incarnation, str]] = set()
        self.largest_lag = 0
        """The largest lag with which a round began."""

    def observe(self, name: str, at_s: float, node: Node, emitted: Outputs) -> None:
        """What a node said."""
        me = name, node.identity.incarnation
        for command in emitted:
            match command:
                case commands.Send(to=to, message=messages.Update() as update):
                    self._sent[me, (to, update.to_incarnation)].add(update.number)
                case commands.UpdateApplied(sender=sender, incarnation=life, number=number):
                    page = self._pages[me, (sender, life)]
                    _expect(
                        number not in page.applied, at_s, f"{name} took {sender}'s {number} twice"
                    )
                    page.applied.add(number)
                case commands.MessageRejected(sender=sender, incarnation=life, number=number) if (
                    number
                ):
                    self._pages[me, (sender, life)].refused.add(number)
                case commands.NeighbourJoined(name=other, incarnation=life, assumed_updates=level):
                    self._pages[me, (other, life)].assumed_updates = level
                    self._known[me][other] = life
                    self._gone.discard((me, other))
                case commands.NeighbourReady(name=other, incarnation=life, updates_done=done):
                    page = self._pages[me, (other, life)]
                    page.start_after, page.assumed_updates = max(page.start_after, done), 0
                    self._known[me][other] = life
                    self._gone.discard((me, other))
                case commands.NeighbourLost(name=other):
                    self._gone.add((me, other))
                case commands.Compute(number=number):
                    self._begins(at_s, node, number)

    def _begins(self, at_s: float, node: Node, number: int) -> None:
        if not isinstance(node, GradientNode | GossipNode):
            return
        me = node.identity.name, node.identity.incarnation
        most = (
            node.lag.max_lag(node.update_number, node.steps)
            if isinstance(node, GradientNode)
            else 0
        )
        for other, life in self._known[me].items():
            if (me, other) in self._gone or node.neighbours[other].finished:
                continue
            page = self._pages[me, (other, life)]
            lag = number - 1 - page.progress
            self.largest_lag = max(self.largest_lag, lag)
            _expect(
                lag <= most,
                at_s,
                f"{me[0]} begins round {number} while {other} lags {lag} behind; at most {most}",
            )

    def check_end(self, reports: list[NodeReport]) -> None:
        """After the run: nothing that two lives sent each other to their ends was lost."""
        whole = {(each.name, each.incarnation) for each in reports if each.outcome == "done"}
        for (sender, receiver), sent in self._sent.items():
            if {sender, receiver} <= whole and (receiver, sender[0]) not in self._gone:
                page = self._pages[receiver, sender]
                missing = sent - page.applied - page.refused
                lost = sorted(each for each in missing if each > page.start_after)
                _expect(not lost, 0.0, f"{receiver[0]} lost {lost} of {sender[0]}")


def _expect(holds: bool, at_s: float, what: str) -> None:
    if not holds:
        raise InvariantError(f"at {at_s:g} s {what}")
