"""Seconds of each learner in one cycle (Eq. 5 of Mohammad and Sorour), and what fits a deadline.

::

    seconds = fixed_s + ship_s * max(0, shards - held) + train_s * passes * shards

Each rounding here is monotone in shards and in passes, so "what still fits" is decided by this
very expression: no plan exceeds its deadline in the last bit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from melisma.allocation.checks import Floats, Ints, Numbers

# Beyond this a learner is as good as done at once; it keeps counts within exact range.
MAX_UPDATES = 2**31
BLOCK_LEARNERS = 2**15
MAX_CORRECTIONS = 4


@dataclass(frozen=True, eq=False)
class CycleCosts:
    """CycleCosts of a shard and of a cycle, learners last, and the shards that learners hold."""

    train_s: Floats
    ship_s: Floats
    fixed_s: Floats
    held: Ints

    def take(self, learners: slice | Ints) -> "CycleCosts":
        """The costs of some learners."""
        return CycleCosts(
            self.train_s[learners],
            self.ship_s[learners],
            self.fixed_s[learners],
            self.held[learners],
        )

    def seconds(self, shards: Numbers, passes: Numbers) -> Floats:
        """For that many shards and passes; a learner without shards takes no part, and no time."""
        mine = np.asarray(shards)
        shipped = np.maximum(mine - self.held, 0)
        busy = self.fixed_s + self.ship_s * shipped + self.train_s * passes * mine
        return np.where(mine > 0, busy, 0.0)

    def most_shards(self, passes: Numbers, deadline_s: float, limit: int) -> Ints:
        """Largest number of shards, up to a limit, that leaves room for so many passes."""
        if self.train_s.size > BLOCK_LEARNERS:
            return self._in_blocks(lambda part, _: part.most_shards(passes, deadline_s, limit))
        spare_s = np.maximum(deadline_s - self.fixed_s, 0.0)
        work_s = self.train_s * passes
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            among_held = spare_s / work_s
            beyond = (spare_s + self.ship_s * self.held) / (self.ship_s + work_s)
        guess = np.where(among_held < self.held, among_held, np.maximum(beyond, self.held))
        return _correct_rounding(
            guess, limit, lambda mine: self.seconds(mine, passes) <= deadline_s
        )

    def most_updates(self, shards: Numbers, deadline_s: float) -> Ints:
        """Largest number of passes over so many shards that fits; 0 for a learner without any."""
        mine = np.asarray(shards)
        if self.train_s.size > BLOCK_LEARNERS:
            each = np.broadcast_to(mine, self.train_s.shape)
            return self._in_blocks(lambda part, at: part.most_updates(each[at], deadline_s))
        some = np.maximum(mine, 1)
        shipped = np.maximum(some - self.held, 0)
        spare_s = np.maximum(deadline_s - self.fixed_s - self.ship_s * shipped, 0.0)
        with np.errstate(over="ignore"):
            guess = spare_s / (self.train_s * some)
        done = _correct_rounding(
            guess, MAX_UPDATES, lambda passes: self.seconds(some, passes) <= deadline_s
        )
        return np.where(mine > 0, done, 0)

    def _in_blocks(self, count: Callable[["CycleCosts", slice], Ints]) -> Ints:
        """Block by block, each small enough for a processor's cache: twice as fast for many."""
        found = np.empty(self.train_s.size, dtype=np.int64)
        for first in range(0, found.size, BLOCK_LEARNERS):
            at = slice(first, first + BLOCK_LEARNERS)
            found[at] = count(self.take(at), at)
        return found


def _correct_rounding(guess: Floats, limit: int, fits: Callable[[Ints], NDArray[np.bool_]]) -> Ints:
    """The largest whole number up to a limit that fits, from a guess that is off by rounding."""
    found = np.fmin(guess, limit).astype(np.int64)
    for _ in range(MAX_CORRECTIONS):
        over = (found > 0) & ~fits(found)
        under = ~over & (found < limit) & fits(found + 1)
        if not (over | under).any():
            return found
        found = found + under - over
    # Where a step is less than the rounding of the whole, nothing but halving gets there.
    low, high = np.zeros_like(found), np.full_like(found, limit)
    while (low < high).any():
        middle = (low + high + 1) // 2
        fit = fits(middle)
        low, high = np.where(fit, middle, low), np.where(fit, high, np.minimum(middle - 1, high))
        high = np.maximum(low, high)
    return low
