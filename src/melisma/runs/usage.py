"""Bytes, joules and money that work takes.

Each assignment downloads the model and each update uploads it, whether it counts or not; updates
report how many shards were fetched. A figure is NaN if its sizes or rates are unknown.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import nan

import numpy as np

from melisma.cycle.events import RATES, TaskSubmitted
from melisma.errors import SettingError
from melisma.fleet.array_types import NO_FLOATS, Floats
from melisma.runs.assignments import Assignments


@dataclass(frozen=True, eq=False)
class UsageRates:
    """Sizes of a task, and the rates of learners: `RATES` by learners, or empty."""

    model_bytes: float
    shard_bytes: float
    rates: Floats

    @classmethod
    def from_submission(cls, event: TaskSubmitted) -> "UsageRates":
        """Return the sizes and rates of a submitted task."""
        task = event.task
        sizes = _size(lambda: task.model_bytes), _size(lambda: task.shard_bytes)
        return cls(*sizes, event.rates)

    @property
    def has_prices(self) -> bool:
        """Whether a learner has another price than the default of 1."""
        return bool(self.rates.size and np.any(self.rates[RATES.index("price")] != 1.0))

    def transferred_bytes(self, work: Assignments) -> Floats:
        """Return the bytes that each assignment downloads and uploads."""
        transfers = 1.0 + ~np.isnan(work.arrived_s)
        shipped = np.where(work.shipped > 0, self.shard_bytes * work.shipped, 0.0)
        total: Floats = self.model_bytes * transfers + shipped
        return total

    def joules(self, work: Assignments) -> Floats:
        """Return the energy of each assignment for known visits and transferred bytes."""
        trained = work.visits * self._rate("sample_j", work)
        total: Floats = trained + self.transferred_bytes(work) * self._rate("byte_j", work)
        return total

    def cost(self, work: Assignments) -> Floats:
        """Return the price of the shards of each assignment."""
        price: Floats = work.shards * self._rate("price", work)
        return price

    def _rate(self, name: str, work: Assignments) -> Floats:
        if not self.rates.size:
            return np.full(len(work), nan)
        known = self.rates[RATES.index(name)]
        learners = np.minimum(work.learner, known.size - 1)
        return np.where(work.learner < known.size, known[learners], nan)


def _size(read: Callable[[], int]) -> float:
    try:
        return read()
    except SettingError:
        return nan


UNKNOWN_RATES = UsageRates(nan, nan, NO_FLOATS)
