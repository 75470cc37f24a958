"""One number of updates for all learners, the largest that the deadline allows: HA-Sync.

With D_k(tau) the most shards that leave learner k room for tau updates, tau is the largest with
sum D_k(tau) >= d (Mohammad and Sorour). It never falls with a later deadline.
"""

import numpy as np

from melisma.allocation.bisection import bisect_largest
from melisma.allocation.costs import MAX_UPDATES
from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.feasibility import require_one_update
from melisma.allocation.shares import fill

# Where to begin the search among many learners is found from about so many of them.
SAMPLE = 4096
NEWTON = 6


def synchronous(problem: CycleProblem) -> CyclePlan:
    """All learners do the same number of updates; `InfeasibleError` if not even one fits."""
    require_one_update(problem)
    low = problem.min_shards
    slowest = int(problem.most_updates(low)[low > 0].min(initial=MAX_UPDATES))
    updates = min(slowest, most_common_updates(problem))
    return CyclePlan.from_shards(problem, fill(problem, low, problem.most_shards(updates)), updates)


def most_common_updates(problem: CycleProblem) -> int:
    """The most updates at which learners still have room for all data together."""

    def room(updates: int) -> int:
        return int(problem.most_shards(updates).sum())

    return bisect_largest(room, problem.shards, start=_about(problem))


def _about(problem: CycleProblem) -> int:
    """Nearly the same in real numbers, from a sample of many learners: where to begin."""
    step = max(1, problem.learners // SAMPLE)
    some, high = problem.costs.take(slice(None, None, step)), problem.max_shards[::step]
    spare_s = np.maximum(problem.deadline_s - some.fixed_s, 0.0) + some.ship_s * some.held
    # Whole shards are half a shard fewer on average.
    target = high.size * (problem.shards / problem.learners + 0.5)
    updates = 1.0
    for _ in range(NEWTON):
        shard_s = some.ship_s + some.train_s * updates
        shards = spare_s / shard_s
        # Newton's method in logarithms, where shards are nearly a straight line; shares that are
        # cut to their bounds make its steps shorter, and none is longer than a square.
        room = float(np.minimum(shards, high).sum())
        falling = float((shards / shard_s) @ some.train_s) * updates
        power = min(room / falling, 2.0) if falling > 0 else 0.0
        updates = min(max(updates * (room / target) ** power, 1.0), float(MAX_UPDATES))
    return round(updates)
