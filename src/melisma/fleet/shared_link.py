"""The orchestrator's own link, which all learners share.

Learners that transfer at the same time share it max-min fairly: each gets its own rate or, if those
sum to more than the link, at most the level at which the sum is the rate of the link.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from melisma.fleet.array_types import Floats, Ints


@dataclass(frozen=True)
class SharedLink:
    """The rates of the orchestrator: it sends at `uplink_bps` and receives at `downlink_bps`."""

    uplink_bps: float = inf
    downlink_bps: float = inf

    @property
    def is_limited(self) -> bool:
        """Whether it can be slower than the links of the learners."""
        return min(self.uplink_bps, self.downlink_bps) < inf

    def scaled(self, factor: float) -> "SharedLink":
        """Return a link with this multiple of both rates."""
        return SharedLink(self.uplink_bps * factor, self.downlink_bps * factor)

    def levels_bps(
        self, downlink_bps: Floats, uplink_bps: Floats, learners: Ints | slice = slice(None)
    ) -> tuple[float, float]:
        """Return the most that each of these learners gets on its downlink and on its uplink."""
        return (
            fair_level(downlink_bps[learners], self.uplink_bps),
            fair_level(uplink_bps[learners], self.downlink_bps),
        )


def fair_level(rates: Floats, capacity: float) -> float:
    """Return the level to which rates are cut so that they sum to at most the capacity."""
    if not rates.size or rates.sum() <= capacity:
        return inf
    ordered = np.sort(rates)
    # With the level at a rate, all slower ones keep their own rate.
    below = np.cumsum(ordered) - ordered
    levels = (capacity - below) / np.arange(ordered.size, 0, -1)
    return float(levels[np.argmax(levels < ordered)])
