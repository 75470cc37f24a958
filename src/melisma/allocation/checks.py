"""Arguments of problems as arrays, or a `SettingError` that names the field and the learner."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from melisma.errors import SettingError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Numbers = Floats | Ints | float

# Sums and products of counts stay exact in double precision below this.
MAX_COUNT = 2**53
# What sums of prices may exceed a budget by, as a part of it: they are rounded.
BUDGET_TOLERANCE = 1e-12
# Beyond these, products and quotients of costs would leave the range of floats.
MIN_COST_S, MAX_VALUE = 1e-30, 1e30


def as_floats(name: str, value: ArrayLike, *, least: float = 0.0, above: bool = False) -> Floats:
    """`value` as finite floats, none below `least`, nor equal to it if `above`."""
    found = _array(name, value)
    floats = found.astype(np.float64)
    refuse(name, found, ~np.isfinite(floats), "a finite number")
    refuse(name, found, floats > MAX_VALUE, f"at most {MAX_VALUE:g}")
    wrong = floats <= least if above else floats < least
    refuse(name, found, wrong, f"{'more than' if above else 'at least'} {least:g}")
    return floats


def as_counts(name: str, value: ArrayLike, *, least: int = 0) -> Ints:
    """`value` as whole numbers, none below `least`."""
    found = _array(name, value)
    if found.dtype.kind == "f":
        refuse(name, found, ~np.isfinite(found), "a finite number")
        refuse(name, found, found != np.floor(found), "a whole number")
    refuse(name, found, np.abs(found) > MAX_COUNT, f"at most {MAX_COUNT}")
    refuse(name, found, found < least, f"at least {least}")
    return found.astype(np.int64)


def refuse(name: str, found: NDArray[Any], wrong: NDArray[np.bool_], expected: str) -> None:
    """`SettingError` that names the first of the wrong ones, and says how many there are."""
    if np.any(wrong):
        place = tuple(int(i) for i in np.argwhere(np.atleast_1d(wrong))[0])
        where = f"[{', '.join(map(str, place))}]" if found.ndim else ""
        count = int(np.count_nonzero(wrong))
        more = f" (and {count - 1} more like it)" if count > 1 else ""
        raise SettingError(
            f"{name}{where} is {np.atleast_1d(found)[place]}{more}; expected {expected}"
        )


def broadcast_to(
    shape: tuple[int, ...], arrays: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Each array as a read-only one of the given shape; scalars and missing axes are repeated."""
    stretched = {}
    for name, array in arrays.items():
        try:
            # A copy, so that nobody changes a problem through an array of their own.
            stretched[name] = np.broadcast_to(array, shape).copy()
        except ValueError:
            message = f"{name} has shape {array.shape}; expected {shape}, or one number for all"
            raise SettingError(message) from None
        stretched[name].setflags(write=False)
    return stretched


def common_shape(arrays: dict[str, NDArray[Any]], axes: int) -> tuple[int, ...]:
    """The shape that all arrays can take, with that many axes; the last one counts learners."""
    try:
        shape = np.broadcast_shapes((1,) * axes, *(array.shape for array in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise SettingError(f"shapes differ: {shapes}; learners come last") from None
    if len(shape) != axes:
        raise SettingError(f"{', '.join(arrays)} take at most {axes} axes, but {len(shape)} came")
    if 0 in shape:
        raise SettingError(f"{', '.join(arrays)} are empty; at least one learner is needed")
    return shape


def as_scalar(name: str, array: NDArray[Any]) -> Any:
    """The one number that `array` holds."""
    if array.ndim:
        raise SettingError(f"{name} is one number for all learners, but has shape {array.shape}")
    return array.item()


def _array(name: str, value: ArrayLike) -> NDArray[Any]:
    try:
        found = np.asarray(value)
    except ValueError:
        raise SettingError(f"{name} has rows of unequal length") from None
    if found.dtype.kind not in "iuf":
        raise SettingError(f"{name} must be a number or an array of numbers, not {value!r:.80}")
    return found
