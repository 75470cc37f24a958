"""State changes that a node makes known, for reports and for checks of invariants.

A driver need not act on them.
"""

import msgspec


class NodeNotice(msgspec.Struct, frozen=True, kw_only=True, tag_field="notice"):
    """The base of all notices."""


class NeighbourJoined(NodeNotice, frozen=True, kw_only=True, tag=True):
    """A new incarnation of a neighbour; until it trains it counts as having sent those updates."""

    name: str
    incarnation: int
    assumed_updates: int


class NeighbourReady(NodeNotice, frozen=True, kw_only=True, tag=True):
    """A neighbour trains, or is back; updates up to `updates_done` are not expected from it."""

    name: str
    incarnation: int
    updates_done: int
    returned: bool = False


class NeighbourLost(NodeNotice, frozen=True, kw_only=True, tag=True):
    """A neighbour does not answer; `alone` if no other is left."""

    name: str
    alone: bool


class NeighbourStalled(NodeNotice, frozen=True, kw_only=True, tag=True):
    """A neighbour answers, but sent no update for `waited_s`; it is not waited for any more."""

    name: str
    waited_s: float


class ForgeryRejected(NodeNotice, frozen=True, kw_only=True, tag=True):
    """A message in the name of `sender` was not signed with its key; the first one is reported."""

    sender: str
    reason: str


class IncarnationRefuted(NodeNotice, frozen=True, kw_only=True, tag=True):
    """A neighbour knows a later incarnation of this node, which continues as a still later one."""

    known_by: str
    incarnation: int


class TrainingStarted(NodeNotice, frozen=True, kw_only=True, tag=True):
    """The node starts training, with the model of the neighbour `model_from` if not empty."""

    model_from: str
    updates_done: int


class UpdateApplied(NodeNotice, frozen=True, kw_only=True, tag=True):
    """An update of a neighbour was applied; `factor` is below 1 if it was scaled down."""

    sender: str
    incarnation: int
    number: int
    factor: float = 1.0


class MessageRejected(NodeNotice, frozen=True, kw_only=True, tag=True):
    """A message of a neighbour was rejected; `number` is that of an update, else 0."""

    sender: str
    reason: str
    incarnation: int = 0
    number: int = 0


AnyNotice = (
    NeighbourJoined
    | NeighbourReady
    | NeighbourLost
    | NeighbourStalled
    | ForgeryRejected
    | IncarnationRefuted
    | TrainingStarted
    | UpdateApplied
    | MessageRejected
)
