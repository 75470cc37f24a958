"""Least staleness by suggest and improve, the analytical method of Mohammad and Sorour.

Suggest the stationary point of Theorem 1, with multipliers lambda_k of the time of learner k,
-omega of the total and v_k of its staleness (alpha_k - u_k + u'_k there)::

    tau_k = (-omega / lambda_k - c1_k) / c2_k        (11, inside the bounds)
    d_k   = v_k / (lambda_k * c2_k)                  (12)

The paper does not say how to find them: here each follows the residual of its own constraint for a
few steps. Improve by repairing sum and bounds, then moving units from the learner with the fewest
updates to the one with the most while the spread falls.
"""

import numpy as np

from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.shares import split_by_weight
from melisma.allocation.staleness.relaxation import real_updates
from melisma.fleet.array_types import Floats, Ints

DUAL_STEPS = 100
STEP_SIZE = 0.3


def sai(problem: CycleProblem) -> Ints:
    """Return shares near the stationary point, improved by moves."""
    return improve(problem, split_by_weight(problem, suggest(problem)))


def suggest(problem: CycleProblem) -> Floats:
    """Return the d_k of Theorem 1 after some steps of its multipliers; ignores held shards."""
    c2, c1 = problem.train_s, problem.ship_s
    spare_s = np.maximum(problem.deadline_s - problem.fixed_s, problem.seconds(1, 1))
    omega = 1.0  # negated; only ratios of the multipliers matter, so it starts at one
    time = omega / (c1 + c2)
    shards = 1 / (c1 + c2)
    shards *= problem.shards / np.sort(shards).sum()
    stale = shards * time * c2
    for _ in range(DUAL_STEPS):
        updates = np.maximum((omega / time - c1) / c2, 1e-3)
        shards = stale / (time * c2)
        mean = float(np.sort(updates).mean())
        omega *= (float(np.sort(shards).sum()) / problem.shards) ** STEP_SIZE
        time = time * (((c2 * updates + c1) * shards) / spare_s) ** STEP_SIZE
        stale = stale * (updates / mean) ** STEP_SIZE
    return np.clip(shards, 1e-3, problem.shards)


def improve(problem: CycleProblem, shards: Ints) -> Ints:
    """Move units of decreasing size, down to one, while the spread of real updates falls."""
    shards = shards.copy()
    unit = 1 << (max(problem.shards // problem.learners, 1).bit_length() - 1)
    while unit:
        while _move(problem, shards, unit):
            pass
        unit //= 2
    return shards


def _move(problem: CycleProblem, shards: Ints, unit: int) -> bool:
    """Move `unit` shards from the slowest to the fastest learner, in place, if that helps."""
    updates = real_updates(problem, shards.astype(np.float64))
    can_give = np.where(shards - unit >= problem.min_shards, updates, np.inf)
    can_take = np.where(shards + unit <= problem.max_shards, updates, -np.inf)
    giver, taker = int(can_give.argmin()), int(can_take.argmax())
    if can_give[giver] >= can_take[taker]:
        return False
    moved = shards.copy()
    moved[giver] -= unit
    moved[taker] += unit
    if np.ptp(real_updates(problem, moved.astype(np.float64))) >= np.ptp(updates):
        return False
    shards[:] = moved
    return True
