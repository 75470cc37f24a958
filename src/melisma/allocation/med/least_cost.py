"""The smallest budget that the deadlines allow: one level a task, and nothing for time."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from melisma.allocation.checks import Ints
from melisma.allocation.med.amounts import fill_cost
from melisma.allocation.med.bound import Knapsacks, Prices, Relaxed
from melisma.allocation.med.columns import Aim
from melisma.allocation.med.learner_classes import LearnerClasses
from melisma.allocation.med.levels import Ladder
from melisma.allocation.med.objective import SMALL, Offers, Start, coarse_rows
from melisma.allocation.med.repair import Placing
from melisma.allocation.med.smoothed_dual import Bids, bids
from melisma.allocation.med.start import rounded, thrifty_state, usual

BUDGETS = (1.0, 1.0005, 1.002, 1.01)  # of what shards in fractions cost, for whole learners
NEWTON = 12  # steps towards that


@dataclass(frozen=True, eq=False)
class LeastCost:
    """Money counts, by the deadlines."""

    kinds: LearnerClasses
    ladder: Ladder
    most_s: float
    least_s: float = 0.0
    rate_fixed: bool = True

    @staticmethod
    def of(kinds: LearnerClasses) -> "LeastCost":
        """The goal for these kinds, whatever their budget."""
        most = float(kinds.need.sum() * kinds.price.max()) * (1 + 1e-9) + 1e-9
        free, levels = replace(kinds, budget=0.0), tuple(kinds.deadline_s[:, None])
        return LeastCost(free, Ladder(free, levels, levels), most)

    def aims(self, relaxed: Relaxed) -> tuple[Aim, ...]:  # noqa: ARG002 - as the other goal
        """Cost alone."""
        return (Aim.COST,)

    def value(self, counts: Ints) -> tuple[float, float]:
        """What the shards cost; infinite if they cannot be done in time."""
        cap = self.kinds.caps(np.arange(self.kinds.shape[0]), self.kinds.deadline_s)
        cost = float(fill_cost(self.kinds, self.kinds.need, counts, cap).sum())
        return cost, cost

    def start(self, offers: Offers, stop: Callable[[], bool]) -> Start:
        """Prices of bids at the deadlines; where there are few kinds, exchanges too."""
        kinds = self.kinds
        rows = coarse_rows(self.ladder)
        rows = replace(rows, low_s=np.zeros(rows.low_s.size))
        prices = Prices(-kinds.price * kinds.least, 1.0)
        if self._small:
            state = np.zeros((kinds.shape[0] + 1, kinds.shape[1]), dtype=np.int64)
            first_s = kinds.fixed_s + kinds.shard_s * kinds.least
            choice = (first_s / kinds.deadline_s[:, None]).argmin(axis=0)
            state[choice, np.arange(choice.size)] = kinds.copies
            offers.offer(thrifty_state(kinds, state, stop)[:-1])
        else:
            bid = self._bid(offers)
            prices = prices if bid is None else bid.prices(kinds, 1 / float(bid.worth[-1]))
        return Start(rows, prices, self.most_s)

    def search(
        self,
        offers: Offers,
        sacks: Knapsacks,
        relaxed: Relaxed,
        number: int,
        stop: Callable[[], bool],
    ) -> None:
        """Offer what exchanges make of what was usual and of what is best."""
        state = rounded(sacks, relaxed) if number % 2 else usual(self.kinds, relaxed)
        if self._small:
            state = thrifty_state(self.kinds, state, stop)
        offers.offer(state[:-1])

    @property
    def _small(self) -> bool:
        return self.kinds.copies.size <= SMALL

    def _bid(self, offers: Offers) -> Bids | None:
        """Bids under the smallest budget that places all shards in fractions; offers plans."""
        kinds = self.kinds
        found = _smallest_budget(kinds)
        if found is None:
            return None
        budget, first = found
        for factor in BUDGETS:
            richer = replace(kinds, budget=budget * factor)
            bid = bids(richer, kinds.deadline_s, first.worth)
            if bid is not None and offers.offer(Placing(richer, bid).settle()[:-1]):
                break
        return first


def _smallest_budget(kinds: LearnerClasses) -> tuple[float, Bids] | None:
    """By Newton's steps from below: what the budget places is a concave function of it."""
    forced = np.where(kinds.optional, 0, kinds.least) * kinds.copies
    budget = 1.01 * max(float(forced @ kinds.price), float(kinds.need.sum() * kinds.price.min()))
    if not budget:
        return None
    worth = None
    for _ in range(NEWTON):
        found = bids(replace(kinds, budget=budget), kinds.deadline_s, worth)
        if found is None or found.worth[-1] <= 1e-9:
            return None
        short = (1 - found.room) * float(kinds.need.sum())
        if short <= 1e-6 * float(kinds.need.sum()):
            return budget, found
        budget, worth = budget + short / float(found.worth[-1]), found.worth
    return None
