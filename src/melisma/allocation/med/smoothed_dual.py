"""The dual of the fractional assignment at fixed levels, minimized with smoothing.

With the levels fixed, the assignment is a linear program: supply `coverage` times all shards, with
the largest coverage possible, each learner between `min_shards` and its capacity in one task,
within the budget. Its dual has one value of a shard for each task and one budget multiplier, and
gives each learner the payoff of its best option. The maximum over options is smoothed by
log-sum-exp and minimized by Newton's method, with decreasing smoothing.
"""

from dataclasses import dataclass

import numpy as np

from melisma.allocation.med.dual import Multipliers
from melisma.allocation.med.learner_classes import LearnerClasses
from melisma.fleet.array_types import Bools, Floats

SMOOTHING = (0.3, 0.1, 0.03, 0.01, 0.003)  # relative to the mean payoff of a learner
NEWTON_STEPS = 12  # with the same smoothing


@dataclass(frozen=True, eq=False)
class FixedLevelDual:
    """Dual solution: the value of a shard of each task, then the budget multiplier.

    Values are scaled so that all shards together are worth their number. `payoff` (tasks x classes)
    is the most that a learner gets, for `amount` shards; minus infinity where it cannot end in
    time. A coverage of 1 means that the levels just suffice.
    """

    values: Floats
    coverage: float
    payoff: Floats
    amount: Floats

    def coverage_slopes(self, classes: LearnerClasses) -> Floats:
        """Return by how much one more second of each level would raise the coverage."""
        margin = np.maximum(self.values[:-1, None] - self.values[-1] * classes.price, 0.0)
        chosen = self.payoff.argmax(axis=0) == np.arange(classes.shape[0])[:, None]
        gained = (chosen * margin / classes.shard_s) @ classes.members
        slopes: Floats = gained / classes.demand.sum()
        return slopes

    def to_multipliers(self, classes: LearnerClasses, shard_s: float) -> Multipliers:
        """Convert to Lagrange multipliers in seconds, if a shard is worth `shard_s` on average."""
        idle = np.where(classes.optional, 0.0, -np.inf)
        earned = np.maximum(self.payoff.max(axis=0), idle)
        return Multipliers(-earned * shard_s, float(self.values[-1]) * shard_s)


def solve_fixed_levels(
    classes: LearnerClasses, level_s: Floats, start: Floats | None = None
) -> FixedLevelDual | None:
    """Minimize the dual at these levels; None if a learner can end by none of them."""
    options = _Options(classes, level_s)
    if options.barred.all(axis=0).any():
        return None
    if start is None:
        start = np.append(np.ones(classes.shape[0]), 0.01 * options.has_budget)
    values = start
    values = values * (classes.demand.sum() / float(values[:-1] @ classes.demand))
    for smoothing in SMOOTHING:
        values = options.minimize(values, smoothing * options.mean_payoff(values))
    values = min([values, *options.corners()], key=options.objective)
    margin = values[:-1, None] - values[-1] * classes.price
    capacity, minimum, _ = np.split(options.amount, [classes.shape[0], 2 * classes.shape[0]])
    amount = np.where(margin > 0, capacity, minimum)
    payoff = np.where(capacity > 0, margin * amount, -np.inf)
    best = np.maximum(payoff.max(axis=0), np.where(classes.optional, 0.0, -np.inf))
    covered = float(classes.members @ best + values[-1] * options.budget)
    return FixedLevelDual(values, covered / float(classes.demand.sum()), payoff, amount)


