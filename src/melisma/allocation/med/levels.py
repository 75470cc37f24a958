"""Levels: the seconds that a task can end at, one by one or in intervals.

The end of a task is fixed_s + shard_s * d for one of its learners, so finitely many levels are
enough. A row is an interval of neighbouring levels of one task: it charges the lowest and lets
every learner work until the highest. So what a row needs bounds each of its levels from below,
and a row of one level is exact. Where a task has more levels than `MOST`, steps of equal seconds
stand for them: the bound stays true, and no row is ever exact.
"""

from dataclasses import dataclass

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med.learner_classes import Flags, LearnerClasses

MOST = 1 << 18


@dataclass(frozen=True, eq=False)
class LevelIntervals:
    """Intervals of levels: their task, first and last level by number and in seconds, and caps.

    `single` rows are one level.
    """

    task: Ints
    first: Ints
    last: Ints
    low_s: Floats
    high_s: Floats
    cap: Ints
    single: Flags

    @property
    def exact(self) -> bool:
        """Whether each row is one level."""
        return bool(np.all(self.single))

    def keep(self, kept: Flags) -> "LevelIntervals":
        """Only these rows."""
        return LevelIntervals(
            self.task[kept],
            self.first[kept],
            self.last[kept],
            self.low_s[kept],
            self.high_s[kept],
            self.cap[kept],
            self.single[kept],
        )


@dataclass(frozen=True, eq=False)
class Ladder:
    """For each task its sorted levels, and the lowest one that each of them stands for."""

    kinds: LearnerClasses
    levels_s: tuple[Floats, ...]
    floors_s: tuple[Floats, ...]

    def rows(self, pieces: int) -> LevelIntervals:
        """Each task's levels in about so many intervals of equally many levels."""
        tasks = np.arange(len(self.levels_s))
        sizes = np.array([levels.size for levels in self.levels_s])
        return self.split(tasks[sizes > 0], 0 * sizes[sizes > 0], sizes[sizes > 0] - 1, pieces)

    def refine(self, rows: LevelIntervals, pieces: Ints) -> LevelIntervals:
        """Each row in so many smaller ones."""
        return self.split(rows.task, rows.first, rows.last, pieces)

    def split(self, task: Ints, first: Ints, last: Ints, pieces: int | Ints) -> LevelIntervals:
        """Intervals first..last of levels, each cut into at most so many parts."""
        parts = np.minimum(last - first + 1, pieces)
        owner = np.repeat(np.arange(task.size), parts)
        number = np.arange(owner.size) - np.repeat(np.cumsum(parts) - parts, parts)
        width = (last - first + 1)[owner]
        start = first[owner] + number * width // parts[owner]
        end = first[owner] + (number + 1) * width // parts[owner] - 1
        low_s, high_s = np.empty(owner.size), np.empty(owner.size)
        for i, (levels, floors) in enumerate(zip(self.levels_s, self.floors_s, strict=True)):
            mine = task[owner] == i
            low_s[mine], high_s[mine] = floors[start[mine]], levels[end[mine]]
        cap = self.kinds.caps(task[owner], high_s)
        enough = cap @ self.kinds.copies >= self.kinds.need[task[owner]]
        single = low_s == high_s
        return LevelIntervals(task[owner], start, end, low_s, high_s, cap, single).keep(enough)


def ladder(kinds: LearnerClasses, least_s: Floats, most_s: Floats) -> Ladder:
    """All levels of each task from `least_s` to `most_s`, or steps in their place."""
    both = [_levels(kinds, i, least_s, most_s) for i in range(kinds.shape[0])]
    return Ladder(kinds, tuple(levels for levels, _ in both), tuple(floors for _, floors in both))


def soonest(kinds: LearnerClasses) -> Floats:
    """For each task the level at which all learners together could do it; infinite if never."""
    tasks = kinds.shape[0]
    low_s, high_s = np.zeros(tasks), kinds.deadline_s.copy()
    every = np.arange(tasks)
    done = kinds.caps(every, high_s) @ kinds.copies >= kinds.need
    for _ in range(40):
        middle_s = (low_s + high_s) / 2
        enough = kinds.caps(every, middle_s) @ kinds.copies >= kinds.need
        low_s, high_s = np.where(enough, low_s, middle_s), np.where(enough, middle_s, high_s)
    return np.where(done, low_s, np.inf)


def _levels(
    kinds: LearnerClasses, task: int, least_s: Floats, most_s: Floats
) -> tuple[Floats, Floats]:
    """Levels of a task, and the lowest that each stands for."""
    edges = np.array([least_s[task], most_s[task]])
    if np.isinf(edges[0]):
        return np.zeros(0), np.zeros(0)
    low, high = kinds.caps(np.array([task, task]), edges)
    low = np.maximum(low, kinds.least)
    many = np.maximum(high - low + 1, 0)
    if many.sum() > MOST:
        steps = np.linspace(edges[0], edges[1], MOST + 1)
        return steps[1:], steps[:-1]
    owner = np.repeat(np.arange(many.size), many)
    amount = np.arange(owner.size) - np.repeat(np.cumsum(many) - many, many) + low[owner]
    level_s = kinds.fixed_s[task, owner] + kinds.shard_s[task, owner] * amount
    level_s = np.unique(level_s[(level_s >= edges[0]) & (level_s <= edges[1])])
    return level_s, level_s
