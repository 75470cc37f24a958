"""Confidence intervals of a mean, by Student's t."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from statistics import mean, stdev

import numpy as np

from melisma.fleet.t_distribution import t_quantile

T_PROBABILITY = 0.975  # leaves out 2.5 % on either side


@dataclass(frozen=True)
class Interval:
    """A mean and the half width of its 95 % confidence interval, from `known` of `count` values.

    The half width of a single value is NaN, and so is the mean of no value.
    """

    mean: float
    half_width: float
    known: int
    count: int

    @classmethod
    def from_values(cls, values: Iterable[float]) -> "Interval":
        """Return the interval of the finite values; the others count as unknown."""
        values = list(values)
        known = [value for value in values if isfinite(value)]
        middle = mean(known) if known else nan
        return cls(float(middle), _half_width(known), len(known), len(values))

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside of the interval; never for a single value."""
        return abs(self.mean) > self.half_width


def _half_width(values: list[float]) -> float:
    if len(values) < 2:
        return nan
    t = float(t_quantile(T_PROBABILITY, np.array([len(values) - 1.0]))[0])
    return t * stdev(values) / sqrt(len(values))