class _Options:
    """Options x classes: the capacity in each task, the minimum in each task, and idle."""

    def __init__(self, classes: LearnerClasses, level_s: Floats) -> None:
        self.classes, self.tasks = classes, classes.shape[0]
        capacity = classes.capacity(np.arange(self.tasks), level_s)
        minimum = np.where(capacity > 0, classes.min_shards, 0)
        self.amount = np.vstack([capacity, minimum, 0 * classes.min_shards]).astype(np.float64)
        self.barred = np.vstack([capacity == 0, capacity == 0, ~classes.optional])
        self.cost = self.amount * classes.price
        self.has_budget = bool(np.isfinite(classes.budget))
        self.budget = classes.budget if self.has_budget else 0.0

    def objective(self, values: Floats) -> float:
        """Return the dual objective without smoothing."""
        return float(self.classes.members @ self._payoffs(values).max(axis=0)) + float(
            values[-1] * self.budget
        )

    def mean_payoff(self, values: Floats) -> float:
        """Return the mean payoff of a learner, at least the value of its part of the shards."""
        best = np.abs(self._payoffs(values).max(axis=0))
        total = float(self.classes.demand.sum())
        return max(float(self.classes.members @ best), total) / float(self.classes.members.sum())

    def corners(self) -> list[Floats]:
        """Return dual points with all value on one task: its own coverage bounds the total."""
        total = float(self.classes.demand.sum())
        return [np.append(row, 0.0) for row in np.diag(total / self.classes.demand)]

    def _payoffs(self, values: Floats) -> Floats:
        shard_value = np.concatenate([values[:-1], values[:-1], [0.0]])[:, None]
        payoff = shard_value * self.amount - values[-1] * self.cost
        return np.where(self.barred, -np.inf, payoff)

    def minimize(self, values: Floats, smoothing: float) -> Floats:
        """Take Newton steps with a backtracking line search."""
        objective, shares = self._smooth_objective(values, smoothing)
        for _ in range(NEWTON_STEPS):
            gradient, hessian = self._derivatives(shares, smoothing)
            free = np.ones(values.size, dtype=bool)
            free[-1] = self.has_budget and (values[-1] > 1e-9 or gradient[-1] < 0)
            step = self._newton_step(hessian, gradient, free)
            slope = float(gradient @ step)
            if slope > -1e-7 * abs(objective):
                break
            falling = np.flatnonzero(step[:-1] < 0)
            limit = float((values[falling] / -step[falling]).min(initial=np.inf))
            length = min(1.0, 0.9 * limit)
            while length > 1e-4:
                trial = np.maximum(values + length * step, 0.0)
                trial_objective, trial_shares = self._smooth_objective(trial, smoothing)
                if trial_objective < objective:
                    break
                length /= 3
            else:
                break
            values, objective, shares = trial, trial_objective, trial_shares
        return values

    def _smooth_objective(self, values: Floats, smoothing: float) -> tuple[float, Floats]:
        """Return the smoothed objective, and the share with which each option is taken."""
        payoff = self._payoffs(values)
        best = payoff.max(axis=0)
        weight = np.exp((payoff - best) / smoothing)
        total = weight.sum(axis=0)
        paid = float(self.classes.members @ (best + smoothing * np.log(total)))
        return paid + float(values[-1]) * self.budget, weight / total

    def _derivatives(self, shares: Floats, smoothing: float) -> tuple[Floats, Floats]:
        """Return gradient and Hessian: means and covariances of shards and cost."""
        members, tasks = self.classes.members.astype(np.float64), self.tasks
        taken = shares * self.amount
        means = np.vstack([self._by_task(taken), -(shares * self.cost).sum(axis=0)])
        gradient: Floats = means @ members + np.append(np.zeros(tasks), self.budget)
        hessian = np.diag(np.append(self._by_task((taken * self.amount) @ members), 0.0))
        hessian[:tasks, tasks] = hessian[tasks, :tasks] = -self._by_task(
            (taken * self.cost) @ members
        )
        hessian[tasks, tasks] = (shares * self.cost**2).sum(axis=0) @ members
        return gradient, (hessian - (means * members) @ means.T) / smoothing

    def _by_task(self, options: Floats) -> Floats:
        total: Floats = options[: self.tasks] + options[self.tasks : -1]
        return total

    def _newton_step(self, hessian: Floats, gradient: Floats, free: Bools) -> Floats:
        """Solve for the Newton step that keeps the total value of all shards."""
        size = int(free.sum())
        matrix = np.zeros((size + 1, size + 1))
        matrix[:size, :size] = hessian[np.ix_(free, free)]
        matrix[:size, :size] += 1e-9 * np.trace(hessian) * np.eye(size)
        matrix[:size, size] = matrix[size, :size] = np.append(self.classes.demand, 0.0)[free]
        step = np.zeros(free.size)
        right_side = np.append(-gradient[free], 0.0)
        step[free] = np.linalg.lstsq(matrix, right_side, rcond=None)[0][:size]
        return step
