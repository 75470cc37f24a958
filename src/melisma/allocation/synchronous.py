"""One number of updates for all learners, the largest that the deadline allows: HA-Sync.

With D_k(tau) the most shards that leave learner k time for tau updates, tau is the largest with
sum D_k(tau) >= d (Mohammad and Sorour). A later deadline never lowers it.
"""

import numpy as np

from melisma.allocation.bisection import bisect_largest
from melisma.allocation.costs import MAX_UPDATES
from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.feasibility import require_one_update
from melisma.allocation.shares import fill

# The start of the bisection is estimated from about this number of learners.
SAMPLE_LEARNERS = 4096
NEWTON_STEPS = 6


def synchronous(problem: CycleProblem) -> CyclePlan:
    """Plan the same number of updates for all; `InfeasibleError` if not even one fits."""
    require_one_update(problem)
    low = problem.min_shards
    slowest = int(problem.most_updates(low)[low > 0].min(initial=MAX_UPDATES))
    updates = min(slowest, most_common_updates(problem))
    return CyclePlan.from_shards(problem, fill(problem, low, problem.most_shards(updates)), updates)


def most_common_updates(problem: CycleProblem) -> int:
    """Return the most updates at which all learners together can still take all data."""

    def capacity(updates: int) -> int:
        return int(problem.most_shards(updates).sum())

    return bisect_largest(capacity, problem.shards, start=_estimate_updates(problem))


def _estimate_updates(problem: CycleProblem) -> int:
    """Estimate the common updates in real numbers from a sample of learners."""
    step = max(1, problem.learners // SAMPLE_LEARNERS)
    costs, high = problem.costs.take(slice(None, None, step)), problem.max_shards[::step]
    spare_s = np.maximum(problem.deadline_s - costs.fixed_s, 0.0) + costs.ship_s * costs.held
    # Whole shards are half a shard fewer on average.
    target = high.size * (problem.shards / problem.learners + 0.5)
    updates = 1.0
    for _ in range(NEWTON_STEPS):
        shard_s = costs.ship_s + costs.train_s * updates
        shards = spare_s / shard_s
        # Newton's method in logarithms, where shards are nearly linear; clipped shares make its
        # steps shorter, and none is longer than a square.
        capacity = float(np.minimum(shards, high).sum())
        slope = float((shards / shard_s) @ costs.train_s) * updates
        power = min(capacity / slope, 2.0) if slope > 0 else 0.0
        updates = min(max(updates * (capacity / target) ** power, 1.0), float(MAX_UPDATES))
    return round(updates)
