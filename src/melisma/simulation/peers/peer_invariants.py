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
from melisma.peer.gossip import GossipNode
from melisma.peer.node import Commands, Node
from melisma.peer.round_nodes import Rounds
from melisma.runs.peer_report import NodeReport
from melisma.simulation.invariants import InvariantError

Life = tuple[str, str]


@dataclass
class Page:
    """What one life took from one life of a neighbour: numbers, and from where it counts."""

    took: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    counts_from: int = 0
    level: int = 0
    _done: int = 0

    @property
    def reached(self) -> int:
        """How far its sender is; until it trains, as far as both were when they met."""
        return max(self.done, self.level)

    @property
    def done(self) -> int:
        """All up to here are in, or will not come."""
        self._done = max(self._done, self.counts_from)
        while self._done + 1 in self.took or self._done + 1 in self.refused:
            self._done += 1
        return self._done


class PeerBooks:
    """Books on one run; `hear` raises `BrokenError` at the first thing that is off."""

    def __init__(self) -> None:
        self._pages: dict[tuple[Life, Life], Page] = defaultdict(Page)
        self._sent: dict[tuple[Life, Life], set[int]] = defaultdict(set)
        self._known: dict[Life, dict[str, str]] = defaultdict(dict)
        self._gone: set[tuple[Life, str]] = set()
        self.farthest = 0
        """The largest lag with which a round began."""

    def hear(self, name: str, at_s: float, node: Node, emitted: Commands) -> None:
        """What a node said."""
        me = name, node.me.life
        for command in emitted:
            match command:
                case commands.Send(to=to, message=messages.Update() as update):
                    self._sent[me, (to, update.to)].add(update.number)
                case commands.Took(sender=sender, life=life, number=number):
                    page = self._pages[me, (sender, life)]
                    _expect(number not in page.took, at_s, f"{name} took {sender}'s {number} twice")
                    page.took.add(number)
                case commands.Refused(sender=sender, life=life, number=number) if number:
                    self._pages[me, (sender, life)].refused.add(number)
                case commands.Met(name=other, life=life, level=level):
                    self._pages[me, (other, life)].level = level
                    self._known[me][other] = life
                    self._gone.discard((me, other))
                case commands.Found(name=other, life=life, done=done):
                    page = self._pages[me, (other, life)]
                    page.counts_from, page.level = max(page.counts_from, done), 0
                    self._known[me][other] = life
                    self._gone.discard((me, other))
                case commands.Lost(name=other):
                    self._gone.add((me, other))
                case commands.Compute(number=number):
                    self._begins(at_s, node, number)

    def _begins(self, at_s: float, node: Node, number: int) -> None:
        if not isinstance(node, Rounds | GossipNode):
            return
        me = node.me.name, node.me.life
        most = node.lag.most(node.number, node.steps) if isinstance(node, Rounds) else 0
        for other, life in self._known[me].items():
            if (me, other) in self._gone or node.neighbours[other].ended:
                continue
            page = self._pages[me, (other, life)]
            lag = number - 1 - page.reached
            self.farthest = max(self.farthest, lag)
            _expect(
                lag <= most,
                at_s,
                f"{me[0]} begins round {number} while {other} lags {lag} behind; at most {most}",
            )

    def ended(self, reports: list[NodeReport]) -> None:
        """After the run: nothing that two lives sent each other to their ends was lost."""
        whole = {(each.name, each.life) for each in reports if each.outcome == "done"}
        for (sender, receiver), sent in self._sent.items():
            if {sender, receiver} <= whole and (receiver, sender[0]) not in self._gone:
                page = self._pages[receiver, sender]
                missing = sent - page.took - page.refused
                lost = sorted(each for each in missing if each > page.counts_from)
                _expect(not lost, 0.0, f"{receiver[0]} lost {lost} of {sender[0]}")


def _expect(holds: bool, at_s: float, what: str) -> None:
    if not holds:
        raise InvariantError(f"at {at_s:g} s {what}")
