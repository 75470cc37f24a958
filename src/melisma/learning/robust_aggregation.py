"""Aggregations that a few arbitrary updates cannot move far (Yin et al. 2018).

Each number of the model is aggregated by itself, and each update counts the same: weights follow
the samples that a learner trained, so that with them a few fast devices could outvote all others.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.array_types import Floats
from melisma.learning.parameters import Arrays

TRIM: Final = 0.2
"""The share of updates that `trimmed_mean` leaves out at each end, rounded down."""


def median(updates: Arrays, _weights: Floats) -> dict[str, NDArray[Any]]:
    """Return the median of each number over all updates."""
    return {name: np.median(rows, axis=0) for name, rows in updates.items()}


def trimmed_mean(updates: Arrays, weights: Floats) -> dict[str, NDArray[Any]]:
    """Return the mean of each number without its smallest and largest values."""
    count = len(weights)
    cut = int(TRIM * count)
    return {
        name: np.sort(rows, axis=0)[cut : count - cut].mean(axis=0, dtype=np.float64)
        for name, rows in updates.items()
    }


ROBUST_AGGREGATIONS: Final = {"median": median, "trimmed_mean": trimmed_mean}
