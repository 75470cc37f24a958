"""Validate arguments of problems and convert them to arrays, or raise `SettingError`."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from melisma.errors import SettingError
from melisma.fleet.array_types import Bools, Floats, Ints

Numbers = Floats | Ints | float

# Sums and products of counts stay exact in double precision below this.
MAX_COUNT = 2**53
# Relative excess over a budget that the rounding of sums may cause.
BUDGET_TOLERANCE = 1e-12
# Beyond these, products and quotients of costs would leave the range of floats.
MIN_COST_S, MAX_VALUE = 1e-30, 1e30


def as_floats(name: str, value: ArrayLike, *, least: float = 0.0, above: bool = False) -> Floats:
    """Return `value` as finite floats of at least `least`, or of more if `above`."""
    array = _as_array(name, value)
    floats = array.astype(np.float64)
    require(name, array, np.isfinite(floats), "a finite number")
    require(name, array, floats <= MAX_VALUE, f"at most {MAX_VALUE:g}")
    valid = floats > least if above else floats >= least
    require(name, array, valid, f"{'more than' if above else 'at least'} {least:g}")
    return floats


def as_counts(name: str, value: ArrayLike, *, least: int = 0) -> Ints:
    """Return `value` as whole numbers of at least `least`."""
    array = _as_array(name, value)
    if array.dtype.kind == "f":
        require(name, array, np.isfinite(array), "a finite number")
        require(name, array, array == np.floor(array), "a whole number")
    require(name, array, np.abs(array) <= MAX_COUNT, f"at most {MAX_COUNT}")
    require(name, array, array >= least, f"at least {least}")
    return array.astype(np.int64)


def require(name: str, array: NDArray[Any], valid: Bools, expected: str) -> None:
    """Raise `SettingError` with the first invalid element and the number of others."""
    invalid = ~np.atleast_1d(valid)
    if invalid.any():
        index = tuple(int(i) for i in np.argwhere(invalid)[0])
        position = f"[{', '.join(map(str, index))}]" if array.ndim else ""
        count = int(np.count_nonzero(invalid))
        more = f" (and {count - 1} more like it)" if count > 1 else ""
        raise SettingError(
            f"{name}{position} is {np.atleast_1d(array)[index]}{more}; expected {expected}"
        )


def broadcast_to(
    shape: tuple[int, ...], arrays: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return read-only copies of the arrays, broadcast to `shape`."""
    copies = {}
    for name, array in arrays.items():
        try:
            # Copied, so that changing the caller's array does not change the problem.
            copies[name] = np.broadcast_to(array, shape).copy()
        except ValueError:
            message = f"{name} has shape {array.shape}; expected {shape}, or one number for all"
            raise SettingError(message) from None
        copies[name].setflags(write=False)
    return copies


def common_shape(arrays: dict[str, NDArray[Any]], axes: int) -> tuple[int, ...]:
    """Return the broadcast shape of the arrays, with `axes` axes; the last one is learners."""
    try:
        shape = np.broadcast_shapes((1,) * axes, *(array.shape for array in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise SettingError(f"shapes differ: {shapes}; the last axis is learners") from None
    if len(shape) != axes:
        raise SettingError(f"{', '.join(arrays)} have {len(shape)} axes; expected at most {axes}")
    if 0 in shape:
        raise SettingError(f"{', '.join(arrays)} are empty; expected at least one learner")
    return shape


def as_scalar(name: str, array: NDArray[Any]) -> Any:
    """Return the only element of a 0-dimensional array."""
    if array.ndim:
        raise SettingError(f"{name} has shape {array.shape}; expected one number for all learners")
    return array.item()


def _as_array(name: str, value: ArrayLike) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError:
        raise SettingError(f"{name} has rows of unequal length") from None
    if array.dtype.kind not in "iuf":
        raise SettingError(f"{name} is {value!r:.80}; expected a number or an array of numbers")
    return array
