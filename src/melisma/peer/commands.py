"""What a node wants done, or wants known."""

import msgspec

from melisma.peer.messages import Message


class Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="command"):
    """AnyCommand of them."""


class Compute(Command, frozen=True, kw_only=True, tag=True):
    """Take so many steps of this size; messages are heard between two steps."""

    number: int
    steps: int
    learning_rate: float


class Send(Command, frozen=True, kw_only=True, tag=True):
    """To this neighbour, at least once, unless it is gone."""

    to: str
    message: Message


class Wake(Command, frozen=True, kw_only=True, tag=True):
    """Call back then."""

    at_s: float


class UpdateApplied(Command, frozen=True, kw_only=True, tag=True):
    """An update of a neighbour was applied."""

    sender: str
    incarnation: str
    number: int


class MessageRejected(Command, frozen=True, kw_only=True, tag=True):
    """Something of a neighbour was not: why, and the number if it was an update."""

    sender: str
    reason: str
    incarnation: str = ""
    number: int = 0


class NeighbourLost(Command, frozen=True, kw_only=True, tag=True):
    """A neighbour is gone; `alone` if that was the last one."""

    name: str
    alone: bool


class NeighbourJoined(Command, frozen=True, kw_only=True, tag=True):
    """A neighbour begins anew; until it trains it counts as far as this node is."""

    name: str
    incarnation: str
    assumed_updates: int


class NeighbourReady(Command, frozen=True, kw_only=True, tag=True):
    """A neighbour is there, or there again; its updates count from that one on."""

    name: str
    incarnation: str
    updates_done: int
    returned: bool = False


class TrainingStarted(Command, frozen=True, kw_only=True, tag=True):
    """Training begins, with the model of that neighbour if it names one."""

    model_from: str
    updates_done: int


class Finish(Command, frozen=True, kw_only=True, tag=True):
    """There is nothing more to do; `why` is empty if all went well."""

    why: str = ""


AnyCommand = (
    Compute
    | Send
    | Wake
    | UpdateApplied
    | MessageRejected
    | NeighbourLost
    | NeighbourJoined
    | NeighbourReady
    | TrainingStarted
    | Finish
)
