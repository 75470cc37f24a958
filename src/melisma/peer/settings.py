"""What can be said of each algorithm; the papers' settings unless said otherwise."""

from typing import Annotated, Literal

from msgspec import Meta

from melisma.fleet.task import Count, Least, LeastCount, Positive, Table

Behind = LeastCount | Literal["auto"]
"""How many rounds a neighbour may be behind; `auto` is by what rounds and messages take."""


class Aet(Table, frozen=True, kw_only=True, tag_field="algorithm", tag="aet"):
    """AET-SGD: the round of number i has a i^p + b steps, times the node's share.

    A neighbour's update counts `gain` times; without it, 1 / (1 + the larger degree of both). The
    paper's is 1, by which nodes that are not all neighbours of each other drift apart.
    """

    eta: Positive = 0.01
    beta: Least = 0.01
    a: Least = 10.0
    p: Least = 1.0
    b: Least = 0.0
    lag: Behind = 1
    share: Positive = 1.0
    gain: Positive | None = None

    def __post_init__(self) -> None:
        """Rounds of nothing would never end."""
        if self.a + self.b <= 0:
            raise ValueError("a and b are 0; expected rounds of some steps")


class Local(Table, frozen=True, kw_only=True, tag_field="algorithm", tag="local"):
    """Constant local SGD: all rounds have as many steps; `gain` as of AET-SGD."""

    eta: Positive = 0.01
    beta: Least = 0.01
    steps: Count = 100
    lag: Behind = 1
    share: Positive = 1.0
    gain: Positive | None = None


class Event(Table, frozen=True, kw_only=True, tag_field="algorithm", tag="event"):
    """Event-triggered SGD: after t steps a step is eta / (epsilon t + 1).

    The pull towards neighbours is `pull` eta / (epsilon t + 1)^0.1; who has moved by more than
    `threshold` a parameter, in steps, tells its model.
    """

    eta: Positive = 0.01
    epsilon: Least = 1e-5
    pull: Positive = 2.252
    threshold: Least = 0.2


class Gossip(Table, frozen=True, kw_only=True, tag_field="algorithm", tag="gossip"):
    """Decentralised parallel SGD: some steps, then the mean of the neighbours' models.

    `gamma` is the part of the way to that mean; less than 1 steadies strong compression.
    """

    eta: Positive = 0.01
    beta: Least = 0.01
    steps: Count = 1
    gamma: Annotated[float, Meta(gt=0, le=1)] = 1.0


Algorithm = Aet | Local | Event | Gossip
ALGORITHMS: dict[str, type[Algorithm]] = {
    "aet": Aet,
    "local": Local,
    "event": Event,
    "gossip": Gossip,
}
