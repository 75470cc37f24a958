"""Smallest demand first: the task with the least work claims the fastest free learners first."""

import numpy as np

from melisma.allocation.claims import claim_in_order, demand_s
from melisma.allocation.shared_problem import SharedPlan, SharedProblem


def smallest_demand(problem: SharedProblem) -> SharedPlan:
    """Return the plan in which smaller tasks choose first; of equal ones the earlier."""
    return claim_in_order(problem, np.argsort(demand_s(problem), kind="stable"))
