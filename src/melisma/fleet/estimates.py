"""Measured costs with their spread, and the quantiles that plans use.

An estimate has the mean of the measurements, the standard deviation of one measurement, and their
count. The quantile of the next measurement is mean + t * spread * sqrt(1 + 1 / count), with t from
Student's distribution with count - 1 degrees of freedom: the fewer measurements, the larger the
margin. Times are positive: below the median the mean is divided by the same factor instead, so no
quantile reaches 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from melisma.errors import SettingError
from melisma.fleet.array_types import Floats
from melisma.fleet.t_distribution import t_quantile

# The spread of a single measurement is unknown: assume this fraction of it. The errors of a
# benchmark in Mays' thesis reach 32 % (download over WiFi).
ASSUMED_SPREAD = 0.3
# Up to this number all measurements have the same weight. Each later one has the weight 1/8, and
# older ones fade: after 8 more cycles about a third of their weight is left.
MEMORY_MEASUREMENTS = 8.0


@dataclass(frozen=True, eq=False)
class Estimate:
    """Mean seconds, the standard deviation of one measurement, and the number of measurements.

    Each is a scalar for one learner, or an array with learners on the last axis. Without `count`,
    mean and spread are taken as exactly known.
    """

    mean: Floats
    spread: Floats
    count: Floats

    def __init__(self, mean: ArrayLike, spread: ArrayLike, count: ArrayLike = np.inf) -> None:
        arrays = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (mean, spread, count)))
        for name, array in zip(("mean", "spread", "count"), arrays, strict=True):
            least, most = (1.0, np.inf) if name == "count" else (0.0, np.finfo(np.float64).max)
            if array.size and not (array.min() >= least and array.max() <= most):
                wrong = array[~((array >= least) & (array <= most))]
                raise SettingError(
                    f"{name} of an estimate is {wrong.flat[0]:g}; "
                    f"expected a finite number of at least {least:g}"
                )
            object.__setattr__(self, name, array)

    @classmethod
    def from_measurements(cls, measured: ArrayLike) -> Self:
        """Return the estimate from repeated measurements on the first axis."""
        values = np.asarray(measured, dtype=np.float64)
        if not values.shape or not values.shape[0] or not np.all((values >= 0) & (values < np.inf)):
            raise SettingError(
                "an estimate needs at least one measurement, each a finite number of at least 0"
            )
        count = values.shape[0]
        sd = values.std(axis=0, ddof=1) if count > 1 else 0.0
        return cls(values.mean(axis=0), sd, count)

    def with_observation(self, observed: ArrayLike) -> "Estimate":
        """Return the estimate with one more measurement, taken in a cycle; NaN for no value.

        The first `MEMORY_MEASUREMENTS` have equal weights; afterwards older ones are forgotten
        exponentially. When a device slows down, its spread grows at once and its mean follows.
        """
        new = np.asarray(observed, dtype=np.float64)
        if new.shape != self.mean.shape:
            raise SettingError(
                f"observed seconds have shape {new.shape}; expected {self.mean.shape}"
            )
        if np.any(new < 0):
            raise SettingError(f"observed seconds are {np.nanmin(new):g}; expected at least 0")
        measured, count = ~np.isnan(new), np.minimum(self.count + 1.0, MEMORY_MEASUREMENTS)
        step = np.where(measured, new - self.mean, 0.0)
        variance = self.spread**2 * (count - 2.0) / (count - 1.0) + step**2 / count
        return Estimate(
            self.mean + step / count,
            np.where(measured, np.sqrt(variance), self.spread),
            np.where(measured, count, self.count),
        )

    def quantile(self, share: float) -> Floats:
        """Return the seconds that the next measurement does not exceed with probability `share`."""
        check_caution(share)
        single = self.count < 2.0
        spread = np.where(single, ASSUMED_SPREAD * self.mean, self.spread)
        t = t_quantile(share, np.where(single, np.inf, self.count - 1.0))
        margin = np.abs(t) * spread * np.sqrt(1.0 + 1.0 / self.count)
        if share >= 0.5:
            return np.asarray(self.mean + margin)
        return np.asarray(self.mean * (self.mean / np.maximum(self.mean + margin, 1e-300)))


@dataclass(frozen=True, eq=False)
class Estimates:
    """The three costs of a cycle as learners measured them, named as in `CycleProblem`."""

    train_s: Estimate
    ship_s: Estimate
    fixed_s: Estimate

    @classmethod
    def concatenate(cls, reported: Sequence["Estimates"]) -> Self:
        """Join the estimates that learners reported, in that order."""
        if not reported:
            raise SettingError(
                "no estimates to concatenate; expected those of at least one learner"
            )

        def column(cost: str, field: str) -> Floats:
            rows = [np.atleast_1d(getattr(getattr(learner, cost), field)) for learner in reported]
            return np.concatenate(rows)

        parts = ("mean", "spread", "count")
        return cls(*(Estimate(*(column(c.name, f) for f in parts)) for c in fields(cls)))

    def with_observations(self, **observed: ArrayLike) -> "Estimates":
        """Return the estimates with the seconds of a cycle, by the name of the cost."""
        known = {cost.name: getattr(self, cost.name) for cost in fields(self)}
        if observed.keys() - known.keys():
            names = ", ".join(sorted(observed.keys() - known.keys()))
            raise SettingError(f"unknown cost {names}; expected one of {', '.join(known)}")
        return Estimates(
            **known | {name: known[name].with_observation(v) for name, v in observed.items()}
        )

    def mean(self) -> dict[str, Floats]:
        """Return the mean of each cost by name."""
        return {cost.name: getattr(self, cost.name).mean for cost in fields(self)}

    def quantile(self, share: float) -> dict[str, Floats]:
        """Return the quantile of each cost by name."""
        return {cost.name: getattr(self, cost.name).quantile(share) for cost in fields(self)}


class Costs(Protocol):
    """The three costs of a cycle by name, measured or from a file, as allocation problems need."""

    def mean(self) -> dict[str, Floats]:
        """Return the mean of each cost by name."""

    def quantile(self, share: float) -> dict[str, Floats]:
        """Return each cost by name; a cycle takes longer with probability 1 - `share` at most."""


def check_caution(share: float) -> None:
    """Raise SettingError unless 0 < share < 1."""
    if not 0 < share < 1:
        raise SettingError(f"caution is {share:g}; expected more than 0 and less than 1")
