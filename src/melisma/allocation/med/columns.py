"""Columns: sets of learners that can do one task by one level, all that are near the bound.

Under given prices a column's excess is its value minus the least value of its task. Excesses of
the columns of a plan add up to at most the plan's sum minus the bound, so a plan within `slack_s`
of the bound consists of columns within `slack_s`. Each learner that is in or out against the
knapsack's wish adds its own share, which enumerates the columns without trying all sets.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med.amounts import fill_cost
from melisma.allocation.med.bound import Knapsacks, Relaxed
from melisma.allocation.med.learner_classes import Flags


@dataclass(frozen=True, eq=False)
class Code:
    """Counts of learners of each kind, packed into one number with a guard bit a kind.

    Two codes and `spare` add up without touching a guard if and only if no kind is used more
    often than it has copies.
    """

    shift: Ints
    mask: Ints
    spare: int
    guard: int
    every: int

    @staticmethod
    def of(copies: Ints) -> "Code | None":
        """The code for kinds with so many copies; None if one number is too small for it."""
        bits = np.array([int(c).bit_length() for c in copies])
        width = np.where(bits > 0, bits + 1, 0)
        if int(width.sum()) > 62:
            return None
        shift = np.minimum(np.cumsum(width) - width, 61)
        mask = (1 << bits) - 1
        guard = np.where(bits > 0, 1 << (shift + bits), 0)
        return Code(
            shift,
            mask,
            int(((mask - copies) << shift).sum()),
            int(guard.sum()),
            int((copies << shift).sum()),
        )

    def pack(self, counts: Ints) -> Ints:
        """Codes of rows of counts."""
        packed: Ints = (counts << self.shift).sum(axis=-1)
        return packed

    def unpack(self, codes: Ints) -> Ints:
        """Counts of learners, codes x kinds."""
        return (codes[:, None] >> self.shift) & self.mask


FACTORS = np.array([1.0, 0.8, 1.25])
WORK = 3.0  # for each column in the making, in entries of rows that prices look at


class Aim(Enum):
    """What counts: levels whatever the cost, levels within a budget, or cost alone."""

    TIME = "time"
    BUDGET = "budget"
    COST = "cost"


@dataclass(frozen=True, eq=False)
class Columns:
    """Learners by code, level, cost and excess over the task's least value, by rising excess."""

    code: Ints
    level_s: Floats
    cost: Floats
    excess_s: Floats


@dataclass(frozen=True, eq=False)
class Partial:
    """Columns in the making: row, learners, excess so far by each factor, shards they can do."""

    row: Ints
    code: Ints
    excess_s: Floats
    room: Ints

    def pick(self, chosen: Flags | Ints) -> "Partial":
        """Only these."""
        return Partial(
            self.row[chosen], self.code[chosen], self.excess_s[:, chosen], self.room[chosen]
        )


