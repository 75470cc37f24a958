"""What can be said of each algorithm; the papers' settings unless said otherwise."""

from typing import Annotated, Literal

from msgspec import Meta

from melisma.fleet.task import Count, Least, LeastCount, Positive, Table

MaxLag = LeastCount | Literal["auto"]
"""How many rounds a neighbour may be behind; `auto` is by what rounds and messages take."""


class AetSgd(Table, frozen=True, kw_only=True, tag_field="algorithm", tag="aet"):
    """AET-SGD: the round of number i has a i^p + b steps, times the node's share.

    A neighbour's update counts `gain` times; without it, 1 / (1 + the larger degree of both). The
    paper's is 1, by which nodes that are not all neighbours of each other drift apart.
    """

    learning_rate: Positive = 0.01
    decay: Least = 0.01
    growth: Least = 10.0
    power: Least = 1.0
    base_steps: Least = 0.0
    max_lag: MaxLag = 1
    share: Positive = 1.0
    gain: Positive | None = None

    def __post_init__(self) -> None:
        """Rounds of nothing would never end."""
        if self.growth + self.base_steps <= 0:
            raise ValueError("a and b are 0; expected rounds of some steps")


class LocalSgd(Table, frozen=True, kw_only=True, tag_field="algorithm", tag="local"):
    """Constant local SGD: all rounds have as many steps; `gain` as of AET-SGD."""

    learning_rate: Positive = 0.01
    decay: Least = 0.01
    steps: Count = 100
    max_lag: MaxLag = 1
    share: Positive = 1.0
    gain: Positive | None = None


class EventTriggeredSgd(Table, frozen=True, kw_only=True, tag_field="algorithm", tag="event"):
    """Event-triggered SGD: after t steps a step is eta / (epsilon t + 1).

    The pull towards neighbours is `pull` eta / (epsilon t + 1)^0.1; who has moved by more than
    `threshold` a parameter, in steps, tells its model.
    """

    learning_rate: Positive = 0.01
    decay: Least = 1e-5
    coupling: Positive = 2.252
    threshold: Least = 0.2


class GossipSgd(Table, frozen=True, kw_only=True, tag_field="algorithm", tag="gossip"):
    """Decentralised parallel SGD: some steps, then the mean of the neighbours' models.

    `gamma` is the part of the way to that mean; less than 1 steadies strong compression.
    """

    learning_rate: Positive = 0.01
    decay: Least = 0.01
    steps: Count = 1
    mixing: Annotated[float, Meta(gt=0, le=1)] = 1.0


Algorithm = AetSgd | LocalSgd | EventTriggeredSgd | GossipSgd
ALGORITHMS: dict[str, type[Algorithm]] = {
    "aet": AetSgd,
    "local": LocalSgd,
    "event": EventTriggeredSgd,
    "gossip": GossipSgd,
}
