"""The neighbours of a node: which are reachable, lost, stalled or rejected."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from melisma.peer import commands, messages, notices
from melisma.peer.identity import NodeIdentity
from melisma.peer.keyring import KeyRing
from melisma.peer.neighbour import Neighbour
from melisma.peer.stalls import MAX_STALLS

FORMER_INCARNATION = "sent by a former incarnation"
LATER_INCARNATION = "a later incarnation of that name is known here: check the clock of its device"
MAX_INCARNATION_JUMP = 100 * 31_557_600_000
"""The largest step from a known incarnation to the next: 100 years in milliseconds."""
MAX_GREETINGS = 8
"""The number of greetings of one node that are answered within `patience_s`."""
MAX_INVALID_MESSAGES = 100
"""The number of invalid messages after which a neighbour is rejected."""
MAX_REFUTATIONS = 3
"""The number of times that this node continues as a later incarnation."""


class Membership:
    """Neighbours by name, with the messages that do not depend on training."""

    def __init__(self, identity: NodeIdentity, names: Iterable[str]) -> None:
        self.identity = identity
        self.neighbours = {name: Neighbour(name) for name in names}
        self.keyring = KeyRing(identity.name, self.neighbours, identity.keys)
        self.forgeries: Counter[str] = Counter()
        """The number of forged messages by the name that they used."""
        self._greeted_s: dict[str, deque[float]] = {}
        self.refutations = 0
        """How often this node continued as a later incarnation."""

    @property
    def degree(self) -> int:
        """The number of neighbours that are not rejected, lost ones included."""
        return sum(not neighbour.rejected for neighbour in self.neighbours.values())

    @property
    def all_answered(self) -> bool:
        """Whether each neighbour has answered or is lost."""
        return all(each.answered or each.lost for each in self.neighbours.values())

    @property
    def all_finished(self) -> bool:
        """Whether each neighbour has sent its last update or is given up."""
        return all(each.done_or_given_up for each in self.neighbours.values())

    @property
    def all_rejected(self) -> bool:
        """Whether there are neighbours, and none of them can be trained with."""
        return bool(self.neighbours) and self.degree == 0

    def reachable_neighbours(self) -> list[Neighbour]:
        """Return the neighbours to which updates are sent."""
        return [neighbour for neighbour in self.neighbours.values() if neighbour.reachable]

    def neighbours_to_await(self) -> list[Neighbour]:
        """Return the neighbours from which updates are expected."""
        return [neighbour for neighbour in self.neighbours.values() if neighbour.awaited]

    def send(self, to: str, message: type[messages.Message], **fields: Any) -> commands.Send:
        """Return the command that sends a message of that type from this node."""
        identity = self.identity
        content = message(
            sender=identity.name,
            incarnation=identity.incarnation,
            restarts=identity.restarts,
            **fields,
        )
        return commands.Send(to=to, message=content)

    def send_update(self, number: int, learning_rate: float, content: bytes) -> list[commands.Send]:
        """Send an update to all reachable neighbours."""
        return [
            self.send(
                neighbour.name,
                messages.Update,
                to_incarnation=neighbour.incarnation,
                number=number,
                learning_rate=learning_rate,
                content=content,
            )
            for neighbour in self.reachable_neighbours()
        ]

    def greet(self, name: str) -> commands.Send:
        """Ask `name` to become a neighbour."""
        compatibility, share = dict(self.identity.compatibility), self.identity.share
        return self.send(
            name, messages.Hello, compatibility=compatibility, degree=self.degree, share=share
        )

    def describe_implausible(self, message: messages.PeerMessage) -> str:
        """Describe an incarnation that is too far ahead; empty if it is plausible.

        Without this bound one message could use up all later incarnations.
        """
        neighbour = self.neighbours.get(message.sender)
        known = max(neighbour.incarnation if neighbour else 0, self.identity.incarnation)
        if message.incarnation <= known + MAX_INCARNATION_JUMP:
            return ""
        return f"incarnation {message.incarnation} is too far ahead of {known}: check its clock"

    def greets_too_often(self, at_s: float, name: str) -> bool:
        """Record a greeting; return whether there were too many of that node."""
        times_s = self._greeted_s.setdefault(name, deque(maxlen=MAX_GREETINGS))
        if len(times_s) == MAX_GREETINGS and at_s - times_s[0] < self.identity.patience_s:
            return True
        times_s.append(at_s)
        return False

    def reject_if_too_often_invalid(
        self, sender: str, outputs: list[commands.AnyCommand | notices.AnyNotice]
    ) -> list[notices.MessageRejected]:
        """Count a message that was rejected; give the neighbour up if there were too many."""
        neighbour = self.neighbours.get(sender)
        invalid = any(isinstance(output, notices.MessageRejected) for output in outputs)
        if neighbour is None or neighbour.rejected or not invalid:
            return []
        neighbour.invalid_messages += 1
        if neighbour.invalid_messages < MAX_INVALID_MESSAGES:
            return []
        neighbour.lost = neighbour.rejected = True
        reason = f"{MAX_INVALID_MESSAGES} invalid messages: training continues without it"
        return [notices.MessageRejected(sender=sender, reason=reason)]

    def report_forgery(self, sender: str, reason: str) -> list[notices.ForgeryRejected]:
        """Count a forged message; return a notice of the first one."""
        self.forgeries[sender] += 1
        first = self.forgeries[sender] == 1
        return [notices.ForgeryRejected(sender=sender, reason=reason)] if first else []

    def reject_hello(
        self, hello: messages.Hello, reason: str, known_incarnation: int = 0
    ) -> list[commands.AnyCommand | notices.AnyNotice]:
        """Reject a `Hello` without any change to the neighbours."""
        to, described = hello.sender, f"cannot be a neighbour: {reason}"
        return [
            notices.MessageRejected(sender=to, reason=described),
            self.send(
                to,
                messages.Rejected,
                to_incarnation=hello.incarnation,
                reason=reason,
                known_incarnation=known_incarnation,
            ),
        ]

    def refute(self, rejected: messages.Rejected) -> list[commands.AnyCommand | notices.AnyNotice]:
        """Continue as an incarnation after the one that a neighbour knows.

        Only the holder of this node's key can have made it known: this node, with another clock.
        """
        mine, known = self.identity.incarnation, rejected.known_incarnation
        too_often = self.refutations >= MAX_REFUTATIONS
        if not mine < known <= mine + MAX_INCARNATION_JUMP or too_often:
            return []
        self.refutations += 1
        self.identity = replace(self.identity, incarnation=known + 1)
        for neighbour in self.neighbours.values():
            # Updates to the former incarnation are lost; the new answer says where to count from.
            neighbour.answered = False
        notice = notices.IncarnationRefuted(known_by=rejected.sender, incarnation=known + 1)
        names = [name for name, each in self.neighbours.items() if not each.rejected]
        return [notice, *(self.greet(name) for name in names)]

    def join(
        self, at_s: float, message: messages.PeerMessage, assumed_updates: int
    ) -> notices.NeighbourJoined:
        """Replace the record of a neighbour by an empty one for its new incarnation."""
        name, incarnation = message.sender, message.incarnation
        former = self.neighbours.get(name, Neighbour(name))
        self.neighbours[name] = Neighbour(
            name,
            incarnation,
            assumed_updates=assumed_updates,
            progress_at_s=at_s,
            # A restart does not reset the number of stalls.
            stalls=former.stalls,
            stalled=former.stalls >= MAX_STALLS,
        )
        return describe_join(self.neighbours[name])

    def lose(self, neighbour: Neighbour) -> notices.NeighbourLost:
        """Mark a neighbour as lost."""
        neighbour.lost, neighbour.receives_all = True, False
        alone = all(each.lost for each in self.neighbours.values())
        return notices.NeighbourLost(name=neighbour.name, alone=alone)


def describe_join(neighbour: Neighbour) -> notices.NeighbourJoined:
    """Return the notice of a neighbour that does not train yet."""
    return notices.NeighbourJoined(
        name=neighbour.name,
        incarnation=neighbour.incarnation,
        assumed_updates=neighbour.assumed_updates,
    )


def describe_ready(
    neighbour: Neighbour, *, returned: bool = False
) -> notices.NeighbourJoined | notices.NeighbourReady:
    """Return the notice of the present state of a reachable neighbour."""
    if not neighbour.started:
        return describe_join(neighbour)
    return notices.NeighbourReady(
        name=neighbour.name,
        incarnation=neighbour.incarnation,
        updates_done=neighbour.received,
        returned=returned,
    )
