"""Momentum of the mean changes: FedAvgM (Hsu, Qi and Brown 2019)."""

from typing import Any

from numpy.typing import NDArray


def momentum_step(
    change: NDArray[Any], state: tuple[NDArray[Any], ...], *, lr: float, momentum: float
) -> tuple[NDArray[Any], tuple[NDArray[Any], ...]]:
    """Return lr * m with m = momentum * m + change, which is the state."""
    mean = momentum * state[0] + change if state else change
    return lr * mean, (mean,)
