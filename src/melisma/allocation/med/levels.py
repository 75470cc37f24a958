"""Levels: the times at which a task can end, singly or in intervals.

A task ends at fixed_s + shard_s * d of one of its learners, so finitely many levels suffice. An
interval of neighbouring levels has the time of the lowest and the capacities of the highest, so
its relaxation bounds each of its levels from below; an interval of one level is exact. Where a task
has more than `MAX_LEVELS` levels, steps of equal length replace them: the bound stays valid, and no
interval is exact.
"""

from dataclasses import dataclass

import numpy as np

from melisma.allocation.med.learner_classes import LearnerClasses
from melisma.fleet.array_types import Bools, Floats, Ints

MAX_LEVELS = 1 << 18


@dataclass(frozen=True, eq=False)
class LevelIntervals:
    """Intervals of levels: task, first and last level by number and in seconds, capacities.

    `single` marks intervals of one level.
    """

    task: Ints
    first: Ints
    last: Ints
    low_s: Floats
    high_s: Floats
    capacity: Ints
    single: Bools

    @property
    def exact(self) -> bool:
        """Whether each interval is one level."""
        return bool(np.all(self.single))

    def take(self, chosen: Bools) -> "LevelIntervals":
        """Return the chosen intervals."""
        return LevelIntervals(
            self.task[chosen],
            self.first[chosen],
            self.last[chosen],
            self.low_s[chosen],
            self.high_s[chosen],
            self.capacity[chosen],
            self.single[chosen],
        )


@dataclass(frozen=True, eq=False)
class LevelSet:
    """The sorted levels of each task, and the lowest time that each level represents."""

    classes: LearnerClasses
    levels_s: tuple[Floats, ...]
    lowest_s: tuple[Floats, ...]

    def intervals(self, pieces: int) -> LevelIntervals:
        """Divide each task's levels into about `pieces` intervals of equally many levels."""
        tasks = np.arange(len(self.levels_s))
        sizes = np.array([levels.size for levels in self.levels_s])
        return self.split(tasks[sizes > 0], 0 * sizes[sizes > 0], sizes[sizes > 0] - 1, pieces)

    def refine(self, intervals: LevelIntervals, pieces: Ints) -> LevelIntervals:
        """Split each interval into `pieces` smaller ones."""
        return self.split(intervals.task, intervals.first, intervals.last, pieces)

    def split(self, task: Ints, first: Ints, last: Ints, pieces: int | Ints) -> LevelIntervals:
        """Split the levels first..last into at most `pieces` intervals; drop infeasible ones."""
        parts = np.minimum(last - first + 1, pieces)
        owner = np.repeat(np.arange(task.size), parts)
        number = np.arange(owner.size) - np.repeat(np.cumsum(parts) - parts, parts)
        width = (last - first + 1)[owner]
        start = first[owner] + number * width // parts[owner]
        end = first[owner] + (number + 1) * width // parts[owner] - 1
        low_s, high_s = np.empty(owner.size), np.empty(owner.size)
        for i, (levels, lowest) in enumerate(zip(self.levels_s, self.lowest_s, strict=True)):
            of_task = task[owner] == i
            low_s[of_task], high_s[of_task] = lowest[start[of_task]], levels[end[of_task]]
        capacity = self.classes.capacity(task[owner], high_s)
        enough = capacity @ self.classes.members >= self.classes.demand[task[owner]]
        single = low_s == high_s
        return LevelIntervals(task[owner], start, end, low_s, high_s, capacity, single).take(enough)


def enumerate_levels(classes: LearnerClasses, least_s: Floats, most_s: Floats) -> LevelSet:
    """Return all levels of each task from `least_s` to `most_s`, or steps if there are too many."""
    pairs = [_task_levels(classes, i, least_s, most_s) for i in range(classes.shape[0])]
    return LevelSet(classes, tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs))


def earliest_levels(classes: LearnerClasses) -> Floats:
    """Return when all learners together could end each task; infinite if past its deadline."""
    tasks = classes.shape[0]
    low_s, high_s = np.zeros(tasks), classes.deadline_s.copy()
    rows = np.arange(tasks)
    possible = classes.capacity(rows, high_s) @ classes.members >= classes.demand
    for _ in range(40):
        middle_s = (low_s + high_s) / 2
        enough = classes.capacity(rows, middle_s) @ classes.members >= classes.demand
        low_s, high_s = np.where(enough, low_s, middle_s), np.where(enough, middle_s, high_s)
    return np.where(possible, low_s, np.inf)


def _task_levels(
    classes: LearnerClasses, task: int, least_s: Floats, most_s: Floats
) -> tuple[Floats, Floats]:
    """Return the levels of a task, and the lowest time that each represents."""
    edges = np.array([least_s[task], most_s[task]])
    if np.isinf(edges[0]):
        return np.zeros(0), np.zeros(0)
    low, high = classes.capacity(np.array([task, task]), edges)
    low = np.maximum(low, classes.min_shards)
    levels = np.maximum(high - low + 1, 0)
    if levels.sum() > MAX_LEVELS:
        steps = np.linspace(edges[0], edges[1], MAX_LEVELS + 1)
        return steps[1:], steps[:-1]
    owner = np.repeat(np.arange(levels.size), levels)
    amount = np.arange(owner.size) - np.repeat(np.cumsum(levels) - levels, levels) + low[owner]
    level_s = classes.fixed_s[task, owner] + classes.shard_s[task, owner] * amount
    level_s = np.unique(level_s[(level_s >= edges[0]) & (level_s <= edges[1])])
    return level_s, level_s
