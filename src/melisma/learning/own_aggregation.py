"""Aggregation by a function on all updates, instead of the weighted mean.

The function is a robust one of `robust_aggregation`, or the user's.

It is called as ``function(updates, weights)``. `updates` has all floating-point arrays of the model
by name, each with one row for each update, in the order of learners; `weights` are those of the
mean. It returns the new arrays by name. Late updates, and changes that the guard or `normalize`
scaled, come as the parameters that they lead to from the present ones.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.run_settings import check_aggregation_name
from melisma.learning.parameters import Arrays, Layout
from melisma.learning.robust_aggregation import ROBUST_AGGREGATIONS
from melisma.user_code import describe_error, import_function

Aggregation = Callable[[dict[str, NDArray[Any]], Floats], Mapping[str, NDArray[Any]]]


def find_aggregation(name: str) -> "OwnAggregation | None":
    """Return the aggregation of a task, None for the mean; `SettingError` for any other name."""
    if name == "mean":
        return None
    check_aggregation_name(name)
    function = ROBUST_AGGREGATIONS.get(name) or import_function("aggregation", name)
    return OwnAggregation(name, function)


class OwnAggregation:
    """A function on all updates, and a check of its results."""

    def __init__(self, name: str, function: Aggregation) -> None:
        self._name, self._function = name, function

    def __call__(
        self, updates: Arrays, weights: Floats, present: Arrays
    ) -> dict[str, NDArray[Any]]:
        """Return the new parameters; arrays other than floating-point are the present ones.

        Raise `DataError` if the function fails or its result does not fit.
        """
        try:
            result = self._function(dict(updates), weights)
        except Exception as error:  # The code may be the user's.
            raise DataError(f"aggregation {self._name}: {describe_error(error)}") from error
        if not isinstance(result, Mapping):
            raise self._error(f"returned a {type(result).__name__}; expected arrays by name")
        for name in (name for name in result if name not in updates):
            raise self._error(f"returned {name!r}; expected {', '.join(updates)}")
        return {
            name: self._check(name, result.get(name), array) if name in updates else array
            for name, array in present.items()
        }

    def _check(self, name: str, value: Any, present: NDArray[Any]) -> NDArray[Any]:
        if value is None:
            raise self._error(f"did not return {name!r}")
        try:
            array = np.asarray(value, np.float64)
        except (TypeError, ValueError):
            raise self._error(f"returned {name} as {type(value).__name__}, not numbers") from None
        if array.shape != present.shape:
            shapes = f"{list(array.shape)}; expected {list(present.shape)}"
            raise self._error(f"returned {name} with shape {shapes}")
        if not np.isfinite(array).all():
            raise self._error(f"returned {name} with numbers that are not finite")
        return array.astype(present.dtype)

    def _error(self, problem: str) -> DataError:
        return DataError(f"aggregation {self._name} {problem}")


class UpdateStack:
    """Updates as rows of one array for each floating-point array of the model."""

    def __init__(self, layout: Layout, rows: int) -> None:
        self.updates = {
            field.name: np.empty((rows, *field.shape), field.dtype)
            for field in layout.fields
            if field.dtype.kind == "f"
        }

    def set(self, rows: Any, updates: Arrays, start: Arrays, present: Arrays) -> None:
        """Set rows to present + update - start; `updates` are stacked, too."""
        for name, stack in self.updates.items():
            if start is present:
                stack[rows] = updates[name]
            else:
                stack[rows] = updates[name].astype(np.float64) - start[name] + present[name]

    def take_scaled(self, rows: Ints, present: Arrays, scales: Floats) -> dict[str, NDArray[Any]]:
        """Return these rows, in their order, with each change of the present arrays scaled."""
        taken = {name: stack[rows] for name, stack in self.updates.items()}
        if (scales == 1.0).all():
            return taken
        return {name: _scale(array, present[name], scales) for name, array in taken.items()}


def _scale(updates: NDArray[Any], present: NDArray[Any], scales: Floats) -> NDArray[Any]:
    factors = scales.reshape(-1, *[1] * present.ndim)
    scaled = present + factors * (updates.astype(np.float64) - present)
    # A scale of 1 keeps an update to the last bit.
    return np.where(factors == 1.0, updates, scaled.astype(updates.dtype))
