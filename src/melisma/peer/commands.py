"""Work that a node gives to its driver."""

import msgspec

from melisma.peer.messages import Message


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="command"):
    """The base of all commands."""


class TakeSteps(Command, frozen=True, kw_only=True, tag=True):
    """Take `steps` steps of SGD; messages are delivered between two steps."""

    number: int
    steps: int
    learning_rate: float


class Send(Command, frozen=True, kw_only=True, tag=True):
    """Deliver a message to a neighbour at least once, or report it unreachable."""

    to: str
    message: Message


class Wake(Command, frozen=True, kw_only=True, tag=True):
    """Call `on_wake` at that time."""

    at_s: float


class Finish(Command, frozen=True, kw_only=True, tag=True):
    """The node has finished; `reason` is empty unless it failed."""

    reason: str = ""


AnyCommand = TakeSteps | Send | Wake | Finish
