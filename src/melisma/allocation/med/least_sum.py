"""The goal of MED: the least sum of the tasks' seconds (Eq. 4.4a)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med.bound import Knapsacks, Prices, Relaxed
from melisma.allocation.med.columns import Aim
from melisma.allocation.med.curves import best_levels
from melisma.allocation.med.learner_classes import LearnerClasses
from melisma.allocation.med.levels import Ladder, ladder, soonest
from melisma.allocation.med.market import market
from melisma.allocation.med.objective import SMALL, Offers, Start, coarse_rows, everybody
from melisma.allocation.med.rounding import placed
from melisma.allocation.med.smoothed_dual import Bids
from melisma.allocation.med.start import improved, rounded, usual
from melisma.allocation.med.subgradient import ascend

FEW = 40  # kinds, up to which bids cost more than they save
SAMPLE = 1 << 20  # entries of rows, to compare prices by
TRIAL = 40  # steps from different prices, to choose between them
SCALES = np.geomspace(0.4, 2.5, 14)


@dataclass(frozen=True, eq=False)
class LeastSum:
    """Seconds count; money has a price as far as the budget binds."""

    kinds: LearnerClasses
    ladder: Ladder
    least_s: float
    most_s: float
    rate_fixed: bool = False

    @staticmethod
    def of(kinds: LearnerClasses) -> "LeastSum":
        """The goal for these kinds."""
        soonest_s = soonest(kinds)
        levels = ladder(kinds, soonest_s, kinds.deadline_s)
        most_s = float(kinds.deadline_s.sum()) * (1 + 1e-9)
        return LeastSum(kinds, levels, float(soonest_s.sum()), most_s)

    def aims(self, relaxed: Relaxed) -> tuple[Aim, ...]:
        """Where money has no price, first as if there were no budget."""
        return (Aim.BUDGET,) if relaxed.prices.rate > 0 else (Aim.TIME, Aim.BUDGET)

    def value(self, counts: Ints) -> tuple[float, float]:
        """The sum of the best levels; infinite if there are none."""
        found = best_levels(self.kinds, counts)
        return (np.inf, np.inf) if found is None else (float(found.level_s.sum()), found.bound_s)

    def start(self, offers: Offers, stop: Callable[[], bool]) -> Start:
        """Prices of a market; of bids too, where there are many kinds or money is scarce."""
        kinds = self.kinds
        found = market(kinds, soonest(kinds))
        prices, rows = found.prices, coarse_rows(self.ladder)
        guess_s = min(1.1 * float(found.level_s.sum()), self.most_s)
        if self._small:
            offers.offer(improved(kinds, found.state, found.level_s, prices.rate, stop)[:-1])
        if self._many:
            bid = self._round(offers, found.level_s, stop)
            prices = prices if bid is None else self._best_prices(prices, bid, guess_s, stop)
        return Start(rows, prices, guess_s)

    def search(
        self,
        offers: Offers,
        sacks: Knapsacks,
        relaxed: Relaxed,
        number: int,
        stop: Callable[[], bool],
    ) -> None:
        """Offer what exchanges make of what was usual and of what is best, or bids."""
        kinds, rate = self.kinds, relaxed.prices.rate
        level_s = sacks.rows.low_s[relaxed.best]
        if not self._small or (rate > 0 and self._many and number % 3 == 0):
            self._round(offers, level_s, stop)
        if not self._small:
            return
        state = rounded(sacks, relaxed) if number % 2 else usual(kinds, relaxed)
        offers.offer(improved(kinds, state, level_s, rate, stop)[:-1])

    @property
    def _small(self) -> bool:
        return self.kinds.copies.size <= SMALL

    @property
    def _many(self) -> bool:
        return self.kinds.copies.size > FEW

    def _round(self, offers: Offers, level_s: Floats, stop: Callable[[], bool]) -> Bids | None:
        """Offer what bids make of the levels; the last bids."""
        last = None
        for bid, state in placed(self.kinds, level_s, stop):
            offers.offer(state[:-1])
            last = bid
        return last

    def _best_prices(
        self, prices: Prices, bid: Bids, goal_s: float, stop: Callable[[], bool]
    ) -> Prices:
        """These, or the bids in seconds by one of some scales: whichever leads further."""
        kinds = self.kinds
        rows = self.ladder.rows(int(np.clip(SAMPLE // kinds.fixed_s.size, 8, 100)))
        sacks = Knapsacks(kinds, rows, everybody(kinds))
        gain = float(bid.gains(kinds).mean() * kinds.need.sum())
        if not gain > 0:
            return prices
        unit_s = 1 / gain
        scaled = [sacks.relax(bid.prices(kinds, unit_s * scale)) for scale in SCALES]
        best = max(scaled, key=lambda each: each.bound_s)
        if not self._small:
            return best.prices
        tried = [ascend(sacks, each, goal_s, TRIAL, stop) for each in (prices, best.prices)]
        return max(tried, key=lambda each: each.bound_s).prices
