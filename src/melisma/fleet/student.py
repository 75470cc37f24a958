"""Student's t: how far off the next value may be, seen from few measurements."""

import math
from statistics import NormalDist

import numpy as np

from melisma.fleet.channel import Floats

# Gauss-Legendre on this many points is exact to ten digits here.
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(64)
HALVINGS = 60
# From here on the first term beyond the normal distribution is as good.
MANY = 1e4


def student_t(share: float, freedom: Floats) -> Floats:
    """What t stays below with probability `share`, for degrees of freedom of at least 1.

    With t = sqrt(v) * tan(a), the probability of 0 to t is the integral of cos(x)^(v - 1) from 0
    to a, times a constant; a is found by halving.
    """
    different, place = np.unique(freedom, return_inverse=True)
    z = abs(NormalDist().inv_cdf(share))
    found = z + (z**3 + z) / (4.0 * different)
    few = different < MANY
    found[few] = _halved(abs(share - 0.5), different[few])
    return np.asarray(math.copysign(1.0, share - 0.5) * found[place.reshape(np.shape(freedom))])


def _halved(wanted: float, freedom: Floats) -> Floats:
    logs = [math.lgamma((v + 1) / 2) - math.lgamma(v / 2) for v in freedom.tolist()]
    scale = np.exp(logs) / math.sqrt(math.pi)
    low, high = np.zeros(freedom.size), np.full(freedom.size, math.pi / 2)
    for _ in range(HALVINGS):
        half = (low + high) / 4
        heights = np.cos(np.outer(half, POINTS + 1.0)) ** (freedom - 1.0)[:, None]
        short = scale * half * (heights @ WEIGHTS) < wanted
        low, high = np.where(short, 2 * half, low), np.where(short, high, 2 * half)
    return np.asarray(np.sqrt(freedom) * np.tan((low + high) / 2))
