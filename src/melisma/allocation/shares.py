"""Whole shares of a total, within bounds, whatever the order of learners.

Both ways end with the largest remainder. Ties go to the faster learner, by all that tells
learners apart, so that the order in which they are listed decides nothing.
"""

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.one_task import CycleProblem


def fill(problem: CycleProblem, low: Ints, high: Ints) -> Ints:
    """Shares of all data: from `low`, in proportion to the room up to `high`; exact."""
    room, extra = high - low, problem.shards - int(low.sum())
    space = int(room.sum())
    if space == 0:
        return low.copy()
    exact = np.int64 if extra * int(room.max()) < 2**62 else np.object_
    grown, remainder = np.divmod(room.astype(exact) * extra, space)
    shares = low + grown.astype(np.int64)
    left = problem.shards - int(shares.sum())
    return shares + _largest(problem, remainder.astype(np.float64), left)


def by_weight(problem: CycleProblem, weight: Floats) -> Ints:
    """Shares of all data in proportion to `weight`, cut to the bounds of each learner."""
    low, high, total = problem.min_shards, problem.max_shards, problem.shards
    quota = np.clip(_level(problem, weight) * weight, low, high)
    shares = np.floor(quota).astype(np.int64)
    # A quota just below a whole number by rounding is first in line for the unit that it misses.
    left = total - int(shares.sum())
    if left < 0:
        return shares - _largest(problem, np.where(shares > low, shares - quota, -2.0), -left)
    return shares + _largest(problem, np.where(shares < high, quota - shares, -2.0), left)


def _level(problem: CycleProblem, weight: Floats) -> float:
    """The x for which clip(x * weight, low, high) sums to the total."""
    low, high = problem.min_shards, problem.max_shards
    # Each learner leaves `low` at one level and arrives at `high` at another: between two
    # neighbouring levels the sum is a straight line. Sorted, sums do not depend on the order.
    edges = np.concatenate([low / weight, high / weight])
    slopes = np.concatenate([weight, -weight])
    order = np.lexsort((slopes, edges))
    edges, slopes = edges[order], np.cumsum(slopes[order])
    sums = int(low.sum()) + np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(edges))])
    at = int(np.searchsorted(sums, problem.shards, side="right")) - 1
    if at >= edges.size - 1 or slopes[at] <= 0:
        return float(edges[max(at, 0)])
    return float(edges[at] + (problem.shards - sums[at]) / slopes[at])


def _largest(problem: CycleProblem, remainder: Floats, units: int) -> Ints:
    """One unit for each of the `units` learners with the largest remainder."""
    given = np.zeros(remainder.size, dtype=np.int64)
    if units == 0:
        return given
    cut = np.partition(remainder, remainder.size - units)[remainder.size - units]
    given[remainder > cut] = 1
    tied = np.flatnonzero(remainder == cut)
    given[listed(problem, tied)[: units - int(given.sum())]] = 1
    return given


def listed(problem: CycleProblem, learners: Ints) -> Ints:
    """These learners, the faster first, in an order that does not depend on theirs."""
    p = problem
    told_apart = (p.max_shards, p.min_shards, -p.held, p.fixed_s, p.ship_s, p.train_s)
    return learners[np.lexsort([row[learners] for row in told_apart])]
