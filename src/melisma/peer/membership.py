"""The neighbours of a node: which are reachable, lost or rejected."""

from collections.abc import Iterable
from typing import Any

from melisma.peer import commands, messages, notices
from melisma.peer.identity import NodeIdentity
from melisma.peer.neighbour import Neighbour

FORMER_INCARNATION = "sent by a former incarnation"
LATER_INCARNATION = "a later incarnation of that name is known here; is its clock right?"


class Membership:
    """Neighbours by name, with the messages that do not depend on training."""

    def __init__(self, identity: NodeIdentity, names: Iterable[str]) -> None:
        self._identity = identity
        self.neighbours = {name: Neighbour(name) for name in names}

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
        """Whether each neighbour has sent its last update or is lost."""
        return all(each.finished or each.lost for each in self.neighbours.values())

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
        sender, incarnation = self._identity.name, self._identity.incarnation
        content = message(sender=sender, incarnation=incarnation, **fields)
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
        compatibility = dict(self._identity.compatibility)
        return self.send(name, messages.Hello, compatibility=compatibility, degree=self.degree)

    def reject_hello(
        self, hello: messages.Hello, reason: str
    ) -> list[commands.AnyCommand | notices.AnyNotice]:
        """Reject a `Hello` without any change to the neighbours."""
        to, described = hello.sender, f"cannot be a neighbour: {reason}"
        return [
            notices.MessageRejected(sender=to, reason=described),
            self.send(to, messages.Rejected, to_incarnation=hello.incarnation, reason=reason),
        ]

    def join(self, message: messages.PeerMessage, assumed_updates: int) -> notices.NeighbourJoined:
        """Replace the record of a neighbour by an empty one for its new incarnation."""
        name, incarnation = message.sender, message.incarnation
        self.neighbours[name] = Neighbour(name, incarnation, assumed_updates=assumed_updates)
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
