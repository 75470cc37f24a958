"""Quantiles of Student's t distribution."""

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from melisma.fleet.array_types import Floats

# Gauss-Legendre quadrature on 64 points is exact to ten digits here.
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(64)
BISECTIONS = 60
# From here on the first correction to the normal quantile is as accurate.
NORMAL_FROM_FREEDOM = 1e4


def t_quantile(share: float, freedom: Floats) -> Floats:
    """Return the quantile of t at probability `share`, for at least 1 degree of freedom.

    With t = sqrt(v) * tan(a), the probability of 0 to t is the integral of cos(x)^(v - 1) from 0
    to a, times a constant; a is found by bisection.
    """
    distinct, index = np.unique(freedom, return_inverse=True)
    z = abs(NormalDist().inv_cdf(share))
    t = z + (z**3 + z) / (4.0 * distinct)
    few = distinct < NORMAL_FROM_FREEDOM
    t[few] = [_bisect(abs(share - 0.5), degrees) for degrees in distinct[few].tolist()]
    return np.asarray(math.copysign(1.0, share - 0.5) * t[index.reshape(np.shape(freedom))])


@lru_cache(maxsize=4096)
def _bisect(wanted: float, freedom: float) -> float:
    """Return the quantile for one number of degrees of freedom, cached: few values occur."""
    log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)
    scale = math.exp(log) / math.sqrt(math.pi)
    low, high = 0.0, math.pi / 2
    for _ in range(BISECTIONS):
        half = (low + high) / 4
        heights = np.cos(half * (POINTS + 1.0)) ** (freedom - 1.0)
        short = scale * half * (heights @ WEIGHTS) < wanted
        low, high = (2 * half, high) if short else (low, 2 * half)
    return math.sqrt(freedom) * math.tan((low + high) / 2)