class Enumeration:
    """All columns of a task under some prices, for any slack.

    What a shard is worth in a row may be set at will: each factor of it gives an excess that no
    completion of a partial column falls below. The critical one is best for the best column, and
    the others see earlier that a set has too much or too little to offer.
    """

    def __init__(self, sacks: Knapsacks, relaxed: Relaxed, code: Code, aim: Aim) -> None:
        self.kinds, self.rows, self.code, self.aim = sacks.kinds, sacks.rows, code, aim
        self.relaxed, self.low, self.span = relaxed, sacks.low, sacks.span
        kinds, prices, cap = self.kinds, relaxed.prices, self.rows.cap
        shard_s = FACTORS[:, None] * relaxed.critical
        margin = prices.rate * kinds.price - shard_s[:, :, None]
        self.take_s = np.minimum(margin * kinds.least, margin * cap) - prices.worth
        self.wish_s = np.minimum(self.take_s, 0.0) * self.span
        value_s = self.rows.low_s + shard_s * kinds.need[self.rows.task]
        value_s += (self.take_s * self.low + self.wish_s).sum(axis=2)
        self.excess_s = value_s - relaxed.least_s[self.rows.task]
        self.work = 0.0

    def lists(self, floors_s: Floats, slack_s: float, limit: int) -> list[Columns] | None:
        """Columns of every task that a plan within the slack can have; None if too many.

        `floors_s` is what each task's excess is at least known to be. It is raised here to what
        the columns show: the others then have that much less slack.
        """
        found: dict[int, Columns] = {}
        for task in np.argsort(self.kinds.need, kind="stable"):
            least_s = float(floors_s.sum() - floors_s[task])
            columns = self.columns(int(task), slack_s - least_s, limit)
            if columns is None:
                return None
            reached_s = columns.excess_s[0] if columns.code.size else slack_s - least_s
            floors_s[task] = max(floors_s[task], reached_s)
            found[int(task)] = columns
        return [found[task] for task in range(len(found))]

    def columns(self, task: int, slack_s: float, limit: int) -> Columns | None:
        """Columns of a task within the slack; None if there are more than `limit` on the way."""
        near = self.excess_s.max(axis=0) <= slack_s
        chosen = np.flatnonzero((self.rows.task == task) & near)
        room = ((self.low[chosen] + self.span[chosen]) * self.rows.cap[chosen]).sum(axis=1)
        code = np.zeros(chosen.size, dtype=np.int64)
        found = Partial(chosen, code, self.excess_s[:, chosen], room)
        weight = np.where(self.span[chosen] > 0, np.abs(self.take_s[0, chosen]), np.inf)
        for kind in np.argsort(-weight.sum(axis=0), kind="stable"):
            found = self._decide(found, int(kind), slack_s, int(self.kinds.need[task]))
            self.work += WORK * found.row.size
            if found.row.size > limit:
                return None
        return self._finish(found, task, slack_s)

    def _decide(self, found: Partial, kind: int, slack_s: float, need: int) -> Partial:
        """Each partial column with every number of learners of a kind that stays in the slack."""
        span, cap = self.span[found.row, kind], self.rows.cap[found.row, kind]
        take_s = self.take_s[:, found.row, kind]
        excess_s, room = found.excess_s - self.wish_s[:, found.row, kind], found.room - cap * span
        parts = []
        for number in range(int(span.max(initial=0)) + 1):
            near = (span >= number) & (room >= need) & (excess_s.max(axis=0) <= slack_s)
            code = found.code + (number << self.code.shift[kind])
            parts.append(Partial(found.row, code, excess_s, room).pick(near))
            excess_s, room = excess_s + take_s, room + cap
        return Partial(
            np.concatenate([part.row for part in parts]),
            np.concatenate([part.code for part in parts]),
            np.concatenate([part.excess_s for part in parts], axis=1),
            np.concatenate([part.room for part in parts]),
        )

    def _finish(self, found: Partial, task: int, slack_s: float) -> Columns:
        """Exact values; of equal sets only the levels that are cheaper than all lower ones."""
        kinds, prices = self.kinds, self.relaxed.prices
        order = np.lexsort((self.rows.low_s[found.row], found.code))
        found = found.pick(order)
        if self.aim is Aim.TIME:
            found = found.pick(np.append(True, found.code[1:] != found.code[:-1])[: order.size])
        counts = self.code.unpack(found.code) + self.low[found.row]
        level_s = self.rows.low_s[found.row]
        possible = counts @ kinds.least <= kinds.need[task]
        cost = np.zeros(level_s.size)
        if self.aim is not Aim.TIME:
            cost = fill_cost(kinds, kinds.need[[task]], counts, self.rows.cap[found.row])
            cost[~possible] = 0.0
        excess_s = level_s + prices.rate * cost - counts @ prices.worth
        excess_s -= self.relaxed.least_s[task]
        near = (excess_s <= slack_s) & possible
        if self.aim is Aim.BUDGET:
            near &= _cheaper(found.code, cost)
        if self.aim is Aim.COST:
            level_s, cost = cost, np.zeros(cost.size)
        keep = np.flatnonzero(near)
        keep = keep[np.argsort(excess_s[keep], kind="stable")]
        return Columns(found.code[keep], level_s[keep], cost[keep], excess_s[keep])


def _cheaper(code: Ints, cost: Floats) -> Flags:
    """Which entries cost less than the one before of the same code (sorted by code)."""
    same = np.append(False, code[1:] == code[:-1])[: code.size]
    cheaper = np.ones(code.size, dtype=bool)
    cheaper[1:] = cost[1:] < cost[:-1]
    return ~same | cheaper
