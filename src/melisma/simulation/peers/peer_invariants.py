"""Invariants of training without an orchestrator, checked from outputs alone.

- An update sent to an incarnation that trains to the end is applied there exactly once, unless it
  is rejected, or its sender was lost for a while and both agreed to count from a later update.
- No round begins while a neighbour lags more than d rounds behind: the history is consistent with
  the allowed delay. With d = 0 neighbours are in lock-step.
- A node that resumes from its state has all updates that it had received, and sends no other
  update under the number of one that it had sent.
- A node believes in an incarnation of a neighbour only if that neighbour had it: forged messages
  change nothing.
- A neighbour that answers without progress is given up, but not before `patience_s` is over.
- Nodes do not wait for each other for ever; `PeerDriver` checks that.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import inf
from zlib import crc32

from melisma.peer import commands, messages, notices
from melisma.peer.gossip_sgd import GossipNode
from melisma.peer.gradient_node import GradientNode
from melisma.peer.node import Node
from melisma.peer.node_state import Outputs
from melisma.peer.stalls import MAX_STALLS
from melisma.runs.peer_report import NodeReport
from melisma.simulation.invariants.violations import InvariantError

Incarnation = tuple[str, int]
"""The name of a node and its incarnation."""


@dataclass
class ReceivedUpdates:
    """The updates that one incarnation received from one incarnation of a neighbour."""

    applied: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    start_after: int = 0
    assumed_updates: int = 0
    _received: int = 0

    @property
    def progress(self) -> int:
        """The progress of the sender; until it trains, that of the receiver when it joined."""
        return max(self.received, self.assumed_updates)

    @property
    def received(self) -> int:
        """The number of the last update without a gap before it."""
        self._received = max(self._received, self.start_after)
        while self._received + 1 in self.applied or self._received + 1 in self.rejected:
            self._received += 1
        return self._received


class PeerInvariants:
    """Checks one run; `observe` raises `InvariantError` at the first violation."""

    def __init__(self) -> None:
        self._received: dict[tuple[Incarnation, Incarnation], ReceivedUpdates] = defaultdict(
            ReceivedUpdates
        )
        self._sent: dict[tuple[Incarnation, Incarnation], set[int]] = defaultdict(set)
        self._checksums: dict[tuple[Incarnation, int], int] = {}
        self._known: dict[Incarnation, dict[str, int]] = defaultdict(dict)
        self._lost: set[tuple[Incarnation, str]] = set()
        self._ever_lost: set[tuple[Incarnation, str]] = set()
        self._stalled: set[tuple[Incarnation, str]] = set()
        self._stalls: Counter[tuple[Incarnation, str]] = Counter()
        self._had: dict[str, set[int]] = defaultdict(set)
        self.largest_lag = 0
        """The largest lag with which a round began."""

    def observe(self, name: str, at_s: float, node: Node, outputs: Outputs) -> None:
        """Check the outputs of a node."""
        me = name, node.identity.incarnation
        self._had[name].add(node.identity.incarnation)
        for output in outputs:
            match output:
                case commands.Send(to=to, message=messages.Update() as update):
                    self._sent[me, (to, update.to_incarnation)].add(update.number)
                    checksum = crc32(update.content)
                    known = self._checksums.setdefault((me, update.number), checksum)
                    message = f"{name} sent two different updates {update.number}"
                    _require(checksum == known, at_s, message)
                case commands.TakeSteps(number=number):
                    self._check_lag(at_s, node, number)
                case notices.UpdateApplied(sender=sender, incarnation=incarnation, number=number):
                    applied = self._received[me, (sender, incarnation)].applied
                    message = f"{name} applied update {number} of {sender} twice"
                    _require(number not in applied, at_s, message)
                    applied.add(number)
                case notices.MessageRejected(number=number) if number:
                    self._received[me, (output.sender, output.incarnation)].rejected.add(number)
                case notices.NeighbourJoined() | notices.NeighbourReady():
                    self._record_neighbour(me, node, output)
                case notices.NeighbourLost(name=neighbour):
                    self._lost.add((me, neighbour))
                    self._ever_lost.add((me, neighbour))
                case notices.NeighbourStalled(name=neighbour, waited_s=waited_s):
                    message = f"{name} gave up {neighbour} after {waited_s:g} s"
                    _require(waited_s > node.identity.patience_s, at_s, message)
                    self._stalled.add((me, neighbour))
                    self._stalls[me, neighbour] += 1

    def observe_resume(self, name: str, at_s: float, node: Node, former: Node) -> None:
        """Check that a node resumed with all that its former process had received and sent."""
        me = name, node.identity.incarnation
        same = node.identity.incarnation == former.identity.incarnation
        _require(same, at_s, f"{name} resumed as another incarnation")
        more = node.identity.restarts > former.identity.restarts
        _require(more, at_s, f"{name} resumed without counting the restart")
        for other, neighbour in former.neighbours.items():
            found = node.neighbours[other]
            received = neighbour.received, neighbour.out_of_order
            # It may know only by a heartbeat, which is not kept, that the neighbour is there.
            same = found.incarnation == neighbour.incarnation or not any(received)
            kept = same and received == (found.received, found.out_of_order)
            _require(kept, at_s, f"{name} forgot updates of {other}")
            for given_up, now in ((self._lost, found.lost), (self._stalled, found.stalled)):
                if not now:
                    given_up.discard((me, other))
        sent = {
            number for (sender, _), all_ in self._sent.items() if sender == me for number in all_
        }
        last = max(sent, default=0)
        _require(last <= node.update_number, at_s, f"{name} forgot that it sent update {last}")

    def _record_neighbour(
        self,
        me: Incarnation,
        node: Node,
        notice: notices.NeighbourJoined | notices.NeighbourReady,
    ) -> None:
        had = self._had.get(notice.name)
        message = f"{me[0]} believes in incarnation {notice.incarnation} of {notice.name}"
        _require(had is None or notice.incarnation in had, 0.0, message)
        received = self._received[me, (notice.name, notice.incarnation)]
        if isinstance(notice, notices.NeighbourJoined):
            received.assumed_updates = notice.assumed_updates
        else:
            received.start_after = max(received.start_after, notice.updates_done)
            received.assumed_updates = 0
        self._known[me][notice.name] = notice.incarnation
        self._lost.discard((me, notice.name))
        # A stalled neighbour may be lost and return without progress: it is not waited for.
        waits = notice.name in node.neighbours and not node.neighbours[notice.name].stalled
        if waits and self._stalls[me, notice.name] < MAX_STALLS:
            self._stalled.discard((me, notice.name))

    def _gave_up(self, me: Incarnation, neighbour: str) -> bool:
        return (me, neighbour) in self._lost or (me, neighbour) in self._stalled

    def _check_lag(self, at_s: float, node: Node, number: int) -> None:
        if not isinstance(node, GradientNode | GossipNode):
            return
        me, max_lag = (node.identity.name, node.identity.incarnation), 0
        if isinstance(node, GradientNode):
            max_lag = node.lag.max_lag(node.update_number, node.steps)
        for neighbour, incarnation in self._known[me].items():
            if self._gave_up(me, neighbour) or node.neighbours[neighbour].finished:
                continue
            lag = number - 1 - self._received[me, (neighbour, incarnation)].progress
            self.largest_lag = max(self.largest_lag, lag)
            message = f"{me[0]} begins round {number} while {neighbour} lags {lag} behind"
            _require(lag <= max_lag, at_s, f"{message}; at most {max_lag}")

    def check_end(self, reports: list[NodeReport]) -> None:
        """Check that no update between incarnations that trained to the end was lost."""
        done = {(each.name, each.incarnation) for each in reports if each.outcome == "finished"}
        for (sender, receiver), sent in self._sent.items():
            if {sender, receiver} <= done and (receiver, sender[0]) not in self._lost:
                received = self._received[receiver, sender]
                missing = sent - received.applied - received.rejected
                # A node does not wait for the last updates of a neighbour that made no progress,
                # nor for a silent one to say which updates it left out while this node was lost.
                stalled = (receiver, sender[0]) in self._stalled
                if stalled and (sender, receiver[0]) in self._ever_lost:
                    continue
                end = max(received.applied, default=0) if stalled else inf
                lost = sorted(each for each in missing if received.start_after < each < end)
                _require(not lost, 0.0, f"{receiver[0]} lost updates {lost} of {sender[0]}")


def _require(holds: bool, at_s: float, message: str) -> None:
    if not holds:
        raise InvariantError(f"at {at_s:g} s {message}")
