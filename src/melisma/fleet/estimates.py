"""Measured costs with their spread, and the margins that plans use.

An estimate has the mean seconds, the standard deviation of one cycle, and the number of cycles that
the mean is worth. The error of the next cycle has the standard deviation
spread * sqrt(1 + 1 / count), and its quantile is that of a normal distribution.

- The spread starts as `PRIOR_SPREAD` of the mean and is corrected by the errors of each cycle.
- A benchmark is worth `BENCHMARK_COUNT` of a cycle: it differs from a cycle by more than cycles
  differ among themselves (cold start, number of batches, start of a transfer).
- A surprising measurement moves the mean only as far as a large but usual error would. The estimate
  is then in doubt: the next measurement replaces it almost completely, whether it confirms the
  surprise or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from melisma.errors import SettingError
from melisma.fleet.array_types import Floats
from melisma.fleet.t_distribution import t_quantile

# In live runs, cycles of one device differ by 5 to 9 % in training and by 1 to 2 % in fetching.
PRIOR_SPREAD = 0.1
# Cycles are never planned with a smaller spread, so that a change of a few percent is no surprise.
LEAST_SPREAD = 0.02
# The prior of the relative variance has the weight of this number of cycles, and so has its memory.
SPREAD_MEMORY = 8.0
# The first measurements have equal weights; each later one has the weight 1/4, so that the mean
# follows a device that slows down over several cycles.
MEAN_MEMORY = 4.0
# Benchmarks differ from cycles by about twice as much as cycles from each other.
BENCHMARK_COUNT = 0.25
# An estimate that the next measurement replaces almost completely: a guess, or one in doubt.
DOUBTED_COUNT = 0.2
LEAST_COUNT = 0.1
# A relative error of more than this number of standard deviations is a surprise.
SURPRISE_DEVIATIONS = 3.0
# Relative errors ignore differences of this size, so that costs may be 0.
CLOCK_TICK_S = 1e-6
TINY_S = 1e-100  # avoids divisions by 0


@dataclass(frozen=True, eq=False)
class Estimate:
    """Mean seconds, the standard deviation of one cycle, and the number of cycles measured.

    Each is a scalar for one learner, or an array with learners on the last axis. Without `count`,
    mean and spread are taken as exactly known.
    """

    mean: Floats
    spread: Floats
    count: Floats

    def __init__(self, mean: ArrayLike, spread: ArrayLike, count: ArrayLike = np.inf) -> None:
        arrays = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (mean, spread, count)))
        for name, array in zip(("mean", "spread", "count"), arrays, strict=True):
            least, most = (
                (LEAST_COUNT, np.inf) if name == "count" else (0.0, np.finfo(np.float64).max)
            )
            if array.size and not (array.min() >= least and array.max() <= most):
                wrong = array[~((array >= least) & (array <= most))]
                raise SettingError(
                    f"{name} of an estimate is {wrong.flat[0]:g}; "
                    f"expected a finite number of at least {least:g}"
                )
            object.__setattr__(self, name, array)

    @classmethod
    def from_measurements(cls, measured: ArrayLike) -> "Estimate":
        """Return mean and standard deviation of repeated measurements on the first axis."""
        values = np.asarray(measured, dtype=np.float64)
        if not values.shape or not values.shape[0] or not np.all((values >= 0) & (values < np.inf)):
            raise SettingError(
                "an estimate needs at least one measurement, each a finite number of at least 0"
            )
        count = values.shape[0]
        sd = values.std(axis=0, ddof=1) if count > 1 else 0.0
        return cls(values.mean(axis=0), sd, count)

    @classmethod
    def from_benchmark(cls, seconds: ArrayLike) -> "Estimate":
        """Return the estimate of a cost that a benchmark measured."""
        mean = np.asarray(seconds, np.float64)
        return cls(mean, PRIOR_SPREAD * mean, BENCHMARK_COUNT)

    @classmethod
    def from_guess(cls, seconds: ArrayLike) -> "Estimate":
        """Return the estimate of a cost that was not measured, until a cycle measures it."""
        mean = np.asarray(seconds, np.float64)
        return cls(mean, PRIOR_SPREAD * mean, DOUBTED_COUNT)

    def with_observation(self, observed: ArrayLike) -> "Estimate":
        """Return the estimate with one more measurement, taken in a cycle; NaN for no value.

        One bad measurement hardly changes the mean. A lasting change is followed by the second.
        """
        new = np.asarray(observed, dtype=np.float64)
        if new.shape != self.mean.shape:
            raise SettingError(
                f"observed seconds have shape {new.shape}; expected {self.mean.shape}"
            )
        if np.any(new < 0):
            raise SettingError(f"observed seconds are {np.nanmin(new):g}; expected at least 0")
        measured, doubted = ~np.isnan(new), self.count <= DOUBTED_COUNT
        seconds = np.where(measured, new, self.mean)
        relative = self.relative_spread
        widening = 1.0 + 1.0 / self.count
        usual = SURPRISE_DEVIATIONS * relative * np.sqrt(widening)
        error = np.log((seconds + CLOCK_TICK_S) / (self.mean + CLOCK_TICK_S))
        bounded = np.clip(error, -usual, usual)
        surprised = (bounded != error) & ~doubted
        step_s = seconds - self.mean
        if surprised.any():
            limited_s = (self.mean + CLOCK_TICK_S) * np.expm1(bounded)
            step_s = np.where(surprised, limited_s, step_s)
        count = np.where(doubted, 1.0, np.minimum(self.count + 1.0, MEAN_MEMORY))
        mean = np.maximum(self.mean + step_s / count, np.minimum(self.mean, seconds))
        # The error of a benchmark or a guess says nothing about the differences between cycles.
        weight = np.where(self.count < 1.0, 0.0, 1.0 / SPREAD_MEMORY)
        variance = bounded**2 / widening
        relative = np.sqrt(relative**2 + (variance - relative**2) * weight)
        return Estimate(
            mean,
            np.where(measured, np.maximum(relative, LEAST_SPREAD) * mean, self.spread),
            np.where(measured, np.where(surprised, DOUBTED_COUNT, count), self.count),
        )

    def with_lower_mean(self, mean: Floats, learners: ArrayLike) -> "Estimate":
        """Return the estimate with the means of these learners half way down to `mean`.

        For a cost that was not measured for some time; half way is the geometric mean.
        """
        lower_s = np.minimum(self.mean, np.sqrt(self.mean * mean))
        after_s = np.where(learners, lower_s, self.mean)
        return Estimate(after_s, self.relative_spread * after_s, self.count)

    @property
    def relative_spread(self) -> Floats:
        """The spread as a fraction of the mean; that of the prior if the mean is 0."""
        relative = self.spread / np.maximum(self.mean, TINY_S)
        return np.where(self.mean > TINY_S, relative, PRIOR_SPREAD)

    @cached_property
    def variance(self) -> Floats:
        """The expected square of the error of the next measurement."""
        return np.asarray(self.spread**2 * (1.0 + 1.0 / self.count))

    def quantile(self, share: float) -> Floats:
        """Return the seconds that the next measurement does not exceed with probability `share`."""
        return np.asarray(self.mean * _factor(share, self.mean, self.variance))


def _factor(share: float, mean: Floats, variance: Floats) -> Floats:
    """Return the quantile as a multiple of the mean; positive, since times are."""
    check_caution(share)
    z = _deviations(share)
    margin = 1.0 + abs(z) * np.sqrt(variance) / np.maximum(mean, TINY_S)
    return np.asarray(margin if z >= 0 else 1.0 / margin)


@lru_cache(maxsize=16)
def _deviations(share: float) -> float:
    """Return the quantile of the error in standard deviations."""
    return float(t_quantile(share, np.array(SPREAD_MEMORY)))


def sum_of(parts: Sequence[Estimate]) -> Estimate:
    """Return the estimate of a sum of independent costs."""
    mean = np.sum([part.mean for part in parts], axis=0)
    spread2 = np.sum([part.spread**2 for part in parts], axis=0)
    extra = np.sum([part.variance for part in parts], axis=0) - spread2
    least = np.min([part.count for part in parts], axis=0)
    count = np.where(extra > 0, spread2 / np.where(extra > 0, extra, 1.0), least)
    return Estimate(mean, np.sqrt(spread2), count)


@dataclass(frozen=True, eq=False)
class Estimates:
    """The three costs of a cycle as learners measured them, named as in `CycleProblem`."""

    train_s: Estimate
    ship_s: Estimate
    fixed_s: Estimate

    def mean(self) -> dict[str, Floats]:
        """Return the mean of each cost by name."""
        return {cost.name: getattr(self, cost.name).mean for cost in fields(self)}

    def quantile(
        self, share: float, *, trained: ArrayLike, fetched: ArrayLike
    ) -> dict[str, Floats]:
        """Return each cost by name, so that their sum at a load is at its quantile.

        The load is the shards trained, times the passes, and the shards fetched. The costs are
        independent, so their variances add; all shards of a cycle have the same error. Each mean is
        multiplied by the same factor.
        """
        training, fetching = np.asarray(trained, np.float64), np.asarray(fetched, np.float64)
        seconds = training * self.train_s.mean + fetching * self.ship_s.mean + self.fixed_s.mean
        variance = (
            training**2 * self.train_s.variance
            + fetching**2 * self.ship_s.variance
            + self.fixed_s.variance
        )
        factor = _factor(share, seconds, variance)
        return {name: mean * factor for name, mean in self.mean().items()}


class Costs(Protocol):
    """The three costs of a cycle by name, measured or from a file, as allocation problems need."""

    def mean(self) -> dict[str, Floats]:
        """Return the mean of each cost by name."""

    def quantile(
        self, share: float, *, trained: ArrayLike, fetched: ArrayLike
    ) -> dict[str, Floats]:
        """Return each cost by name; a cycle takes longer with probability 1 - `share` at most.

        This holds for a cycle that trains and fetches these numbers of shards.
        """


def check_caution(share: float) -> None:
    """Raise SettingError unless 0 < share < 1."""
    if not 0 < share < 1:
        raise SettingError(f"caution is {share:g}; expected more than 0 and less than 1")
