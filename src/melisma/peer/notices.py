"""State changes that a node makes known, for reports and for checks of invariants.

A driver need not act on them.
"""

import msgspec


class NodeNotice(msgspec.Struct, frozen=True, kw_only=True, tag_field="notice"):
    """The base of all notices."""


class NeighbourJoined(NodeNotice, frozen=True, kw_only=True, tag=True):
    """A new incarnation of a neighbour; until it trains it counts as having sent those updates."""

    name: str
    incarnation: str
    assumed_updates: int


class NeighbourReady(NodeNotice, frozen=True, kw_only=True, tag=True):
    """A neighbour trains, or is back; updates up to `updates_done` are not expected from it."""

    name: str
    incarnation: str
    updates_done: int
    returned: bool = False


class NeighbourLost(NodeNotice, frozen=True, kw_only=True, tag=True):
    """A neighbour does not answer; `alone` if no other is left."""

    name: str
    alone: bool


class TrainingStarted(NodeNotice, frozen=True, kw_only=True, tag=True):
    """The node starts training, with the model of the neighbour `model_from` if not empty."""

    model_from: str
    updates_done: int


class UpdateApplied(NodeNotice, frozen=True, kw_only=True, tag=True):
    """An update of a neighbour was applied."""

    sender: str
    incarnation: str
    number: int


class MessageRejected(NodeNotice, frozen=True, kw_only=True, tag=True):
    """A message of a neighbour was rejected; `number` is that of an update, else 0."""

    sender: str
    reason: str
    incarnation: str = ""
    number: int = 0


AnyNotice = (
    NeighbourJoined
    | NeighbourReady
    | NeighbourLost
    | TrainingStarted
    | UpdateApplied
    | MessageRejected
)
