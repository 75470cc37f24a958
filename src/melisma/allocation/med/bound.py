"""A bound on MED from prices on learners and on money.

"Each learner has one task" (4.4f) and the budget (4.4d) are left to prices: `worth` of a kind, of
any sign (a slow learner is a burden), and `rate`, seconds for one unit of money. What remains
splits by task and level: the cheapest way to get the shards of the task from learners that end by
the level, a fractional knapsack, because the cost of d shards from one learner,

    0 for d = 0,   rate * price * d - worth   for least <= d <= cap,

has a lower hull of one or two straight pieces. Whatever the prices, the sum over tasks of the
cheapest row, plus the worth of all learners, minus rate * budget, is below every plan's sum.
"""

from dataclasses import dataclass

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med.learner_classes import Flags, LearnerClasses
from melisma.allocation.med.levels import LevelIntervals


@dataclass(frozen=True, eq=False)
class Prices:
    """Seconds that a learner of each kind is worth, and that one unit of money is worth."""

    worth: Floats
    rate: float


@dataclass(frozen=True, eq=False)
class CountBounds:
    """Tasks x kinds: the least and the most learners of a kind that may work for a task."""

    low: Ints
    high: Ints


@dataclass(frozen=True, eq=False)
class Relaxed:
    """The knapsacks of all rows under some prices.

    `row_s` is each row's value, `least_s` each task's, `bound_s` the bound; `critical` the worth
    of one more shard in a row; `used` (tasks x kinds) and `cost` what the cheapest rows take, and
    `usual` what they took on the way here, on average: close to a plan, if in fractions.
    """

    prices: Prices
    row_s: Floats
    least_s: Floats
    bound_s: float
    critical: Floats
    best: Ints
    used: Floats
    usual: Floats
    cost: float


class Knapsacks:
    """All rows of a problem under limits, ready for any prices."""

    def __init__(
        self,
        kinds: LearnerClasses,
        rows: LevelIntervals,
        limits: CountBounds,
        *,
        rate_fixed: bool = False,
    ) -> None:
        low, high = limits.low[rows.task], limits.high[rows.task]
        fits = ~np.any((low > 0) & (rows.cap == 0), axis=1)
        self.kinds, self.limits, self.rate_fixed = kinds, limits, rate_fixed
        self._choose(rows, low, high, fits)
        room = self.rows.cap * (self.low + self.span)
        enough = (room.sum(axis=1) >= kinds.need[self.rows.task]) & (self.need >= 0)
        if not enough.all():
            self._choose(self.rows, self.low, self.low + self.span, enough)

    def _choose(self, rows: LevelIntervals, low: Ints, high: Ints, kept: Flags) -> None:
        self.rows, self.low = rows.keep(kept), low[kept]
        self.span = np.where(self.rows.cap > 0, high[kept] - low[kept], 0)
        self.need = self.kinds.need[self.rows.task] - self.low @ self.kinds.least
        self.wide = (self.rows.cap * self.span).astype(np.float64)
        self.narrow = (self.kinds.least * self.span).astype(np.float64)
        self.kept = self.low * (self.rows.cap - self.kinds.least)
        self.bound = self.low.any(axis=0)
        self.unit = np.maximum(self.rows.cap, 1).astype(np.float64)
        counts = np.bincount(self.rows.task, minlength=self.kinds.shape[0])
        self.starts = np.cumsum(counts) - counts
        self.possible = bool(np.all(counts > 0))

    def values(self, prices: Prices) -> Floats:
        """What each row comes to under these prices."""
        return self._packed(prices).row_s

    def relax(self, prices: Prices) -> Relaxed:
        """Values of all rows, and the gradient at the cheapest row of each task."""
        kinds, worth, packed = self.kinds, prices.worth, self._packed(prices)
        least_s = np.minimum.reduceat(packed.row_s, self.starts)
        best = self._first(packed.row_s, least_s)
        used, cost = self._used(packed, best)
        money = prices.rate * kinds.budget if prices.rate > 0 else 0.0
        return Relaxed(
            prices,
            packed.row_s,
            least_s,
            float(least_s.sum() + kinds.copies @ worth - money),
            packed.critical,
            best,
            used,
            used,
            cost,
        )

    def _packed(self, prices: Prices) -> "Packed":
        """Fill every row's knapsack in the order of cost per shard."""
        kinds, worth = self.kinds, prices.worth
        pay = prices.rate * kinds.price
        burden = worth >= 0
        slope = pay - worth / np.where(burden, kinds.least, self.unit)
        width = np.where(burden, self.narrow, self.wide)
        # Only who is a burden, or bound to work, has a second piece.
        two = np.flatnonzero(burden | self.bound)
        rest = self.wide[:, two] - width[:, two] + self.kept[:, two]
        slopes = np.concatenate([slope, np.broadcast_to(pay[two], rest.shape)], axis=1)
        widths = np.concatenate([width, rest], axis=1)
        order = np.argsort(slopes, axis=1)
        slopes = np.take_along_axis(slopes, order, axis=1)
        widths = np.take_along_axis(widths, order, axis=1)
        ends, need = np.cumsum(widths, axis=1), self.need[:, None]
        taken = np.clip(need - (ends - widths), 0, widths)
        row_s = self.rows.low_s + np.einsum("rk,rk->r", taken, slopes)
        row_s += self.low @ (pay * kinds.least - worth)
        at = np.minimum((ends < need - 1e-9).sum(axis=1), slopes.shape[1] - 1)
        return Packed(row_s, slopes[np.arange(at.size), at], order, taken, width, two)

    def _used(self, packed: "Packed", best: Ints) -> tuple[Floats, float]:
        """Learners that the best rows take, in fractions, and what that costs."""
        price, size = self.kinds.price, self.kinds.price.size
        amount = np.zeros((best.size, size + packed.two.size))
        np.put_along_axis(amount, packed.order[best], packed.taken[best], axis=1)
        lead, tail = amount[:, :size], amount[:, size:]
        share = lead / np.maximum(packed.width[best], 1.0)
        used: Floats = share * self.span[best] + self.low[best]
        forced = self.low[best].sum(axis=0) * self.kinds.least
        cost = (lead.sum(axis=0) + forced) @ price + tail.sum(axis=0) @ price[packed.two]
        return used, float(cost)

    def _first(self, row_s: Floats, least_s: Floats) -> Ints:
        hit = np.flatnonzero(row_s == least_s[self.rows.task])
        return hit[np.unique(self.rows.task[hit], return_index=True)[1]]


@dataclass(frozen=True, eq=False)
class Packed:
    """Rows x pieces in the order of cost: what is taken; `two` has the kinds of second pieces."""

    row_s: Floats
    critical: Floats
    order: Ints
    taken: Floats
    width: Floats
    two: Ints
