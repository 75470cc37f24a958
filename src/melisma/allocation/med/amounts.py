"""Optimal amounts and levels for a fixed assignment of learners to tasks.

At a given level (the time by which a task ends) each learner takes `min_shards`, and the rest goes
to the cheapest learners with capacity left: no other division costs less.

So each task has a curve of cost over its levels, and one level of each task is chosen: the least
sum within the budget. A Lagrange multiplier on the budget bounds the sum from below; levels that
exceed the bound by more than a known feasible choice are dropped. Where a task has too many levels
to enumerate, a segment of its curve stands for several: it has the time of the lowest and the cost
of the highest, so that the bound stays valid, and is subdivided where that matters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from melisma.allocation.med.learner_classes import LearnerClasses
from melisma.fleet.array_types import Bools, Floats, Ints

MAX_LEVELS = 1 << 12  # of a task, up to which all levels are enumerated
FIRST_SEGMENTS = 256  # of a curve with more levels
SUBDIVISIONS = 8  # of a segment
MAX_SEGMENTS = 1 << 13  # of all curves together
MAX_PAIRS = 1 << 21  # of partial choices and levels of the next task


def fill_cheapest(classes: LearnerClasses, demand: Ints, assignment: Ints, capacity: Ints) -> Ints:
    """Return the cheapest division of `demand`, rows x classes, for learners with `capacity`."""
    minimum = assignment * classes.min_shards
    free = assignment * capacity - minimum
    ends = np.cumsum(free, axis=1)  # classes are sorted by price
    rest = demand - minimum.sum(axis=1)
    amounts: Ints = minimum + np.clip(rest[:, None] - (ends - free), 0, free)
    return amounts


def fill_cost(classes: LearnerClasses, demand: Ints, assignment: Ints, capacity: Ints) -> Floats:
    """Return the cost of `fill_cheapest`; infinite where the demand exceeds the capacities."""
    minimum = assignment * classes.min_shards
    maximum = assignment * capacity
    least, most = minimum.sum(axis=1), maximum.sum(axis=1)
    infeasible = (least > demand) | (most < demand) | np.any(maximum < minimum, axis=1)
    amounts = fill_cheapest(classes, demand, assignment, capacity)
    return np.where(infeasible, np.inf, amounts @ classes.price)


def lowest_levels(classes: LearnerClasses, assignment: Ints) -> Floats:
    """Return the lowest feasible level of each task; infinite if it misses its deadline."""
    tasks = np.arange(classes.shape[0])
    low_s, high_s = np.zeros(tasks.size), classes.deadline_s.copy()
    possible = _can_finish(classes, assignment, classes.capacity(tasks, high_s))
    # Until no float lies between the two: a deadline may be far beyond any level.
    while np.any((low_s < (middle_s := (low_s + high_s) / 2)) & (middle_s < high_s)):
        enough = _can_finish(classes, assignment, classes.capacity(tasks, middle_s))
        low_s, high_s = np.where(enough, low_s, middle_s), np.where(enough, middle_s, high_s)
    capacity = classes.capacity(tasks, high_s)
    ends_s = np.where(assignment * capacity > 0, classes.fixed_s + classes.shard_s * capacity, 0.0)
    return np.where(possible, ends_s.max(axis=1), np.inf)


def _can_finish(classes: LearnerClasses, assignment: Ints, capacity: Ints) -> Bools:
    maximum, minimum = assignment * capacity, assignment * classes.min_shards
    fits = np.all(maximum >= minimum, axis=1) & (minimum.sum(axis=1) <= classes.demand)
    enough: Bools = fits & (maximum.sum(axis=1) >= classes.demand)
    return enough


@dataclass(frozen=True, eq=False)
class LevelChoice:
    """A level for each task, and a lower bound on the sum of any other choice."""

    level_s: Floats
    bound_s: float


@dataclass(frozen=True, eq=False)
class CostCurve:
    """Segments of a cost curve by rising level: lowest level, highest level, cost of the highest.

    A segment with equal levels is a single level.
    """

    lowest_s: Floats
    level_s: Floats
    cost: Floats

    def take(self, chosen: Bools) -> "CostCurve":
        """Return the chosen segments."""
        return CostCurve(self.lowest_s[chosen], self.level_s[chosen], self.cost[chosen])


class TaskCosts:
    """The learners assigned to one task, and its cost at every level."""

    def __init__(self, classes: LearnerClasses, task: int, assignment: Ints) -> None:
        used = np.flatnonzero(assignment)
        self.assignment, self.classes = assignment[None, used], classes.restrict(task, used)

    def curve(self, low_s: float) -> CostCurve:
        """Return all levels from `low_s` to the deadline, or segments if there are too many."""
        classes, edges = self.classes, np.array([low_s, self.classes.deadline_s[0]])
        first, last = self._capacity(edges)
        levels = last - first + 1
        if levels.sum() > MAX_LEVELS:
            edges = np.linspace(edges[0], edges[1], FIRST_SEGMENTS + 1)
            return _drop_dominated(self._segments(np.append(edges[0], edges[:-1]), edges))
        owner = np.repeat(np.arange(levels.size), levels)
        amount = np.arange(owner.size) - np.repeat(np.cumsum(levels) - levels, levels)
        amount = amount + first[owner]
        level_s = classes.fixed_s[0, owner] + classes.shard_s[0, owner] * amount
        level_s = np.unique(np.maximum(level_s, low_s))
        return _drop_dominated(CostCurve(level_s, level_s, self._cost(self._capacity(level_s))))

    def subdivide(self, curve: CostCurve) -> CostCurve:
        """Divide each segment of several levels into smaller ones."""
        wide = curve.lowest_s < curve.level_s
        width_s = (curve.level_s - curve.lowest_s)[wide, None]
        edges = curve.lowest_s[wide, None] + width_s * np.linspace(0.0, 1.0, SUBDIVISIONS + 1)
        edges[:, 0] = np.nextafter(curve.lowest_s[wide], -np.inf)
        edges[:, -1] = curve.level_s[wide]
        finer = self._segments(edges[:, :-1].ravel(), edges[:, 1:].ravel())
        single = curve.take(~wide)
        lowest_s = np.concatenate([single.lowest_s, finer.lowest_s])
        level_s = np.concatenate([single.level_s, finer.level_s])
        cost = np.concatenate([single.cost, finer.cost])
        order = np.argsort(level_s, kind="stable")
        return CostCurve(lowest_s[order], level_s[order], cost[order])

    def _segments(self, above_s: Floats, upto_s: Floats) -> CostCurve:
        """Return segments from the first level above one edge to the last one up to another."""
        fixed_s, shard_s = self.classes.fixed_s, self.classes.shard_s
        capacity = self._capacity(upto_s)
        level_s = np.where(capacity > 0, fixed_s + shard_s * capacity, 0.0).max(axis=1)
        more = self._capacity(above_s) + 1
        next_s = np.where(more <= self.classes.demand[0], fixed_s + shard_s * more, np.inf)
        lowest_s = np.where(above_s < upto_s, next_s.min(axis=1), level_s)
        nonempty = lowest_s <= level_s
        return CostCurve(lowest_s[nonempty], level_s[nonempty], self._cost(capacity[nonempty]))

    def _capacity(self, level_s: Floats) -> Ints:
        return self.classes.capacity(np.zeros(level_s.size, dtype=np.int64), level_s)

    def _cost(self, capacity: Ints) -> Floats:
        return fill_cost(self.classes, self.classes.demand, self.assignment, capacity)


def best_levels(classes: LearnerClasses, assignment: Ints) -> LevelChoice | None:
    """Return the levels with the least sum within deadlines and budget; None if infeasible."""
    low_s = lowest_levels(classes, assignment)
    if np.isinf(low_s).any():
        return None
    tasks = np.arange(classes.shape[0])
    cost = fill_cost(classes, classes.demand, assignment, classes.capacity(tasks, low_s))
    if cost.sum() <= classes.budget:
        return LevelChoice(low_s, float(low_s.sum()))
    latest = classes.capacity(tasks, classes.deadline_s)
    cost = fill_cost(classes, classes.demand, assignment, latest)
    if cost.sum() > classes.budget:
        return None
    costs = [TaskCosts(classes, int(i), assignment[i]) for i in tasks]
    curves = [task.curve(low) for task, low in zip(costs, low_s, strict=True)]
    return _choose_levels(costs, curves, classes.budget)


def _choose_levels(
    costs: Sequence[TaskCosts], curves: list[CostCurve], budget: float
) -> LevelChoice:
    """Alternate between bounding and subdividing until the best choice is known."""
    while True:
        multiplier, bound_s = _best_multiplier(curves, budget)
        known_s = _affordable_levels(curves, budget, multiplier)
        slack_s = float(known_s.sum()) - bound_s + 1e-9 * abs(bound_s)
        curves = [curve.take(_excess_s(curve, multiplier) <= slack_s) for curve in curves]
        wide = sum(int((curve.lowest_s < curve.level_s).sum()) for curve in curves)
        if not wide:
            level_s = _combine_curves(curves, budget, multiplier, slack_s)
            return LevelChoice(known_s, bound_s) if level_s is None else _lower(level_s, known_s)
        if wide * SUBDIVISIONS > MAX_SEGMENTS:
            return LevelChoice(known_s, bound_s)
        curves = [task.subdivide(curve) for task, curve in zip(costs, curves, strict=True)]


def _lower(level_s: Floats, known_s: Floats) -> LevelChoice:
    best_s = min(level_s, known_s, key=lambda levels: float(levels.sum()))
    return LevelChoice(best_s, float(best_s.sum()))


def _combine_curves(
    curves: list[CostCurve], budget: float, multiplier: float, slack_s: float
) -> Floats | None:
    """Return the best combination of single levels within the slack; None if there are too many."""
    levels_s, cost, excess_s = np.zeros((1, 0)), np.zeros(1), np.zeros(1)
    least_cost = [float(curve.cost.min()) for curve in curves]
    for number, curve in enumerate(curves):
        if cost.size * curve.cost.size > MAX_PAIRS:
            return None
        total = cost[:, None] + curve.cost
        excess = excess_s[:, None] + _excess_s(curve, multiplier)
        affordable = total <= budget - sum(least_cost[number + 1 :])
        a, b = np.nonzero((excess <= slack_s) & affordable)
        levels_s = np.column_stack([levels_s[a], curve.level_s[b]])
        cost, excess_s = total[a, b], excess[a, b]
        front = _pareto_front(levels_s.sum(axis=1), cost)
        levels_s, cost, excess_s = levels_s[front], cost[front], excess_s[front]
    return levels_s[0] if cost.size else np.full(len(curves), np.inf)


def _excess_s(curve: CostCurve, multiplier: float) -> Floats:
    """Return by how much each segment exceeds the best of its curve in the Lagrangian."""
    value_s = curve.lowest_s + multiplier * curve.cost
    excess_s: Floats = value_s - value_s.min()
    return excess_s


def _drop_dominated(curve: CostCurve) -> CostCurve:
    """Drop segments that are later than another and no cheaper."""
    cheaper = np.ones(curve.cost.size, dtype=bool)
    cheaper[1:] = curve.cost[1:] < np.minimum.accumulate(curve.cost)[:-1]
    return curve.take(cheaper)


def _pareto_front(sum_s: Floats, cost: Floats) -> Ints:
    """Return the choices that no other beats in both sum and cost, by rising sum."""
    order = np.lexsort((cost, sum_s))
    ordered = cost[order]
    better = np.ones(order.size, dtype=bool)
    better[1:] = ordered[1:] < np.minimum.accumulate(ordered)[:-1]
    return order[better]


def _best_multiplier(curves: list[CostCurve], budget: float) -> tuple[float, float]:
    """Return the budget multiplier with the best bound (a concave function), and that bound."""

    def evaluate(multiplier: float) -> tuple[float, float]:
        picks = [int((curve.lowest_s + multiplier * curve.cost).argmin()) for curve in curves]
        cost = sum(curve.cost[k] for curve, k in zip(curves, picks, strict=True))
        total_s = sum(curve.lowest_s[k] for curve, k in zip(curves, picks, strict=True))
        return float(total_s + multiplier * (cost - budget)), float(cost)

    low, high = 0.0, 1.0
    while evaluate(high)[1] > budget and high < 1e12:
        low, high = high, high * 4
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if evaluate(middle)[1] > budget else (low, middle)
    return max(((each, evaluate(each)[0]) for each in (low, high)), key=lambda pair: pair[1])


def _affordable_levels(curves: list[CostCurve], budget: float, multiplier: float) -> Floats:
    """Return levels within the budget: the cheapest, then each as low as the rest allows."""
    picks = [int(curve.cost.argmin()) for curve in curves]
    start = [int((curve.level_s + multiplier * 1.000001 * curve.cost).argmin()) for curve in curves]
    if sum(curve.cost[k] for curve, k in zip(curves, start, strict=True)) <= budget:
        picks = start
    spent = sum(curve.cost[k] for curve, k in zip(curves, picks, strict=True))
    for i, curve in enumerate(curves):
        left = budget - (spent - curve.cost[picks[i]])
        first = int(np.flatnonzero(curve.cost <= max(left, curve.cost[picks[i]]))[0])
        if first < picks[i]:
            spent += curve.cost[first] - curve.cost[picks[i]]
            picks[i] = first
    return np.array([curve.level_s[k] for curve, k in zip(curves, picks, strict=True)])
