"""Yogi on the mean changes: FedYogi (Reddi et al. 2021, algorithm 2), without bias correction."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def yogi_step(
    change: NDArray[Any],
    state: tuple[NDArray[Any], ...],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> tuple[NDArray[Any], tuple[NDArray[Any], ...]]:
    """Return lr * m / (sqrt(v) + eps); the state is (m, v), which begins with 0 and eps**2.

    m = beta1 * m + (1 - beta1) * change and v = v - (1 - beta2) * change**2 * sign(v - change**2).
    """
    mean, square = state or (np.zeros_like(change), np.full_like(change, eps**2))
    mean, new = beta1 * mean + (1 - beta1) * change, change**2
    square = square - (1 - beta2) * new * np.sign(square - new)
    return lr * mean / (np.sqrt(square) + eps), (mean, square)
