"""The mean change times a learning rate; with lr = 1 FedAvg (McMahan et al. 2017)."""

from typing import Any

from numpy.typing import NDArray


def mean_step(
    change: NDArray[Any], state: tuple[NDArray[Any], ...], *, lr: float
) -> tuple[NDArray[Any], tuple[NDArray[Any], ...]]:
    """Return lr * change; there is no state."""
    return lr * change, state
