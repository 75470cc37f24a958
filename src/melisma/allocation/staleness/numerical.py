"""Least staleness by the relaxation of Mohammad and Sorour, problem (8), in a general NLP solver.

Real d_k and a window [low, high] of real updates: minimize high - low with every tau_k(d_k) inside,
sum d_k = d, and the bounds. Then round by largest remainder.
"""

from typing import Any

import numpy as np

from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.shares import split_by_weight
from melisma.allocation.staleness.relaxation import real_updates, updates_slope
from melisma.errors import MelismaError, SettingError
from melisma.fleet.array_types import Floats, Ints

MISSING_EXTRA = 'method "numerical" needs the solve extra: pip install "melisma[solve]"'


def numerical(problem: CycleProblem) -> Ints:
    """Return shares near the relaxed optimum; needs the `solve` extra."""
    return split_by_weight(problem, solve_relaxation(problem))


def solve_relaxation(problem: CycleProblem) -> Floats:
    """Solve the relaxed problem by SciPy's SLSQP, starting from shares in proportion to speed."""
    try:
        from scipy.optimize import minimize
    except ImportError:
        raise SettingError(MISSING_EXTRA) from None
    model = _Model(problem)
    result = minimize(
        lambda x: x[-1] - x[-2],
        model.start(),
        jac=lambda x: np.concatenate([np.zeros(x.size - 2), [-1.0, 1.0]]),
        bounds=model.bounds(),
        constraints=[
            {"type": "eq", "fun": model.total, "jac": model.total_slope},
            {"type": "ineq", "fun": model.window, "jac": model.window_slope},
        ],
        method="SLSQP",
        options={"maxiter": 200, "ftol": 1e-9},
    )
    if not np.all(np.isfinite(result.x)):
        raise MelismaError(f"SLSQP found no solution of the relaxation: {result.message}")
    # A point at the iteration limit is repaired like any other: its staleness may be larger.
    shares: Floats = result.x[:-2] * model.unit
    return np.clip(shares, problem.min_shards, problem.max_shards)


class _Model:
    """The relaxed problem in units near one: shares over their mean, updates over theirs."""

    def __init__(self, problem: CycleProblem) -> None:
        self.problem = problem
        self.unit = problem.shards / problem.learners
        self.start_shares = split_by_weight(problem, 1 / (problem.ship_s + problem.train_s)).astype(
            np.float64
        )
        self.scale = float(real_updates(problem, self.start_shares).mean())

    def start(self) -> Floats:
        updates = real_updates(self.problem, self.start_shares) / self.scale
        return np.concatenate([self.start_shares / self.unit, [updates.min(), updates.max()]])

    def bounds(self) -> list[tuple[float, float | None]]:
        low, high = self.problem.min_shards / self.unit, self.problem.max_shards / self.unit
        return [*zip(low, high, strict=True), (0.0, None), (0.0, None)]

    def total(self, x: Floats) -> float:
        return float(x[:-2].sum()) - self.problem.learners

    def total_slope(self, x: Floats) -> Floats:
        return np.concatenate([np.ones(x.size - 2), [0.0, 0.0]])

    def window(self, x: Floats) -> Floats:
        updates = real_updates(self.problem, x[:-2] * self.unit) / self.scale
        return np.concatenate([updates - x[-2], x[-1] - updates])

    def window_slope(self, x: Floats) -> Any:
        slope = updates_slope(self.problem, x[:-2] * self.unit) * self.unit / self.scale
        ones, none = np.ones((x.size - 2, 1)), np.zeros((x.size - 2, 1))
        return np.block([[np.diag(slope), -ones, none], [-np.diag(slope), none, ones]])
