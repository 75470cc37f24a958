"""Messages between nodes. Any of them may arrive late, twice, and out of order.

A node that restarts has a new `incarnation`, which sorts after the previous one. A message that
is addressed to another incarnation is ignored; one from a former incarnation is rejected.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=10**7)]
Number = Annotated[int, Meta(ge=1, le=10**7)]
Rate = Annotated[float, Meta(gt=0, le=1e6)]
"""Values out of range, NaN included, are rejected when a message is decoded."""


class PeerMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of all messages: the sender and its incarnation."""

    sender: str
    incarnation: str


class Hello(PeerMessage, frozen=True, kw_only=True, tag=True):
    """Ask to become a neighbour: properties that must match, and the sender's degree."""

    compatibility: dict[str, str]
    degree: Count


class Accepted(PeerMessage, frozen=True, kw_only=True, tag=True):
    """Accept a `Hello` of that incarnation, with the sender's progress.

    A sender that is `training` offers its model, which contains its first `updates_done` updates;
    it does not send these any more.
    """

    to_incarnation: str
    degree: Count
    training: bool
    updates_done: Count
    steps: Annotated[int, Meta(ge=0, le=10**12)]
    model: bytes


class Rejected(PeerMessage, frozen=True, kw_only=True, tag=True):
    """Reject a `Hello` of that incarnation."""

    to_incarnation: str
    reason: str


class Started(PeerMessage, frozen=True, kw_only=True, tag=True):
    """The sender trains; its next update has the number `updates_done` + 1.

    Algorithms that send differences attach the model to which the next difference applies.
    """

    updates_done: Count
    model: bytes


class Update(PeerMessage, frozen=True, kw_only=True, tag=True):
    """An update for that incarnation, to be applied with that learning rate."""

    to_incarnation: str
    number: Number
    learning_rate: Rate
    content: bytes


class Heartbeat(PeerMessage, frozen=True, kw_only=True, tag=True):
    """The sender is alive."""


class Goodbye(PeerMessage, frozen=True, kw_only=True, tag=True):
    """The sender has sent its last update."""

    last_update: Count


Message = Hello | Accepted | Rejected | Started | Update | Heartbeat | Goodbye


def is_for(message: Message, incarnation: str) -> bool:
    """Return whether a message is addressed to that incarnation, or to any."""
    if isinstance(message, Accepted | Rejected | Update):
        return message.to_incarnation == incarnation
    return True
