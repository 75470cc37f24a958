"""Messages between nodes. Any of them may arrive late, twice, and out of order.

A node that starts anew has a higher `incarnation`. A message that is addressed to another
incarnation is ignored; one from a former incarnation, or from one that is implausibly high, is
rejected. A node that resumes from its own state keeps its incarnation, and counts its `restarts`.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=10**7)]
Number = Annotated[int, Meta(ge=1, le=10**7)]
Rate = Annotated[float, Meta(gt=0, le=1e6)]
"""Values out of range, NaN included, are rejected when a message is decoded."""
Incarnation = Annotated[int, Meta(ge=0, le=2**53)]
Name = Annotated[str, Meta(max_length=32)]
Text = Annotated[str, Meta(max_length=1000)]
MAX_PROPERTIES = 16


class PeerMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of all messages: the sender, its incarnation, and how often that was resumed."""

    sender: Name
    incarnation: Incarnation
    restarts: Count = 0


class Hello(PeerMessage, frozen=True, kw_only=True, tag=True):
    """Ask to become a neighbour: properties that must match, the sender's degree and share."""

    compatibility: Annotated[dict[Text, Text], Meta(max_length=MAX_PROPERTIES)]
    degree: Count
    share: Rate = 1.0


class Accepted(PeerMessage, frozen=True, kw_only=True, tag=True):
    """Accept a `Hello` of that incarnation, with the sender's progress.

    A sender that is `training` offers its model, which contains its first `updates_done` updates;
    it does not send these any more.
    """

    to_incarnation: Incarnation
    degree: Count
    training: bool
    updates_done: Count
    steps: Annotated[int, Meta(ge=0, le=10**12)]
    model: bytes
    share: Rate = 1.0


class Rejected(PeerMessage, frozen=True, kw_only=True, tag=True):
    """Reject a `Hello` of that incarnation; a later one may be known, which the node can refute."""

    to_incarnation: Incarnation
    reason: Text
    known_incarnation: Incarnation = 0


class Started(PeerMessage, frozen=True, kw_only=True, tag=True):
    """The sender trains; its next update has the number `updates_done` + 1.

    Algorithms that send differences attach the model to which the next difference applies.
    """

    updates_done: Count
    model: bytes


class Update(PeerMessage, frozen=True, kw_only=True, tag=True):
    """An update for that incarnation, to be applied with that learning rate."""

    to_incarnation: Incarnation
    number: Number
    learning_rate: Rate
    content: bytes


class Heartbeat(PeerMessage, frozen=True, kw_only=True, tag=True):
    """The sender is alive; it may be waiting for neighbours of its own."""

    waiting: bool = False


class Goodbye(PeerMessage, frozen=True, kw_only=True, tag=True):
    """The sender has sent its last update."""

    last_update: Count


Message = Hello | Accepted | Rejected | Started | Update | Heartbeat | Goodbye


def is_for(message: Message, incarnation: int) -> bool:
    """Return whether a message is addressed to that incarnation, or to any."""
    if isinstance(message, Accepted | Rejected | Update):
        return message.to_incarnation == incarnation
    return True
