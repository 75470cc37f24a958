"""Equal shares for all learners: HU or ETA in Mohammad and Sorour.

Shares depend on the bounds only. The plan may miss the deadline.
"""

import numpy as np

from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.shares import split_by_weight


def equal(problem: CycleProblem, passes: int | None = None) -> CyclePlan:
    """Give each learner the same number of shards; without `passes`, the updates that fit."""
    shards = split_by_weight(problem.without_costs(), np.ones(problem.learners))
    return CyclePlan.from_shards(problem, shards, passes)
