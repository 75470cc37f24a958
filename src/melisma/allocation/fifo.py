"""First in, first out: tasks claim the fastest free learners in the order of their submission."""

from melisma.allocation.claims import claim_in_order
from melisma.allocation.shared_problem import SharedPlan, SharedProblem


def fifo(problem: SharedProblem) -> SharedPlan:
    """Return the plan in which earlier tasks choose first; they come first in the problem."""
    return claim_in_order(problem, range(problem.tasks))
