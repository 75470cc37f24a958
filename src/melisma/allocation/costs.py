"""Seconds of each learner in one cycle (Eq. 5 of Mohammad and Sorour), and the work that fits.

::

    seconds = fixed_s + ship_s * max(0, shards - held) + train_s * passes * shards

With `overlap`, shards are fetched while others are trained, so only the slower of the two counts::

    seconds = fixed_s + first_s + max(ship_s * missing, train_s * passes * shards)

`first_s` is the time to fetch the first shard, during which nothing can be trained, and `missing`
the shards fetched after it; a learner that holds shards begins with these.

Each rounding here is monotone in shards and in passes, so this expression also decides what fits:
no plan exceeds its deadline in the last bit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from melisma.allocation.checks import MIN_COST_S, Numbers
from melisma.fleet.array_types import Bools, Floats, Ints
from melisma.fleet.estimates import Costs

# Limit of passes, which keeps counts within exact range.
MAX_UPDATES = 2**31
BLOCK_LEARNERS = 2**15
MAX_CORRECTIONS = 4
# Steps to the load that fills a deadline; each reduces its error by more than 10.
LOAD_STEPS = 6
# Loads are limited to this number of shards, so that costs of 0 have finite loads.
MAX_LOAD_SHARDS = 2.0**40


@dataclass(frozen=True, eq=False)
class Load:
    """The shards that a learner trains, times passes, and those that it fetches."""

    trained: Floats
    fetched: Floats

    def seconds(self, costs: Mapping[str, Floats]) -> Floats:
        """Return the seconds of this work and of the fixed part of a cycle."""
        shards_s = self.trained * costs["train_s"] + self.fetched * costs["ship_s"]
        return np.asarray(shards_s + costs["fixed_s"])


@dataclass(frozen=True, eq=False)
class CycleCosts:
    """Costs of a shard and of a cycle for each learner, and the shards in its cache.

    With `overlap`, learners fetch shards while they train others.
    """

    train_s: Floats
    ship_s: Floats
    fixed_s: Floats
    held: Ints
    overlap: bool = False

    def take(self, learners: slice | Ints) -> "CycleCosts":
        """Return the costs of the given learners."""
        return CycleCosts(
            self.train_s[learners],
            self.ship_s[learners],
            self.fixed_s[learners],
            self.held[learners],
            self.overlap,
        )

    def seconds(self, shards: Numbers, passes: Numbers) -> Floats:
        """Return the seconds for these shards and passes; 0 for a learner without shards."""
        count = np.asarray(shards)
        shipped = np.maximum(count - self.held, 0)
        if self.overlap:
            first = self._first(shipped)
            busy_s = self.fixed_s + self.ship_s * first
            fetch_s, train_s = self.ship_s * (shipped - first), self.train_s * passes * count
            busy_s = busy_s + np.maximum(fetch_s, train_s)
        else:
            busy_s = self.fixed_s + self.ship_s * shipped + self.train_s * passes * count
        return np.where(count > 0, busy_s, 0.0)

    def _first(self, shipped: Floats | Ints) -> Floats | Ints:
        """Return how much a learner fetches before it can train: up to one shard."""
        return np.where(self.held > 0, 0, np.minimum(shipped, 1))

    def paths(self, shards: Floats, passes: Numbers) -> list[Load]:
        """Return the work that has to be done one after another; the longest path counts."""
        trained, fetched = shards * passes, np.maximum(shards - self.held, 0.0)
        if not self.overlap:
            return [Load(trained, fetched)]
        first = np.asarray(self._first(fetched), np.float64)
        return [Load(trained, first), Load(np.zeros_like(trained), fetched)]

    def shards_to_fill(self, passes: Numbers, deadline_s: float) -> Floats:
        """Return the shards, as a real number, that take until the deadline."""
        spare_s = np.maximum(deadline_s - self.fixed_s, 0.0)
        work_s = self.train_s * passes
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            if self.overlap:
                first_s = np.where(self.held > 0, 0.0, self.ship_s)
                trained = np.maximum(spare_s - first_s, 0.0) / work_s
                return np.asarray(np.fmin(trained, self.held + spare_s / self.ship_s))
            cached = spare_s / work_s
            shipped = (spare_s + self.ship_s * self.held) / (self.ship_s + work_s)
        return np.where(cached < self.held, cached, np.maximum(shipped, self.held))

    def most_shards(self, passes: Numbers, deadline_s: float, limit: int) -> Ints:
        """Return the most shards, up to `limit`, over which `passes` passes fit the deadline."""
        if self.train_s.size > BLOCK_LEARNERS:
            return self._in_blocks(lambda costs, _: costs.most_shards(passes, deadline_s, limit))
        guess = self.shards_to_fill(passes, deadline_s)
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
        fetched = self._first(shipped) if self.overlap else shipped
        spare_s = np.maximum(deadline_s - self.fixed_s - self.ship_s * fetched, 0.0)
        if self.overlap:
            spare_s = np.where(self.ship_s * (shipped - fetched) > spare_s, 0.0, spare_s)
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


def cautious_costs(
    costs: Costs,
    caution: float,
    *,
    deadline_s: float,
    passes: int = 1,
    held: ArrayLike = 0,
    overlap: bool = True,
) -> dict[str, Floats]:
    """Return the costs by name with which a cycle that fills the deadline exceeds it rarely.

    With probability `caution` such a cycle ends in time. The number of shards that fills a deadline
    depends on the costs, and the margin of these on that number, so both are found by iteration.
    """
    planned, last = costs.mean(), np.asarray(np.inf)
    for _ in range(LOAD_STEPS):
        columns: list[Any] = [planned["train_s"], planned["ship_s"], planned["fixed_s"], held]
        train_s, ship_s, fixed_s, holds = np.broadcast_arrays(*columns)
        filled = CycleCosts(train_s, ship_s, fixed_s, holds, overlap)
        shards = np.fmin(filled.shards_to_fill(passes, deadline_s), MAX_LOAD_SHARDS)
        found = _cover(costs, caution, filled.paths(shards, passes))
        change = found["train_s"] - planned["train_s"]
        if not change.any():
            return found  # at once for costs of states, which hold for any load
        # Where two paths are about equally long, full steps may alternate between two loads.
        slow = np.abs(change) > np.abs(last) / 2
        if slow.any():
            found = {
                name: np.where(slow, (planned[name] + cost_s) / 2, cost_s)
                for name, cost_s in found.items()
            }
        planned, last = found, change
    return planned


def _cover(costs: Costs, caution: float, paths: list[Load]) -> dict[str, Floats]:
    """Return costs with which the longest path has the largest quantile of all paths."""
    plans = [costs.quantile(caution, trained=path.trained, fetched=path.fetched) for path in paths]
    planned = plans[0]
    if len(paths) == 1:
        return planned
    train_s, fetch_s = (path.seconds(plan) for path, plan in zip(paths, plans, strict=True))
    planned = {
        name: np.where(train_s >= fetch_s, planned[name], plans[1][name]) for name in planned
    }
    longest_s = np.maximum(paths[0].seconds(planned), paths[1].seconds(planned))
    factor = np.maximum(train_s, fetch_s) / np.maximum(longest_s, MIN_COST_S)
    return {name: cost_s * factor for name, cost_s in planned.items()}


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
