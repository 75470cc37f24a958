"""What measurements tell of a cost, and what to plan with.

An estimate is the mean of what was measured, the standard deviation of one measurement, and how
many there were. The next one lies below mean + t * spread * sqrt(1 + 1 / count) with the
probability of that t: Student's, with count - 1 degrees of freedom, so that few measurements plan
more carefully than many with the same spread. Times are positive: below the mean the same factor
divides instead, and no quantile reaches 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from melisma.errors import SettingError
from melisma.fleet.array_types import Floats
from melisma.fleet.t_distribution import t_quantile

# One measurement alone says nothing of its spread: this part of it is assumed, as if well known.
# The thesis' errors of one benchmark reach it (download over WiFi: 32 %).
ASSUMED_SPREAD = 0.3
# So many measurements count alike. What comes later counts for one in so many, and what came
# before fades: after as many cycles again about a third of its weight is left.
MEMORY_MEASUREMENTS = 8.0


@dataclass(frozen=True, eq=False)
class Estimate:
    """Seconds, their standard deviation and the number of measurements behind them.

    One number each for a learner by itself, or arrays with learners last. Without a count, mean
    and spread are taken as known.
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
        """From repeated measurements on the first axis."""
        values = np.asarray(measured, dtype=np.float64)
        if not values.shape or not values.shape[0] or not np.all((values >= 0) & (values < np.inf)):
            raise SettingError(
                "an estimate needs at least one measurement, each a finite number not below 0"
            )
        count = values.shape[0]
        sd = values.std(axis=0, ddof=1) if count > 1 else 0.0
        return cls(values.mean(axis=0), sd, count)

    def with_observation(self, observed: ArrayLike) -> "Estimate":
        """With one more measurement, from what a cycle really took; NaN where there is none.

        The first `MEMORY` measurements count alike. From then on a new one counts for one in
        `MEMORY`, so that older ones are forgotten exponentially: a device that slows down is
        followed, at first by the spread, which plans carefully at once, then by the mean.
        """
        new = np.asarray(observed, dtype=np.float64)
        if new.shape != self.mean.shape or np.any(new < 0):
            raise SettingError(
                f"what a cycle took has shape {new.shape}; expected {self.mean.shape}, "
                "each not below 0"
            )
        seen, count = ~np.isnan(new), np.minimum(self.count + 1.0, MEMORY_MEASUREMENTS)
        step = np.where(seen, new - self.mean, 0.0)
        variance = self.spread**2 * (count - 2.0) / (count - 1.0) + step**2 / count
        return Estimate(
            self.mean + step / count,
            np.where(seen, np.sqrt(variance), self.spread),
            np.where(seen, count, self.count),
        )

    def quantile(self, share: float) -> Floats:
        """What the next measurement stays below with probability `share`."""
        check_caution(share)
        alone = self.count < 2.0
        spread = np.where(alone, ASSUMED_SPREAD * self.mean, self.spread)
        t = t_quantile(share, np.where(alone, np.inf, self.count - 1.0))
        away = np.abs(t) * spread * np.sqrt(1.0 + 1.0 / self.count)
        if share >= 0.5:
            return np.asarray(self.mean + away)
        return np.asarray(self.mean * (self.mean / np.maximum(self.mean + away, 1e-300)))


@dataclass(frozen=True, eq=False)
class Estimates:
    """The three costs of a cycle as learners measured them; their names are `CycleProblem`'s."""

    train_s: Estimate
    ship_s: Estimate
    fixed_s: Estimate

    @classmethod
    def concatenate(cls, reported: Sequence["Estimates"]) -> Self:
        """Those of all learners, from what each of them reported, in that order."""
        if not reported:
            raise SettingError("nobody reported estimates; at least one learner is needed")

        def column(cost: str, field: str) -> Floats:
            rows = [np.atleast_1d(getattr(getattr(each, cost), field)) for each in reported]
            return np.concatenate(rows)

        parts = ("mean", "spread", "count")
        return cls(*(Estimate(*(column(c.name, f) for f in parts)) for c in fields(cls)))

    def with_observations(self, **observed: ArrayLike) -> "Estimates":
        """With what a cycle really took, by the name of the cost; see `Estimate.after`."""
        known = {cost.name: getattr(self, cost.name) for cost in fields(self)}
        if observed.keys() - known.keys():
            raise SettingError(f"costs are {', '.join(known)}, not {', '.join(observed)}")
        return Estimates(
            **known | {name: known[name].with_observation(v) for name, v in observed.items()}
        )

    def mean(self) -> dict[str, Floats]:
        """Each cost by name, as expected."""
        return {cost.name: getattr(self, cost.name).mean for cost in fields(self)}

    def quantile(self, share: float) -> dict[str, Floats]:
        """Each cost by name, at that quantile of its own."""
        return {cost.name: getattr(self, cost.name).quantile(share) for cost in fields(self)}


class Costs(Protocol):
    """What problems are built from: the three costs of a cycle by name, measured or stated."""

    def mean(self) -> dict[str, Floats]:
        """Each cost by name, as expected."""

    def quantile(self, share: float) -> dict[str, Floats]:
        """Each cost by name; a cycle takes longer no more often than 1 - `share`."""


def check_caution(share: float) -> None:
    """A probability that leaves room on both sides."""
    if not 0 < share < 1:
        raise SettingError(f"caution is {share:g}; expected more than 0 and less than 1")
