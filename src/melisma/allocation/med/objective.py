"""Objectives of the search: the least sum of task seconds, or the least cost by the deadlines.

Both are minimized by the same branch and bound. They differ in the value of an assignment, in the
heuristics that propose assignments, and in the first multipliers.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from melisma.allocation.med.amounts import best_levels, fill_cost
from melisma.allocation.med.columns import Criterion
from melisma.allocation.med.dual import (
    CountBounds,
    DualPoint,
    Knapsacks,
    Multipliers,
    guess_multipliers,
)
from melisma.allocation.med.learner_classes import LearnerClasses
from melisma.allocation.med.levels import (
    LevelIntervals,
    LevelSet,
    earliest_levels,
    enumerate_levels,
)
from melisma.allocation.med.local_search import (
    assign_by_average,
    assign_by_payoff,
    assign_whole_classes,
    improve_cost,
    improve_sum,
)
from melisma.allocation.med.rounding import AssignmentRepair, round_assignments
from melisma.allocation.med.smoothed_dual import FixedLevelDual, solve_fixed_levels
from melisma.allocation.med.subgradient import ascend
from melisma.fleet.array_types import Floats, Ints

EXCHANGE_CLASSES = 200  # up to which local search is quick
ROUNDING_CLASSES = 40  # up to which rounding costs more than it saves
SAMPLE_ENTRIES = 1 << 20  # of intervals x classes, to compare multipliers by
TRIAL_STEPS = 40  # of the ascent from different multipliers, to choose between them
MULTIPLIER_SCALES = np.geomspace(0.4, 2.5, 14)
BUDGET_FACTORS = (1.0, 1.0005, 1.002, 1.01)  # of the fractional cost, to allow for rounding
BUDGET_STEPS = 12  # of Newton's method


class Incumbent(Protocol):
    """The best plan so far."""

    def offer(self, assignment: Ints) -> bool:
        """Keep an assignment if it is the best so far; return whether it is feasible."""


@dataclass(frozen=True, eq=False)
class RootStart:
    """Intervals and multipliers of the root, and a guess of the least value."""

    intervals: LevelIntervals
    multipliers: Multipliers
    target_s: float


class Objective(Protocol):
    """Learner classes and levels, and bounds on the value of every plan."""

    @property
    def classes(self) -> LearnerClasses: ...
    @property
    def levels(self) -> LevelSet: ...
    @property
    def least_s(self) -> float: ...
    @property
    def most_s(self) -> float: ...
    @property
    def budget_multiplier_fixed(self) -> bool:
        """Whether cost itself is minimized, so that its multiplier is 1."""

    def criteria(self, point: DualPoint) -> tuple[Criterion, ...]:
        """Return the criteria to enumerate columns for, in this order."""

    def value(self, assignment: Ints) -> tuple[float, float]:
        """Return the value of an assignment with its best amounts, and a lower bound on it."""

    def start(self, incumbent: Incumbent, stop: Callable[[], bool]) -> RootStart:
        """Return where the search starts, and offer the assignments found for it."""

    def propose(
        self,
        incumbent: Incumbent,
        knapsacks: Knapsacks,
        point: DualPoint,
        number: int,
        stop: Callable[[], bool],
    ) -> None:
        """Offer assignments derived from a dual point; `number` alternates between heuristics."""


def full_count_bounds(classes: LearnerClasses) -> CountBounds:
    """Return bounds that allow all members of each class in each task."""
    high = np.broadcast_to(classes.members, classes.shape).copy()
    return CountBounds(np.zeros_like(high), high)


def coarse_intervals(levels: LevelSet) -> LevelIntervals:
    """Return 4 to 24 intervals for each task, the fewer the more classes there are."""
    return levels.intervals(int(np.clip(2000 // levels.classes.members.size, 4, 24)))


@dataclass(frozen=True, eq=False)
class LeastSum:
    """The least sum of the tasks' seconds (Eq. 4.4a) within the budget."""

    classes: LearnerClasses
    levels: LevelSet
    least_s: float
    most_s: float
    budget_multiplier_fixed: bool = False

    @staticmethod
    def for_classes(classes: LearnerClasses) -> "LeastSum":
        """Return the objective with all levels from the earliest to the deadlines."""
        earliest_s = earliest_levels(classes)
        levels = enumerate_levels(classes, earliest_s, classes.deadline_s)
        most_s = float(classes.deadline_s.sum()) * (1 + 1e-9)
        return LeastSum(classes, levels, float(earliest_s.sum()), most_s)

    def criteria(self, point: DualPoint) -> tuple[Criterion, ...]:
        """Enumerate without the budget first if the budget multiplier is 0."""
        if point.multipliers.budget > 0:
            return (Criterion.BUDGET,)
        return (Criterion.TIME, Criterion.BUDGET)

    def value(self, assignment: Ints) -> tuple[float, float]:
        """Return the sum of the best levels; infinite if infeasible."""
        choice = best_levels(self.classes, assignment)
        if choice is None:
            return np.inf, np.inf
        return float(choice.level_s.sum()), choice.bound_s

    def start(self, incumbent: Incumbent, stop: Callable[[], bool]) -> RootStart:
        """Guess multipliers; with many classes, also by rounding the fixed-level dual."""
        classes = self.classes
        guess = guess_multipliers(classes, earliest_levels(classes))
        multipliers, intervals = guess.multipliers, coarse_intervals(self.levels)
        target_s = min(1.1 * float(guess.level_s.sum()), self.most_s)
        if self._use_exchanges:
            improved = improve_sum(
                classes, guess.assignment, guess.level_s, multipliers.budget, stop
            )
            incumbent.offer(improved[:-1])
        if self._use_rounding:
            dual = self._offer_rounded(incumbent, guess.level_s, stop)
            if dual is not None:
                multipliers = self._best_multipliers(multipliers, dual, target_s, stop)
        return RootStart(intervals, multipliers, target_s)

    def propose(
        self,
        incumbent: Incumbent,
        knapsacks: Knapsacks,
        point: DualPoint,
        number: int,
        stop: Callable[[], bool],
    ) -> None:
        """Offer rounded assignments with many classes, and local search with few."""
        classes, budget_multiplier = self.classes, point.multipliers.budget
        level_s = knapsacks.intervals.low_s[point.best]
        every_third = budget_multiplier > 0 and self._use_rounding and number % 3 == 0
        if not self._use_exchanges or every_third:
            self._offer_rounded(incumbent, level_s, stop)
        if not self._use_exchanges:
            return
        assignment = (
            assign_by_payoff(knapsacks, point) if number % 2 else assign_by_average(classes, point)
        )
        incumbent.offer(improve_sum(classes, assignment, level_s, budget_multiplier, stop)[:-1])

    @property
    def _use_exchanges(self) -> bool:
        return self.classes.members.size <= EXCHANGE_CLASSES

    @property
    def _use_rounding(self) -> bool:
        return self.classes.members.size > ROUNDING_CLASSES

    def _offer_rounded(
        self, incumbent: Incumbent, level_s: Floats, stop: Callable[[], bool]
    ) -> FixedLevelDual | None:
        """Offer rounded assignments near these levels; return the last dual solution."""
        last = None
        for dual, assignment in round_assignments(self.classes, level_s, stop):
            incumbent.offer(assignment[:-1])
            last = dual
        return last

    def _best_multipliers(
        self,
        multipliers: Multipliers,
        dual: FixedLevelDual,
        target_s: float,
        stop: Callable[[], bool],
    ) -> Multipliers:
        """Return these or those of the fixed-level dual, whichever give the better bound."""
        classes = self.classes
        pieces = int(np.clip(SAMPLE_ENTRIES // classes.fixed_s.size, 8, 100))
        intervals = self.levels.intervals(pieces)
        knapsacks = Knapsacks(classes, intervals, full_count_bounds(classes))
        slope = float(dual.coverage_slopes(classes).mean() * classes.demand.sum())
        if not slope > 0:
            return multipliers
        unit_s = 1 / slope
        scaled = [
            knapsacks.evaluate(dual.to_multipliers(classes, unit_s * scale))
            for scale in MULTIPLIER_SCALES
        ]
        best = max(scaled, key=lambda point: point.bound_s)
        if not self._use_exchanges:
            return best.multipliers
        points = [
            ascend(knapsacks, start, target_s, TRIAL_STEPS, stop)
            for start in (multipliers, best.multipliers)
        ]
        return max(points, key=lambda point: point.bound_s).multipliers


@dataclass(frozen=True, eq=False)
class LeastCost:
    """The least cost of a plan by the deadlines: one level for each task, and time is free."""

    classes: LearnerClasses
    levels: LevelSet
    most_s: float
    least_s: float = 0.0
    budget_multiplier_fixed: bool = True

    @staticmethod
    def for_classes(classes: LearnerClasses) -> "LeastCost":
        """Return the objective for any budget."""
        most = float(classes.demand.sum() * classes.price.max()) * (1 + 1e-9) + 1e-9
        unlimited, levels = replace(classes, budget=0.0), tuple(classes.deadline_s[:, None])
        return LeastCost(unlimited, LevelSet(unlimited, levels, levels), most)

    def criteria(self, point: DualPoint) -> tuple[Criterion, ...]:  # noqa: ARG002 - protocol
        """Enumerate for cost."""
        return (Criterion.COST,)

    def value(self, assignment: Ints) -> tuple[float, float]:
        """Return the cost; infinite if the deadlines are missed."""
        classes = self.classes
        capacity = classes.capacity(np.arange(classes.shape[0]), classes.deadline_s)
        cost = float(fill_cost(classes, classes.demand, assignment, capacity).sum())
        return cost, cost

    def start(self, incumbent: Incumbent, stop: Callable[[], bool]) -> RootStart:
        """Start from local search with few classes, and from the fixed-level dual with many."""
        classes = self.classes
        intervals = coarse_intervals(self.levels)
        intervals = replace(intervals, low_s=np.zeros(intervals.low_s.size))
        multipliers = Multipliers(-classes.price * classes.min_shards, 1.0)
        if self._use_exchanges:
            first_s = classes.fixed_s + classes.shard_s * classes.min_shards
            choice = (first_s / classes.deadline_s[:, None]).argmin(axis=0)
            assignment = assign_whole_classes(classes, choice)
            incumbent.offer(improve_cost(classes, assignment, stop)[:-1])
        else:
            dual = self._offer_rounded(incumbent)
            if dual is not None:
                multipliers = dual.to_multipliers(classes, 1 / float(dual.values[-1]))
        return RootStart(intervals, multipliers, self.most_s)

    def propose(
        self,
        incumbent: Incumbent,
        knapsacks: Knapsacks,
        point: DualPoint,
        number: int,
        stop: Callable[[], bool],
    ) -> None:
        """Offer the assignment of the dual point, improved by local search with few classes."""
        classes = self.classes
        assignment = (
            assign_by_payoff(knapsacks, point) if number % 2 else assign_by_average(classes, point)
        )
        if self._use_exchanges:
            assignment = improve_cost(classes, assignment, stop)
        incumbent.offer(assignment[:-1])

    @property
    def _use_exchanges(self) -> bool:
        return self.classes.members.size <= EXCHANGE_CLASSES

    def _offer_rounded(self, incumbent: Incumbent) -> FixedLevelDual | None:
        """Offer rounded assignments near the least fractional cost; return its dual solution."""
        classes = self.classes
        smallest = _smallest_budget(classes)
        if smallest is None:
            return None
        budget, first = smallest
        for factor in BUDGET_FACTORS:
            richer = replace(classes, budget=budget * factor)
            dual = solve_fixed_levels(richer, classes.deadline_s, first.values)
            if dual is None:
                continue
            if incumbent.offer(AssignmentRepair(richer, dual).run()[:-1]):
                break
        return first


def _smallest_budget(classes: LearnerClasses) -> tuple[float, FixedLevelDual] | None:
    """Return the least budget for a fractional plan, by Newton's method from below.

    The coverage is a concave function of the budget.
    """
    minimum = np.where(classes.optional, 0, classes.min_shards) * classes.members
    total = float(classes.demand.sum())
    budget = 1.01 * max(
        float(minimum @ classes.price), float(classes.demand.sum() * classes.price.min())
    )
    if not budget:
        return None
    values = None
    for _ in range(BUDGET_STEPS):
        dual = solve_fixed_levels(replace(classes, budget=budget), classes.deadline_s, values)
        if dual is None or dual.values[-1] <= 1e-9:
            return None
        missing = (1 - dual.coverage) * total
        if missing <= 1e-6 * total:
            return budget, dual
        budget, values = budget + missing / float(dual.values[-1]), dual.values
    return None
