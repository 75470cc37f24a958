"""Whole shares of a total within bounds, independent of the order of learners.

Both functions round by largest remainder. Ties go to the faster learner, compared by all fields.
"""

import numpy as np

from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.feasibility import require_room
from melisma.fleet.array_types import Floats, Ints


def fill(problem: CycleProblem, low: Ints, high: Ints) -> Ints:
    """Divide all shards: `low`, plus the rest in proportion to high - low, in exact arithmetic."""
    room, extra = high - low, problem.shards - int(low.sum())
    total_room = int(room.sum())
    if total_room == 0:
        lowest: Ints = low.copy()
        return lowest
    exact = np.int64 if extra * int(room.max()) < 2**62 else np.object_
    scaled = room.astype(exact) * extra
    shares = low + (scaled // total_room).astype(np.int64)
    remainder = (scaled % total_room).astype(np.float64)
    return shares + _largest(problem, remainder, problem.shards - int(shares.sum()))


def split_by_weight(problem: CycleProblem, weight: Floats) -> Ints:
    """Divide all shards in proportion to `weight`, clipped to the bounds of each learner."""
    require_room(problem)
    low, high = problem.min_shards, problem.max_shards
    quota = np.clip(_weight_factor(problem, weight) * weight, low, high)
    shares = np.floor(quota).astype(np.int64)
    # One pass, except for rounding: a quota just below a whole number gets its unit first.
    while left := problem.shards - int(shares.sum()):
        sign = 1 if left > 0 else -1
        free = shares < high if left > 0 else shares > low
        units = min(abs(left), int(np.count_nonzero(free)))
        missing = np.where(free, sign * (quota - shares), -np.inf)
        shares = shares + sign * _largest(problem, missing, units)
    return shares


def _weight_factor(problem: CycleProblem, weight: Floats) -> float:
    """Return the x for which clip(x * weight, low, high) sums to all shards."""
    # Sorted by value, so that sums of floats do not depend on the order of learners.
    order = np.lexsort((problem.max_shards, problem.min_shards, weight))
    w, low, high = weight[order], problem.min_shards[order], problem.max_shards[order]
    # Each learner leaves `low` at one factor and reaches `high` at another; between two
    # neighbouring factors the sum is linear.
    edges = np.unique(np.concatenate([low / w, high / w]))
    below, above = 0, edges.size - 1
    while above - below > 1:
        middle = (below + above) // 2
        if np.clip(edges[middle] * w, low, high).sum() <= problem.shards:
            below = middle
        else:
            above = middle
    free = (low / w <= edges[below]) & (high / w >= edges[above])
    fixed = np.where(low / w >= edges[above], low, high)[~free].sum()
    slope = float(w[free].sum())
    return (problem.shards - float(fixed)) / slope if slope else float(edges[below])


def _largest(problem: CycleProblem, remainder: Floats, units: int) -> Ints:
    """Return one unit for each of the `units` learners with the largest remainders."""
    given = np.zeros(remainder.size, dtype=np.int64)
    if units == 0:
        return given
    threshold = np.partition(remainder, remainder.size - units)[remainder.size - units]
    given[remainder > threshold] = 1
    tied = np.flatnonzero(remainder == threshold)
    given[sort_by_speed(problem, tied)[: units - int(given.sum())]] = 1
    return given


def sort_by_speed(problem: CycleProblem, learners: Ints) -> Ints:
    """Sort learners, faster ones first, by their fields only."""
    p = problem
    fields = (p.max_shards, p.min_shards, -p.held, p.fixed_s, p.ship_s, p.train_s)
    return learners[np.lexsort([field[learners] for field in fields])]
