"""Seconds of each learner in one cycle (Eq. 5 of Mohammad and Sorour), and the work that fits.

::

    seconds = fixed_s + ship_s * max(0, shards - held) + train_s * passes * shards

Each rounding here is monotone in shards and in passes, so this expression also decides what fits:
no plan exceeds its deadline in the last bit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from melisma.allocation.checks import Numbers
from melisma.fleet.array_types import Bools, Floats, Ints

# Limit of passes, which keeps counts within exact range.
MAX_UPDATES = 2**31
BLOCK_LEARNERS = 2**15
MAX_CORRECTIONS = 4


@dataclass(frozen=True, eq=False)
class CycleCosts:
    """Costs of a shard and of a cycle for each learner, and the shards in its cache."""

    train_s: Floats
    ship_s: Floats
    fixed_s: Floats
    held: Ints

    def take(self, learners: slice | Ints) -> "CycleCosts":
        """Return the costs of the given learners."""
        return CycleCosts(
            self.train_s[learners],
            self.ship_s[learners],
            self.fixed_s[learners],
            self.held[learners],
        )

    def seconds(self, shards: Numbers, passes: Numbers) -> Floats:
        """Return the seconds for these shards and passes; 0 for a learner without shards."""
        count = np.asarray(shards)
        shipped = np.maximum(count - self.held, 0)
        busy_s = self.fixed_s + self.ship_s * shipped + self.train_s * passes * count
        return np.where(count > 0, busy_s, 0.0)

    def most_shards(self, passes: Numbers, deadline_s: float, limit: int) -> Ints:
        """Return the most shards, up to `limit`, over which `passes` passes fit the deadline."""
        if self.train_s.size > BLOCK_LEARNERS:
            return self._in_blocks(lambda costs, _: costs.most_shards(passes, deadline_s, limit))
        spare_s = np.maximum(deadline_s - self.fixed_s, 0.0)
        work_s = self.train_s * passes
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            cached = spare_s / work_s
            shipped = (spare_s + self.ship_s * self.held) / (self.ship_s + work_s)
        guess = np.where(cached < self.held, cached, np.maximum(shipped, self.held))
        return _correct_rounding(
            guess, limit, lambda shards: self.seconds(shards, passes) <= deadline_s
        )

    def most_updates(self, shards: Numbers, deadline_s: float) -> Ints:
        """Return the most passes over these shards that fit the deadline; 0 without shards."""
        count = np.asarray(shards)
        if self.train_s.size > BLOCK_LEARNERS:
            counts = np.broadcast_to(count, self.train_s.shape)
            return self._in_blocks(
                lambda costs, block: costs.most_updates(counts[block], deadline_s)
            )
        positive = np.maximum(count, 1)
        shipped = np.maximum(positive - self.held, 0)
        spare_s = np.maximum(deadline_s - self.fixed_s - self.ship_s * shipped, 0.0)
        with np.errstate(over="ignore"):
            guess = spare_s / (self.train_s * positive)
        updates = _correct_rounding(
            guess, MAX_UPDATES, lambda passes: self.seconds(positive, passes) <= deadline_s
        )
        return np.where(count > 0, updates, 0)

    def _in_blocks(self, count: Callable[["CycleCosts", slice], Ints]) -> Ints:
        """Count in blocks that fit a processor's cache: twice as fast for many learners."""
        counts = np.empty(self.train_s.size, dtype=np.int64)
        for first in range(0, counts.size, BLOCK_LEARNERS):
            block = slice(first, first + BLOCK_LEARNERS)
            counts[block] = count(self.take(block), block)
        return counts


def _correct_rounding(guess: Floats, limit: int, fits: Callable[[Ints], Bools]) -> Ints:
    """Return the largest whole number up to `limit` that fits, near a rounded guess."""
    count = np.fmin(guess, limit).astype(np.int64)
    for _ in range(MAX_CORRECTIONS):
        over = (count > 0) & ~fits(count)
        under = ~over & (count < limit) & fits(count + 1)
        if not (over | under).any():
            return count
        count = count + under - over
    # Where one step is below the rounding of the total, only bisection finds the number.
    low, high = np.zeros_like(count), np.full_like(count, limit)
    while (low < high).any():
        middle = (low + high + 1) // 2
        fit = fits(middle)
        low, high = np.where(fit, middle, low), np.where(fit, high, np.minimum(middle - 1, high))
        high = np.maximum(low, high)
    return low
