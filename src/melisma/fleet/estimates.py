"""What is known of a cost: a mean with a spread, and quantiles to plan with.

Times are positive and their tail is on the right, so the predictive distribution is log-normal
with the mean and standard deviation at hand.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from melisma.errors import SettingError

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Estimate:
    """Seconds with their standard deviation, learners last."""

    mean: Floats
    spread: Floats

    @classmethod
    def of(cls, measured: ArrayLike) -> "Estimate":
        """From repeated measurements on the first axis: spread of the next one, not of their mean.

        One measurement alone tells nothing about its spread; it is taken as none.
        """
        values = np.asarray(measured, dtype=np.float64)
        if not values.shape or not values.shape[0] or not np.all((values >= 0) & (values < np.inf)):
            raise SettingError(
                "an estimate needs at least one measurement, each a finite number not below 0"
            )
        count = values.shape[0]
        sd = values.std(axis=0, ddof=1) if count > 1 else np.zeros(values.shape[1:])
        return cls(np.asarray(values.mean(axis=0)), np.asarray(sd * np.sqrt(1 + 1 / count)))

    def quantile(self, share: float) -> Floats:
        """What a cost stays below with probability `share`; the mean itself where spread is 0."""
        if not 0 < share < 1:
            raise SettingError(f"caution is {share:g}; expected more than 0 and less than 1")
        with np.errstate(divide="ignore", invalid="ignore"):
            relative = np.where(self.spread > 0, self.spread / self.mean, 0.0)
        sigma = np.sqrt(np.log1p(relative**2))
        factor = np.exp(NormalDist().inv_cdf(share) * sigma - sigma**2 / 2)
        return np.where(sigma > 0, self.mean * factor, self.mean)


@dataclass(frozen=True, eq=False)
class Estimates:
    """The three costs of a cycle, as `CycleProblem` takes them."""

    train_s: Estimate
    ship_s: Estimate
    fixed_s: Estimate

    def mean(self) -> dict[str, Floats]:
        """Each cost by name, as expected."""
        return {name: each.mean for name, each in vars(self).items()}

    def quantile(self, share: float) -> dict[str, Floats]:
        """Each cost by name, at that quantile."""
        return {name: each.quantile(share) for name, each in vars(self).items()}
