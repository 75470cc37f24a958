"""Updates as a real function of real shares, for the methods that relax the problem."""

import numpy as np

from melisma.allocation.cycle_problem import CycleProblem
from melisma.fleet.array_types import Floats


def real_updates(problem: CycleProblem, shards: Floats) -> Floats:
    """Return the tau_k at which learner k works exactly until the deadline (Eq. 5)."""
    return _spare_s(problem, shards) / (problem.train_s * shards)


def updates_slope(problem: CycleProblem, shards: Floats) -> Floats:
    """Return the derivative of `real_updates`; at `held`, that from above."""
    shipping = np.where(shards >= problem.held, problem.ship_s, 0.0)
    return -(_spare_s(problem, shards) / shards + shipping) / (problem.train_s * shards)


def _spare_s(problem: CycleProblem, shards: Floats) -> Floats:
    shipped = np.maximum(shards - problem.held, 0.0)
    return problem.deadline_s - problem.fixed_s - problem.ship_s * shipped
