"""Venn: intersection-aware scheduling of tasks that can use different learners.

Liu et al., "Venn: Resource Management for Collaborative Learning Jobs" (arXiv 2312.08298). A task
that few learners can serve chooses before one that many can serve, among equals the one with the
least demand; and each takes learners that few other tasks can use before those that many compete
for. The paper serves jobs over time and lets long queues take learners of short ones; in a cycle
every task is served, so that this step has nothing to decide. Its tiers of equally fast devices are
not used either: amounts follow measured speed.
"""

import numpy as np

from melisma.allocation.claims import capacities, claim_in_order, demand_s
from melisma.allocation.shared_problem import SharedPlan, SharedProblem


def venn(problem: SharedProblem) -> SharedPlan:
    """Return the plan in which scarce tasks choose first, and contested learners go last."""
    eligible = capacities(problem) > 0
    order = np.lexsort((demand_s(problem), eligible.sum(axis=1)))
    return claim_in_order(problem, order, reluctance=eligible.sum(axis=0))
