"""Whole shares of a total, within bounds, whatever the order of learners.

Both ways end with the largest remainder. Ties go to the faster learner, by all that tells
learners apart, so that the order in which they are listed decides nothing.
"""

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.feasibility import require_room


def fill(problem: CycleProblem, low: Ints, high: Ints) -> Ints:
    """Shares of all data: from `low`, in proportion to the room up to `high`; exact."""
    room, extra = high - low, problem.shards - int(low.sum())
    space = int(room.sum())
    if space == 0:
        return low.copy()
    exact = np.int64 if extra * int(room.max()) < 2**62 else np.object_
    scaled = room.astype(exact) * extra
    shares, remainder = low + (scaled // space).astype(np.int64), scaled % space
    left = problem.shards - int(shares.sum())
    return shares + _largest(problem, remainder.astype(np.float64), left)


def split_by_weight(problem: CycleProblem, weight: Floats) -> Ints:
    """Shares of all data in proportion to `weight`, cut to the bounds of each learner."""
    require_room(problem)
    low, high = problem.min_shards, problem.max_shards
    quota = np.clip(_level(problem, weight) * weight, low, high)
    shares = np.floor(quota).astype(np.int64)
    # Once, but for rounding: a quota just below a whole number is first in line for its unit.
    while left := problem.shards - int(shares.sum()):
        sign = 1 if left > 0 else -1
        free = shares < high if left > 0 else shares > low
        units = min(abs(left), int(np.count_nonzero(free)))
        missing = np.where(free, sign * (quota - shares), -np.inf)
        shares = shares + sign * _largest(problem, missing, units)
    return shares


def _level(problem: CycleProblem, weight: Floats) -> float:
    """The x for which clip(x * weight, low, high) sums to all data."""
    # In an order of their own, so that sums of floats do not depend on that of learners.
    order = np.lexsort((problem.max_shards, problem.min_shards, weight))
    w, low, high = weight[order], problem.min_shards[order], problem.max_shards[order]
    # Each learner leaves `low` at one level and arrives at `high` at another; between two
    # neighbouring levels the sum is a straight line.
    edges = np.unique(np.concatenate([low / w, high / w]))
    below, above = 0, edges.size - 1
    while above - below > 1:
        middle = (below + above) // 2
        if np.clip(edges[middle] * w, low, high).sum() <= problem.shards:
            below = middle
        else:
            above = middle
    moving = (low / w <= edges[below]) & (high / w >= edges[above])
    settled = np.where(low / w >= edges[above], low, high)[~moving].sum()
    speed = float(w[moving].sum())
    return (problem.shards - float(settled)) / speed if speed else float(edges[below])


def _largest(problem: CycleProblem, remainder: Floats, units: int) -> Ints:
    """One unit for each of the `units` learners with the largest remainder."""
    given = np.zeros(remainder.size, dtype=np.int64)
    if units == 0:
        return given
    cut = np.partition(remainder, remainder.size - units)[remainder.size - units]
    given[remainder > cut] = 1
    tied = np.flatnonzero(remainder == cut)
    given[sort_by_speed(problem, tied)[: units - int(given.sum())]] = 1
    return given


def sort_by_speed(problem: CycleProblem, learners: Ints) -> Ints:
    """These learners, the faster first, in an order that does not depend on theirs."""
    p = problem
    told_apart = (p.max_shards, p.min_shards, -p.held, p.fixed_s, p.ship_s, p.train_s)
    return learners[np.lexsort([row[learners] for row in told_apart])]
