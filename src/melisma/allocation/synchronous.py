"""One number of updates for all learners, the largest that the deadline allows: HA-Sync.

With D_k(tau) the most shards that leave learner k room for tau updates, tau is the largest with
sum D_k(tau) >= d (Mohammad and Sorour). It never falls with a later deadline.
"""

from melisma.allocation.costs import MOST_UPDATES
from melisma.allocation.one_task import CyclePlan, CycleProblem
from melisma.allocation.search import last_reaching
from melisma.allocation.shares import fill
from melisma.allocation.shortfall import require_one_update


def synchronous(problem: CycleProblem) -> CyclePlan:
    """All learners do the same number of updates; `InfeasibleError` if not even one fits."""
    require_one_update(problem)
    updates = most_common_updates(problem)
    high = problem.most_shards(updates)
    return CyclePlan.of(problem, fill(problem, problem.min_shards, high), updates)


def most_common_updates(problem: CycleProblem) -> int:
    """The most updates that all can do while all data is handed out."""

    def room(updates: int) -> int:
        return int(problem.most_shards(updates).sum())

    low = problem.min_shards
    slowest = int(problem.most_updates(low)[low > 0].min(initial=MOST_UPDATES))
    return min(slowest, last_reaching(room, problem.shards))
