"""What a search of MED minimises: the sum of the tasks' seconds, or what a plan costs.

Both are searched by the same tree. They differ in what an association is worth, in where good
ones come from, and in the first prices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from melisma.allocation.checks import Ints
from melisma.allocation.med.bound import CountBounds, Knapsacks, Prices, Relaxed
from melisma.allocation.med.columns import Aim
from melisma.allocation.med.learner_classes import LearnerClasses
from melisma.allocation.med.levels import Ladder, LevelIntervals

SMALL = 200  # kinds, up to which exchanges of learners are quick


class Offers(Protocol):
    """Takes associations; keeps the best, and says whether one is a plan at all."""

    def offer(self, counts: Ints) -> bool: ...


@dataclass(frozen=True, eq=False)
class Start:
    """LevelIntervals and prices of the root, and a guess of the least sum."""

    rows: LevelIntervals
    prices: Prices
    guess_s: float


class Objective(Protocol):
    """LearnerClasses, their levels, and limits between which the value of every plan is."""

    @property
    def kinds(self) -> LearnerClasses: ...
    @property
    def ladder(self) -> Ladder: ...
    @property
    def least_s(self) -> float: ...
    @property
    def most_s(self) -> float: ...
    @property
    def rate_fixed(self) -> bool:
        """Whether money is what counts, and so has no price to be found."""

    def aims(self, relaxed: Relaxed) -> tuple[Aim, ...]:
        """What to enumerate for, in turn."""

    def value(self, counts: Ints) -> tuple[float, float]:
        """What an association is worth with its best amounts, and what these cannot fall below."""

    def start(self, offers: Offers, stop: Callable[[], bool]) -> Start:
        """Where the search begins; offers what is found on the way."""

    def search(
        self,
        offers: Offers,
        sacks: Knapsacks,
        relaxed: Relaxed,
        number: int,
        stop: Callable[[], bool],
    ) -> None:
        """Offer what can be made of the prices."""


def everybody(kinds: LearnerClasses) -> CountBounds:
    """No limits but how many learners there are of a kind."""
    high = np.broadcast_to(kinds.copies, kinds.shape).copy()
    return CountBounds(np.zeros_like(high), high)


def coarse_rows(ladder: Ladder) -> LevelIntervals:
    """Few rows, the fewer the more kinds there are."""
    return ladder.rows(int(np.clip(2000 // ladder.kinds.copies.size, 4, 24)))
