"""The largest batches that all learners can send by a given time: Theorem 1 of Ren, Yu and Ding.

Learner k has y seconds to send its gradient and the rest to compute it. The sum of all batches is
largest at y = clip(m * sqrt(air_s * slope_s)), clipped so that the batch stays within its bounds,
with one m for all that fills the frame: sum(air_s / y) = 1. In terms of the level 1 / m that sum is
piecewise linear, and Newton's method ends in a few steps.
"""

import math
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np

from melisma.allocation.radio_problem import RadioProblem
from melisma.allocation.slots import EPS
from melisma.fleet.array_types import Bools, Floats, Ints


class UplinkPoint(NamedTuple):
    """Best batches by one end time: their sum and its derivatives, the level and its slope."""

    batch: Floats
    total: float
    slope: float
    curve: float
    level: float
    level_slope: float


@dataclass(frozen=True, eq=False)
class Uplink:
    """Uplink data of each learner, sorted by value so that the given order does not matter.

    `air_s` is the seconds to send a gradient with every frame to oneself, `root_s` is
    sqrt(air_s * slope_s), and `weight` is sqrt(air_s / slope_s).
    """

    air_s: Floats
    slope_s: Floats
    least: Floats
    most: Floats
    least_s: Floats
    most_s: Floats
    root_s: Floats
    weight: Floats

    @classmethod
    def from_problem(cls, problem: RadioProblem) -> "tuple[Uplink, Ints]":
        """Return the sorted uplink data, and the learner at each position."""
        least, most = problem.least_batch, problem.max_batch
        fields = {
            "air_s": problem.uplink_s,
            "slope_s": problem.slope_s,
            "least": least,
            "most": most,
            "least_s": problem.gradient_s(least),
            "most_s": problem.gradient_s(most),
        }
        order = np.lexsort(list(fields.values()))
        columns = {name: field[order].astype(np.float64) for name, field in fields.items()}
        air_root, slope_root = np.sqrt(columns["air_s"]), np.sqrt(columns["slope_s"])
        return cls(**columns, root_s=air_root * slope_root, weight=air_root / slope_root), order

    def seconds(self, batch: Floats) -> Floats:
        """Return the seconds for the gradient of a batch of at least `least`."""
        return self.least_s + self.slope_s * (batch - self.least)

    def best(self, end_s: float, level: float) -> UplinkPoint:
        """Return the largest batches that are all sent by `end_s`; `level` is a first guess."""
        # No share is above 1: no learner sends for less than its air_s, even after rounding.
        shortest_s, longest_s = end_s - self.most_s, np.maximum(end_s - self.least_s, self.air_s)
        low = float((self.root_s / longest_s).min())
        high = float((self.root_s / np.maximum(shortest_s, self.air_s)).max())
        level = min(max(level, low), high)
        for step in count(1):
            wanted_s = self.root_s / level
            send_s = np.minimum(np.maximum(wanted_s, shortest_s), longest_s)
            room = 1.0 - float((self.air_s / send_s).sum())
            low, high = (level, high) if room > 0 else (low, level)
            if abs(room) <= 8 * EPS or high <= low * (1 + 2 * EPS):
                break
            rise = float(self.weight[send_s == wanted_s].sum())
            newton = level + room / rise if rise > 0 and step % 4 else low
            level = newton if low < newton < high else math.sqrt(low * high)
        batch = self.least + (longest_s - send_s) / self.slope_s
        batch = np.where(send_s == shortest_s, self.most, np.minimum(batch, self.most))
        return self._point(batch, send_s, send_s == wanted_s, level)

    def _point(self, batch: Floats, send_s: Floats, free: Bools, level: float) -> UplinkPoint:
        """Compute B, B' = nu * sum(air_s / y ** 2) and B'', with nu = 1 / level ** 2."""
        nu = 1.0 / level**2
        steepness = self.air_s / send_s**2
        bounded = np.where(free, 0.0, steepness)
        slope, curve = float(bounded.sum()), float((bounded / send_s).sum())
        rise = float(self.weight[free].sum())
        level_slope = slope / rise if rise > 0 else 0.0
        second = -2.0 * nu * (slope * level_slope / level + curve)
        first = nu * float(steepness.sum())
        return UplinkPoint(batch, float(batch.sum()), first, second, level, level_slope)
