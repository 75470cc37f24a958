"""What a search of MED looks for: the least sum of seconds, or the least cost by the deadlines."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med_amounts import best_levels, fill_cost
from melisma.allocation.med_bound import Knapsacks, Limits, Prices, Relaxed
from melisma.allocation.med_columns import Aim
from melisma.allocation.med_kinds import Kinds
from melisma.allocation.med_levels import Ladder, Rows, ladder, soonest
from melisma.allocation.med_market import market
from melisma.allocation.med_rounding import placed
from melisma.allocation.med_start import improved, rounded, thrifty_state, usual

SMALL = 200  # kinds, up to which exchanges from a first guess are quick


class Offers(Protocol):
    """Takes associations; keeps the best, and says whether one is a plan at all."""

    def offer(self, counts: Ints) -> bool: ...


@dataclass(frozen=True, eq=False)
class Goal:
    """Kinds, their levels, and limits between which every plan's sum is."""

    kinds: Kinds
    ladder: Ladder
    least_s: float
    most_s: float
    thrifty: bool

    def aims(self, relaxed: Relaxed) -> tuple[Aim, ...]:
        """What to enumerate for: where money has no price, first as if there were no budget."""
        if self.thrifty:
            return (Aim.COST,)
        return (Aim.BUDGET,) if relaxed.prices.rate > 0 else (Aim.TIME, Aim.BUDGET)

    def value(self, counts: Ints) -> float:
        """The sum of an association with its best amounts; infinite if there are none."""
        kinds = self.kinds
        if self.thrifty:
            cap = kinds.caps(np.arange(kinds.shape[0]), kinds.deadline_s)
            return float(fill_cost(kinds, kinds.need, counts, cap).sum())
        level_s = best_levels(kinds, counts)
        return np.inf if level_s is None else float(level_s.sum())

    def search(
        self,
        offers: Offers,
        sacks: Knapsacks,
        relaxed: Relaxed,
        number: int,
        stop: Callable[[], bool],
    ) -> None:
        """Offer what exchanges make of the prices; in turn from what was usual and what is best."""
        level_s, rate = sacks.rows.low_s[relaxed.best], relaxed.prices.rate
        if self._large and self._round(offers, level_s, stop):
            return
        state = rounded(sacks, relaxed) if number % 2 else usual(self.kinds, relaxed)
        self._offer(offers, state, level_s, rate, stop)

    def start(self, offers: Offers) -> tuple[Rows, Limits, Prices, float]:
        """Coarse rows, no limits, prices of a market, and a guess of the sum; a first offer."""
        kinds = self.kinds
        rows = self.ladder.rows(int(np.clip(2000 // kinds.copies.size, 4, 24)))
        high = np.broadcast_to(kinds.copies, kinds.shape).copy()
        limits = Limits(np.zeros_like(high), high)
        if self.thrifty:
            rows = replace(rows, low_s=np.zeros(rows.low_s.size))
            state = np.zeros((kinds.shape[0] + 1, kinds.shape[1]), dtype=np.int64)
            first_s = kinds.fixed_s + kinds.shard_s * kinds.least
            choice = (first_s / kinds.deadline_s[:, None]).argmin(axis=0)
            state[choice, np.arange(choice.size)] = kinds.copies
            self._offer(offers, state, kinds.deadline_s, 1.0, _never)
            return rows, limits, Prices(-kinds.price * kinds.least, 1.0), self.most_s
        found = market(kinds, soonest(kinds))
        if self._large:
            self._round(offers, found.level_s, _never)
        else:
            self._offer(offers, found.state, found.level_s, found.prices.rate, _never)
        guess_s = min(1.1 * float(found.level_s.sum()), self.most_s)
        return rows, limits, found.prices, guess_s

    @property
    def _large(self) -> bool:
        return not self.thrifty and self.kinds.copies.size > SMALL

    def _round(self, offers: Offers, level_s: Floats, stop: Callable[[], bool]) -> bool:
        """Offer what bids make of the levels; whether a plan came of it."""
        some = False
        for state in placed(self.kinds, level_s, stop):
            some |= offers.offer(state[:-1])
        return some

    def _offer(
        self, offers: Offers, state: Ints, level_s: Floats, rate: float, stop: Callable[[], bool]
    ) -> None:
        if self.thrifty:
            offers.offer(thrifty_state(self.kinds, state, stop)[:-1])
        else:
            offers.offer(improved(self.kinds, state, level_s, rate, stop)[:-1])


def _never() -> bool:
    return False


def least_sum(kinds: Kinds) -> Goal:
    """The goal of Eq. 4.4a."""
    soonest_s = soonest(kinds)
    levels = ladder(kinds, soonest_s, kinds.deadline_s)
    most_s = float(kinds.deadline_s.sum()) * (1 + 1e-9)
    return Goal(kinds, levels, float(soonest_s.sum()), most_s, thrifty=False)


def least_cost(kinds: Kinds) -> Goal:
    """The smallest budget that the deadlines allow: one level a task, and nothing for time."""
    most = float(kinds.need.sum() * kinds.price.max()) * (1 + 1e-9) + 1e-9
    free = replace(kinds, budget=0.0)
    return Goal(free, Ladder(free, tuple(kinds.deadline_s[:, None])), 0.0, most, thrifty=True)
