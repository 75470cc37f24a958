"""Events that the messenger of a node puts into its queue."""

from dataclasses import dataclass

from melisma.peer import messages


@dataclass(frozen=True)
class MessageReceived:
    """A message arrived, signed with `key`; `number` is that of the inbox on disk, or 0."""

    message: messages.Message
    key: str = ""
    number: int = 0


@dataclass(frozen=True)
class MessageAcknowledged:
    """A message that was sent arrived; the call took that long. None if it was rejected."""

    number: int
    round_trip_s: float | None


@dataclass(frozen=True)
class NameRefused:
    """A node that knows the token asked for a name that belongs to another key."""

    name: str
    reason: str


@dataclass(frozen=True)
class NeighbourUnreachable:
    """A neighbour does not answer any more."""

    name: str
    reason: str


NetworkEvent = MessageReceived | MessageAcknowledged | NameRefused | NeighbourUnreachable
