"""One number of updates for all learners, the largest that the deadline allows: HA-Sync.

With D_k(tau) the most shards that leave learner k room for tau updates, tau is the largest with
sum D_k(tau) >= d (Mohammad and Sorour). It never falls with a later deadline.
"""

import numpy as np

from melisma.allocation.costs import MOST_UPDATES
from melisma.allocation.one_task import CyclePlan, CycleProblem
from melisma.allocation.search import last_reaching
from melisma.allocation.shares import fill
from melisma.allocation.shortfall import require_one_update

# Where to begin the search among many learners is found from about so many of them.
SAMPLE = 4096


def synchronous(problem: CycleProblem) -> CyclePlan:
    """All learners do the same number of updates; `InfeasibleError` if not even one fits."""
    require_one_update(problem)
    low = problem.min_shards
    slowest = int(problem.most_updates(low)[low > 0].min(initial=MOST_UPDATES))
    updates = min(slowest, most_common_updates(problem))
    return CyclePlan.of(problem, fill(problem, low, problem.most_shards(updates)), updates)


def most_common_updates(problem: CycleProblem) -> int:
    """The most updates at which learners still have room for all data together."""

    def room(updates: int) -> int:
        return int(problem.most_shards(updates).sum())

    return last_reaching(room, problem.shards, start=_sampled(problem))


def _sampled(problem: CycleProblem) -> int:
    """About the same from every so-many-th learner, where to begin; 1 for few learners."""
    step = problem.learners // SAMPLE
    if step < 2:
        return 1
    some = problem.costs.part(slice(None, None, step))
    high = problem.max_shards[::step]

    def room(updates: int) -> int:
        fitting = some.most_shards(updates, problem.deadline_s, problem.shards)
        return int(np.minimum(fitting, high).sum())

    return last_reaching(room, problem.shards * high.size // problem.learners)
