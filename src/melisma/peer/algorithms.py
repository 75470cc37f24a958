"""Settings of the algorithms; the defaults are those of the papers."""

from typing import Annotated, Literal

from msgspec import Meta

from melisma.fleet.tables import NonNegative, NonNegativeInt, Positive, PositiveInt, Table

MaxLag = NonNegativeInt | Literal["auto"]
"""The number of rounds that a neighbour may be behind; `auto` chooses it by measured times."""


class AetSgd(Table, frozen=True, kw_only=True, tag_field="algorithm", tag="aet"):
    """AET-SGD: round i has growth i^power + base_steps steps, times the node's share.

    The update of a neighbour is weighted by `gain`; without it, by 1 / (1 + the larger of both
    degrees). The paper's gain is 1, by which nodes of incomplete graphs drift apart.
    """

    learning_rate: Positive = 0.01
    decay: NonNegative = 0.01
    growth: NonNegative = 10.0
    power: NonNegative = 1.0
    base_steps: NonNegative = 0.0
    max_lag: MaxLag = 1
    share: Positive = 1.0
    gain: Positive | None = None

    def __post_init__(self) -> None:
        """Check that rounds have steps; empty rounds would never end."""
        if self.growth + self.base_steps <= 0:
            raise ValueError("growth and base_steps are 0; expected at least one above 0")


class LocalSgd(Table, frozen=True, kw_only=True, tag_field="algorithm", tag="local"):
    """Constant local SGD: every round has `steps` steps; `gain` as in AET-SGD."""

    learning_rate: Positive = 0.01
    decay: NonNegative = 0.01
    steps: PositiveInt = 100
    max_lag: MaxLag = 1
    share: Positive = 1.0
    gain: Positive | None = None


class EventTriggeredSgd(Table, frozen=True, kw_only=True, tag_field="algorithm", tag="event"):
    """Event-triggered SGD: after t steps the learning rate is r / (decay t + 1).

    The move towards neighbours has the factor `coupling` r / (decay t + 1)^0.1. A node sends its
    model when it has moved by more than `threshold` learning rates per parameter.
    """

    learning_rate: Positive = 0.01
    decay: NonNegative = 1e-5
    coupling: Positive = 2.252
    threshold: NonNegative = 0.2


class GossipSgd(Table, frozen=True, kw_only=True, tag_field="algorithm", tag="gossip"):
    """Decentralised parallel SGD: `steps` steps, then a mean with the neighbours' models.

    `mixing` is the fraction of the way to that mean; below 1 it stabilises strong compression.
    """

    learning_rate: Positive = 0.01
    decay: NonNegative = 0.01
    steps: PositiveInt = 1
    mixing: Annotated[float, Meta(gt=0, le=1)] = 1.0


Algorithm = AetSgd | LocalSgd | EventTriggeredSgd | GossipSgd
ALGORITHMS: dict[str, type[Algorithm]] = {
    "aet": AetSgd,
    "local": LocalSgd,
    "event": EventTriggeredSgd,
    "gossip": GossipSgd,
}
