"""Columns: sets of learners that can do one task by one level, enumerated near the bound.

At given multipliers the excess of a column is its Lagrangian value minus the least value of its
task. The excesses of a plan's columns add up to at most the plan's sum minus the bound, so a plan
within `slack_s` of the bound consists of columns within `slack_s`. Each learner that deviates from
the knapsack's solution adds to the excess, which enumerates the columns without trying all sets.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np

from melisma.allocation.med.amounts import fill_cost
from melisma.allocation.med.dual import DualPoint, Knapsacks
from melisma.fleet.array_types import Bools, Floats, Ints

SHARD_FACTORS = np.array([1.0, 0.8, 1.25])  # of the shard multiplier
COLUMN_WORK = 3.0  # of each partial column, in units of `SearchTree.work`


class Criterion(Enum):
    """The criterion of an enumeration: time, time within the budget, or cost."""

    TIME = "time"
    BUDGET = "budget"
    COST = "cost"


@dataclass(frozen=True, eq=False)
class CountCode:
    """Counts of learners of each class packed into one integer, with a guard bit for each class.

    Two codes plus `spare` leave all guard bits clear if and only if no class is used more often
    than it has members.
    """

    shift: Ints
    mask: Ints
    spare: int
    guard: int
    everyone: int

    @staticmethod
    def for_members(members: Ints) -> "CountCode | None":
        """Return the code for classes of these sizes; None if 62 bits are not enough."""
        bits = np.array([int(count).bit_length() for count in members])
        width = np.where(bits > 0, bits + 1, 0)
        if int(width.sum()) > 62:
            return None
        shift = np.minimum(np.cumsum(width) - width, 61)
        mask = (1 << bits) - 1
        guard = np.where(bits > 0, 1 << (shift + bits), 0)
        return CountCode(
            shift,
            mask,
            int(((mask - members) << shift).sum()),
            int(guard.sum()),
            int((members << shift).sum()),
        )

    def unpack(self, codes: Ints) -> Ints:
        """Return the counts of learners, codes x classes."""
        return (codes[:, None] >> self.shift) & self.mask


@dataclass(frozen=True, eq=False)
class Columns:
    """Columns of a task by rising excess: learners by code, level, cost and excess."""

    code: Ints
    level_s: Floats
    cost: Floats
    excess_s: Floats


@dataclass(frozen=True, eq=False)
class PartialColumns:
    """Partial columns: interval, learners, excess so far for each shard factor, capacity."""

    interval: Ints
    code: Ints
    excess_s: Floats
    capacity: Ints

    def take(self, chosen: Bools | Ints) -> "PartialColumns":
        """Return the chosen partial columns."""
        return PartialColumns(
            self.interval[chosen],
            self.code[chosen],
            self.excess_s[:, chosen],
            self.capacity[chosen],
        )


class ColumnEnumeration:
    """All columns at some multipliers, for any slack.

    The multiplier of a shard in an interval may be chosen freely: each factor of it gives an excess
    that no completion of a partial column falls below. The critical one is best for the best
    column; the others detect earlier that a set has too much or too little capacity.
    """

    def __init__(
        self, knapsacks: Knapsacks, point: DualPoint, code: CountCode, criterion: Criterion
    ) -> None:
        self.classes, self.intervals = knapsacks.classes, knapsacks.intervals
        self.code, self.criterion = code, criterion
        self.point, self.low, self.free = point, knapsacks.low, knapsacks.free
        classes, multipliers, capacity = self.classes, point.multipliers, self.intervals.capacity
        shard_s = SHARD_FACTORS[:, None] * point.shard_multiplier
        margin = multipliers.budget * classes.price - shard_s[:, :, None]
        least = np.minimum(margin * classes.min_shards, margin * capacity)
        self.use_s = least - multipliers.learner
        self.relaxed_s = np.minimum(self.use_s, 0.0) * self.free
        value_s = self.intervals.low_s + shard_s * classes.demand[self.intervals.task]
        value_s += (self.use_s * self.low + self.relaxed_s).sum(axis=2)
        self.excess_s = value_s - point.least_s[self.intervals.task]
        self.work = 0.0

    def all_tasks(self, least_excess_s: Floats, slack_s: float, limit: int) -> list[Columns] | None:
        """Return the columns of every task that a plan within the slack can have.

        None if there are more than `limit`. `least_excess_s`, a lower bound on each task's excess,
        is raised here to that of the columns: it reduces the slack of the other tasks.
        """
        lists: dict[int, Columns] = {}
        for task in np.argsort(self.classes.demand, kind="stable"):
            others_s = float(least_excess_s.sum() - least_excess_s[task])
            columns = self._task_columns(int(task), slack_s - others_s, limit)
            if columns is None:
                return None
            reached_s = columns.excess_s[0] if columns.code.size else slack_s - others_s
            least_excess_s[task] = max(least_excess_s[task], reached_s)
            lists[int(task)] = columns
        return [lists[task] for task in range(len(lists))]

    def _task_columns(self, task: int, slack_s: float, limit: int) -> Columns | None:
        near = self.excess_s.max(axis=0) <= slack_s
        chosen = np.flatnonzero((self.intervals.task == task) & near)
        most = self.low[chosen] + self.free[chosen]
        capacity = (most * self.intervals.capacity[chosen]).sum(axis=1)
        code = np.zeros(chosen.size, dtype=np.int64)
        partial = PartialColumns(chosen, code, self.excess_s[:, chosen], capacity)
        weight = np.where(self.free[chosen] > 0, np.abs(self.use_s[0, chosen]), np.inf)
        for index in np.argsort(-weight.sum(axis=0), kind="stable"):
            partial = self._extend(partial, int(index), slack_s, int(self.classes.demand[task]))
            self.work += COLUMN_WORK * partial.interval.size
            if partial.interval.size > limit:
                return None
        return self._finish(partial, task, slack_s)

    def _extend(
        self, partial: PartialColumns, index: int, slack_s: float, demand: int
    ) -> PartialColumns:
        """Extend each partial column by every number of learners of class `index` in the slack."""
        free = self.free[partial.interval, index]
        each = self.intervals.capacity[partial.interval, index]
        use_s = self.use_s[:, partial.interval, index]
        excess_s = partial.excess_s - self.relaxed_s[:, partial.interval, index]
        capacity = partial.capacity - each * free
        parts = []
        for number in range(int(free.max(initial=0)) + 1):
            near = (free >= number) & (capacity >= demand) & (excess_s.max(axis=0) <= slack_s)
            code = partial.code + (number << self.code.shift[index])
            extended = PartialColumns(partial.interval, code, excess_s, capacity)
            parts.append(extended.take(near))
            excess_s, capacity = excess_s + use_s, capacity + each
        return PartialColumns(
            np.concatenate([part.interval for part in parts]),
            np.concatenate([part.code for part in parts]),
            np.concatenate([part.excess_s for part in parts], axis=1),
            np.concatenate([part.capacity for part in parts]),
        )

    def _finish(self, partial: PartialColumns, task: int, slack_s: float) -> Columns:
        """Compute exact values; of equal sets keep levels that are cheaper than all lower ones."""
        classes, multipliers = self.classes, self.point.multipliers
        order = np.lexsort((self.intervals.low_s[partial.interval], partial.code))
        partial = partial.take(order)
        if self.criterion is Criterion.TIME:
            is_first = np.append(True, partial.code[1:] != partial.code[:-1])[: order.size]
            partial = partial.take(is_first)
        counts = self.code.unpack(partial.code) + self.low[partial.interval]
        level_s = self.intervals.low_s[partial.interval]
        possible = counts @ classes.min_shards <= classes.demand[task]
        cost = np.zeros(level_s.size)
        if self.criterion is not Criterion.TIME:
            capacity = self.intervals.capacity[partial.interval]
            cost = fill_cost(classes, classes.demand[[task]], counts, capacity)
            cost[~possible] = 0.0
        excess_s = level_s + multipliers.budget * cost - counts @ multipliers.learner
        excess_s -= self.point.least_s[task]
        near = (excess_s <= slack_s) & possible
        if self.criterion is Criterion.BUDGET:
            near &= _cheaper_than_previous(partial.code, cost)
        if self.criterion is Criterion.COST:
            level_s, cost = cost, np.zeros(cost.size)
        keep = np.flatnonzero(near)
        keep = keep[np.argsort(excess_s[keep], kind="stable")]
        return Columns(partial.code[keep], level_s[keep], cost[keep], excess_s[keep])


def _cheaper_than_previous(code: Ints, cost: Floats) -> Bools:
    """Mark entries that cost less than the previous one of the same code (sorted by code)."""
    same = np.append(False, code[1:] == code[:-1])[: code.size]
    cheaper = np.ones(code.size, dtype=bool)
    cheaper[1:] = cost[1:] < cost[:-1]
    return ~same | cheaper
