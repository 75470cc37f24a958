"""What nodes say to each other. Any of it may come late, twice, and in any order.

A node that begins anew has another `life`, which sorts after the one before. What is meant for one
life is not for the next, and what an earlier life sent is not counted in the next.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=10**7)]
Number = Annotated[int, Meta(ge=1, le=10**7)]
Rate = Annotated[float, Meta(gt=0, le=1e6)]
"""What is beyond these is refused when it is read, and so is what is no number."""


class PeerMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """By whom, in which of its lives."""

    sender: str
    incarnation: str


class Hello(PeerMessage, frozen=True, kw_only=True, tag=True):
    """It would like to be a neighbour: what it trains, and how many neighbours it has."""

    compatibility: dict[str, str]
    degree: Count


class Accepted(PeerMessage, frozen=True, kw_only=True, tag=True):
    """The answer, for that life: whether it trains, and how far it is.

    Who trains offers its model, in which its own updates are that it does not send any more.
    """

    to_incarnation: str
    degree: Count
    training: bool
    updates_done: Count
    steps: Annotated[int, Meta(ge=0, le=10**12)]
    model: bytes


class Rejected(PeerMessage, frozen=True, kw_only=True, tag=True):
    """The other answer."""

    to_incarnation: str
    reason: str


class Started(PeerMessage, frozen=True, kw_only=True, tag=True):
    """It trains, and counts its updates from this one on; from this model, where that matters."""

    updates_done: Count
    model: bytes


class Update(PeerMessage, frozen=True, kw_only=True, tag=True):
    """Its update of that number, for that life; to be applied with that step size."""

    to_incarnation: str
    number: Number
    learning_rate: Rate
    content: bytes


class Heartbeat(PeerMessage, frozen=True, kw_only=True, tag=True):
    """It is there, and has nothing else to say."""


class Goodbye(PeerMessage, frozen=True, kw_only=True, tag=True):
    """It has sent so many updates, and there will be no more."""

    last_update: Count


Message = Hello | Accepted | Rejected | Started | Update | Heartbeat | Goodbye
