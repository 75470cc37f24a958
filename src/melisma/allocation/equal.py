"""Equal shares, whatever the learners can do: HU or ETA in Mohammad and Sorour.

Shares follow from the bounds alone. The plan shows who is late, where costs are known: nothing is
left out to meet the deadline.
"""

import numpy as np

from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.shares import split_by_weight


def equal(problem: CycleProblem, passes: int | None = None) -> CyclePlan:
    """The same number of shards for each; without `passes`, each does the updates that fit."""
    shards = split_by_weight(problem.without_costs(), np.ones(problem.learners))
    return CyclePlan.from_shards(problem, shards, passes)
