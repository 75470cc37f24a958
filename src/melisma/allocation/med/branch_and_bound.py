"""Branch and bound: dual bound and heuristics at each node, until the gap is closed.

A branch bounds the number of learners of one class in one task. Each node has its own multipliers;
it is closed when its bound reaches the best plan, when enumeration solves it, or when nothing is
left to decide. So the search is complete, and its bound valid, whenever it is stopped.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from melisma.allocation.med.dual import (
    CountBounds,
    DualPoint,
    Knapsacks,
    Multipliers,
    refine_bound,
)
from melisma.allocation.med.enumeration import SUM_TOLERANCE, enumerate_plans
from melisma.allocation.med.levels import LevelIntervals
from melisma.allocation.med.objective import Objective, full_count_bounds
from melisma.allocation.med.subgradient import ascend
from melisma.fleet.array_types import Floats, Ints

NODE_ENTRIES = 1 << 18  # intervals x classes of a node
FEW_CLASSES_INTERVALS = 1 << 13
MAX_ENTRIES = 1 << 22  # of a node with many classes
MANY_CLASSES_INTERVALS = 1000
MIN_STEP_WORK = 1 << 10  # entries; fewer take no less time
FULL_SPLIT_ENTRIES = 1 << 13  # up to which intervals are split into single levels at once
STEPS_PER_CLASS = 1.5  # of the ascent between two refinements, from 60 to 180 in all
FIRST_SPLIT = 0.3  # of the gap: intervals this near to the bound are split first
FIRST_REFINEMENTS = 5  # of intervals, before the multipliers move
MAX_COLUMNS = 200_000  # of an enumeration, before the node branches

StopCheck = Callable[["SearchTree"], bool]


@dataclass(frozen=True, eq=False)
class SearchNode:
    """A part of all assignments, with the intervals and multipliers to start from."""

    bound_s: float
    bounds: CountBounds
    intervals: LevelIntervals
    multipliers: Multipliers


@dataclass(eq=False)
class SearchTree:
    """The state of a search: best plan so far, open nodes, and proven bounds."""

    objective: Objective
    best_s: float = np.inf
    assignment: Ints | None = None
    open: list[tuple[float, int, SearchNode]] = field(default_factory=list)
    closed_bound_s: float = np.inf
    active_bound_s: float = np.inf  # of the node being expanded, which is not among the open ones
    target_s: float = np.inf
    gap: float = 0.0
    nodes: int = 0
    work: float = 0.0  # entries of intervals evaluated, about 10^7 per second
    number: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def bound_s(self) -> float:
        """A lower bound on the value of every plan; infinite if there is no plan."""
        open_s = self.open[0][0] if self.open else np.inf
        least_s = min(open_s, self.closed_bound_s, self.active_bound_s)
        # Intervals and nodes at or above the cutoff were dropped.
        least_s = min(least_s, self._cutoff_s(self.gap))
        # Sums are not distinguished below their rounding.
        return self.best_s if least_s >= self.best_s * (1 - 2 * SUM_TOLERANCE) else least_s

    def offer(self, assignment: Ints) -> bool:
        """Keep an assignment if it is the best so far; return whether it is feasible."""
        value_s, _ = self.objective.value(assignment)
        if value_s < self.best_s:
            self.best_s, self.assignment = value_s, assignment.copy()
        return bool(np.isfinite(value_s))

    def run(self, stop: StopCheck, gap: float = 0.0, least_nodes: int = 0) -> None:
        """Search until no node is open, the gap is reached, or `stop` returns true.

        `least_nodes` are expanded in any case: before the first one the bound says little.
        """
        self.gap = max(self.gap, gap)
        while self.open and (self.nodes < least_nodes or not stop(self)):
            cutoff_s = self._cutoff_s(gap)
            bound_s, _, node = heapq.heappop(self.open)
            if bound_s >= cutoff_s:
                self.closed_bound_s = min(self.closed_bound_s, bound_s)
                continue
            self.active_bound_s = bound_s
            self._expand(node, gap, stop)
            self.active_bound_s = np.inf
            self.nodes += 1

    def is_decided(self, limit: float) -> bool:
        """Whether a plan within the limit is known, or proven not to exist."""
        fits = self.assignment is not None and self.best_s <= limit
        return fits or self.bound_s > limit * (1 + SUM_TOLERANCE)

    def push(self, node: SearchNode) -> None:
        """Add an open node."""
        heapq.heappush(self.open, (node.bound_s, next(self.number), node))

    def _cutoff_s(self, gap: float) -> float:
        """Return the value at or above which plans are not searched for."""
        if np.isinf(self.best_s):
            return self.objective.most_s
        return self.best_s - max(gap * (1 - SUM_TOLERANCE), SUM_TOLERANCE) * abs(self.best_s)

    def _expand(self, node: SearchNode, gap: float, stop: StopCheck) -> None:
        """Tighten a node's bound, then close it by enumeration or branch."""
        tightened = self._tighten(node, gap, stop)
        if tightened is None:
            return
        knapsacks, point, bound_s = tightened
        cutoff_s = self._cutoff_s(gap)
        if bound_s >= cutoff_s:
            self.closed_bound_s = min(self.closed_bound_s, bound_s)
            return
        criteria = self.objective.criteria(point) if knapsacks.intervals.exact else ()
        for criterion in criteria:
            result = enumerate_plans(knapsacks, point, criterion, cutoff_s, MAX_COLUMNS)
            self.work += result.work
            bound_s = max(bound_s, result.bound_s)
            if result.assignment is not None:
                self.offer(result.assignment)
            # Enumeration without the budget may find a plan above it: then only its bound counts.
            optimal = self.best_s <= bound_s * (1 + SUM_TOLERANCE)
            if result.complete and (result.assignment is None or optimal):
                self.closed_bound_s = min(self.closed_bound_s, bound_s)
                return
        if stop(self):
            self.push(SearchNode(bound_s, node.bounds, knapsacks.intervals, point.multipliers))
            return
        for bounds in _branches(knapsacks, point):
            self._add_child(SearchNode(bound_s, bounds, knapsacks.intervals, point.multipliers))

    def _add_child(self, node: SearchNode) -> None:
        counts = node.bounds.low
        if np.any(counts < node.bounds.high):
            self.push(node)
        elif self.offer(counts):
            self.closed_bound_s = min(self.closed_bound_s, self.objective.value(counts)[1])

    def _tighten(
        self, node: SearchNode, gap: float, stop: StopCheck
    ) -> tuple[Knapsacks, DualPoint, float] | None:
        """Alternate ascent, heuristics and finer intervals until nothing improves.

        None if the node is infeasible; otherwise with the best bound.
        """
        objective = self.objective
        intervals, multipliers, bound_s = node.intervals, node.multipliers, node.bound_s
        stalled, last_gap_s = 0, np.inf
        for number in itertools.count():
            knapsacks = Knapsacks(
                objective.classes,
                intervals,
                node.bounds,
                budget_multiplier_fixed=objective.budget_multiplier_fixed,
            )
            if not knapsacks.feasible:
                return None
            if number < FIRST_REFINEMENTS and not knapsacks.intervals.exact:
                intervals = self._refine(knapsacks, knapsacks.evaluate(multipliers), gap)
                continue
            steps = int(np.clip(STEPS_PER_CLASS * multipliers.learner.size, 60, 180))
            target_s = min(self.best_s, max(self.target_s, bound_s + 0.02 * abs(bound_s)))
            point = ascend(knapsacks, multipliers, target_s, steps, lambda: stop(self))
            self.work += steps * max(knapsacks.intervals.capacity.size, MIN_STEP_WORK)
            objective.propose(self, knapsacks, point, number, lambda: stop(self))
            gap_s = self._cutoff_s(gap) - point.bound_s
            bound_s = max(bound_s, refine_bound(knapsacks, objective.levels, point, gap_s))
            if bound_s >= self._cutoff_s(gap) or stop(self):
                break
            stalled = stalled + 1 if gap_s > 0.9 * last_gap_s else 0
            last_gap_s, multipliers = min(last_gap_s, gap_s), point.multipliers
            if stalled >= (1 if knapsacks.intervals.exact else 4):
                break
            intervals = self._refine(knapsacks, point, gap)
        return knapsacks, point, bound_s

    def _refine(self, knapsacks: Knapsacks, point: DualPoint, gap: float) -> LevelIntervals:
        """Keep the intervals that a plan below the cutoff can have, and split them."""
        excess_s = point.interval_s - point.least_s[knapsacks.intervals.task]
        gap_s = max(0.0, self._cutoff_s(gap) - point.bound_s)
        near = excess_s <= gap_s
        return self._split(knapsacks.intervals.take(near), excess_s[near], FIRST_SPLIT * gap_s)

    def _split(self, intervals: LevelIntervals, excess_s: Floats, first_s: float) -> LevelIntervals:
        """Split intervals into four, those nearest to the bound first, up to a node's capacity."""
        wide = np.flatnonzero(intervals.first < intervals.last)
        classes = intervals.capacity.shape[1]
        few = min(NODE_ENTRIES // classes, FEW_CLASSES_INTERVALS)
        limit = max(few, min(MANY_CLASSES_INTERVALS, MAX_ENTRIES // classes))
        splits = max(0, limit - intervals.task.size) // 3
        if not wide.size or not splits:
            return intervals
        levels = intervals.last - intervals.first + 1
        if int(levels.sum()) * classes <= FULL_SPLIT_ENTRIES:
            return self.objective.levels.refine(intervals, levels)
        if np.any(excess_s[wide] <= first_s):
            wide = wide[excess_s[wide] <= first_s]
        chosen = np.zeros(intervals.task.size, dtype=bool)
        chosen[wide[np.argsort(excess_s[wide], kind="stable")[:splits]]] = True
        return self.objective.levels.refine(intervals, np.where(chosen, 4, 1))


def _never(_: SearchTree) -> bool:
    return False


def root_tree(objective: Objective, stop: StopCheck = _never) -> SearchTree:
    """Return a tree with its root as the only node, and the start's best plan."""
    tree = SearchTree(objective)
    start = objective.start(tree, lambda: stop(tree))
    tree.target_s = start.target_s
    bounds = full_count_bounds(objective.classes)
    tree.push(SearchNode(objective.least_s, bounds, start.intervals, start.multipliers))
    return tree


def _branches(knapsacks: Knapsacks, point: DualPoint) -> list[CountBounds]:
    """Branch on the most disputed class: more, or fewer, learners in the task that uses it."""
    bounds, classes = knapsacks.bounds, knapsacks.classes
    free = bounds.high > bounds.low
    dispute = np.abs(point.used.sum(axis=0) - classes.members) + 1e-3
    dispute = dispute * (np.abs(point.multipliers.learner) + 1e-9)
    index = int(np.where(free.any(axis=0), dispute, -1.0).argmax())
    task = int(np.where(free[:, index], point.used[:, index], -1.0).argmax())
    low, high = int(bounds.low[task, index]), int(bounds.high[task, index])
    split = int(np.clip(np.ceil(point.used[task, index]) - 1, low, high - 1))
    fewer, more = bounds.high.copy(), bounds.low.copy()
    fewer[task, index], more[task, index] = split, split + 1
    parts = [CountBounds(more, bounds.high), CountBounds(bounds.low, fewer)]
    return [part for part in (_propagate(knapsacks, part, index) for part in parts) if part]


def _propagate(knapsacks: Knapsacks, bounds: CountBounds, index: int) -> CountBounds | None:
    """Tighten the bounds of a class in its other tasks; None if they are infeasible."""
    low, high = bounds.low.copy(), bounds.high.copy()
    members = int(knapsacks.classes.members[index])
    others = low[:, index].sum() - low[:, index]
    high[:, index] = np.minimum(high[:, index], members - others)
    if not knapsacks.classes.optional[index]:
        others = high[:, index].sum() - high[:, index]
        low[:, index] = np.maximum(low[:, index], members - others)
    possible = np.all(low[:, index] <= high[:, index]) and low[:, index].sum() <= members
    return CountBounds(low, high) if possible else None
