"""What work takes beside time: bytes that travel, joules, and money.

The model goes down with each assignment and comes up with each update, whether it counts or not;
shards travel as far as updates tell. A figure is NaN where its sizes or rates are not known.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import nan

import numpy as np

from melisma.cycle.events import NO_FLOATS, RATES, Floats, TaskSubmitted
from melisma.errors import SettingError
from melisma.runs.assignments import Assignments


@dataclass(frozen=True, eq=False)
class UsageRates:
    """Sizes of a task, and what learners cost: of `RATES` by learners, or nothing."""

    model_bytes: float
    shard_bytes: float
    rates: Floats

    @classmethod
    def of(cls, event: TaskSubmitted) -> "UsageRates":
        """As a run begins."""
        task = event.task
        sizes = _size(lambda: task.model_bytes), _size(lambda: task.shard_bytes)
        return cls(*sizes, event.rates)

    def transferred_bytes(self, work: Assignments) -> Floats:
        """Down and up, for each assignment."""
        ways = 1.0 + ~np.isnan(work.arrived_s)
        shipped = np.where(work.shipped > 0, self.shard_bytes * work.shipped, 0.0)
        carried: Floats = self.model_bytes * ways + shipped
        return carried

    def joules(self, work: Assignments) -> float:
        """Of training, as far as visits are known, and of bytes."""
        trained = work.visits * self._rate("sample_j", work)
        return float((trained + self.transferred_bytes(work) * self._rate("byte_j", work)).sum())

    def cost(self, work: Assignments) -> float:
        """The price of all shards that were given out."""
        return float((work.shards * self._rate("price", work)).sum())

    def _rate(self, name: str, work: Assignments) -> Floats:
        if not self.rates.size:
            return np.full(len(work), nan)
        known = self.rates[RATES.index(name)]
        learners = np.minimum(work.learner, known.size - 1)
        return np.where(work.learner < known.size, known[learners], nan)


def _size(told: Callable[[], int]) -> float:
    try:
        return told()
    except SettingError:
        return nan


UNKNOWN_RATES = UsageRates(nan, nan, NO_FLOATS)
