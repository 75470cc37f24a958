"""Nesterov's momentum of the mean changes (Sutskever et al. 2013)."""

from typing import Any

from numpy.typing import NDArray


def nesterov_step(
    change: NDArray[Any], state: tuple[NDArray[Any], ...], *, lr: float, momentum: float
) -> tuple[NDArray[Any], tuple[NDArray[Any], ...]]:
    """Return lr * (change + momentum * m) with m = momentum * m + change, which is the state."""
    mean = momentum * state[0] + change if state else change
    return lr * (change + momentum * mean), (mean,)
