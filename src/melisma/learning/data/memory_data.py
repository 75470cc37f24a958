"""Data that is given as Python objects: arrays, tensors, or the `Dataset`s of PyTorch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError, SettingError
from melisma.learning.data.datasets import DataSet, Split, to_dataset
from melisma.user_code import describe_error

IN_MEMORY = "in memory"
"""The name of such data in a task."""
EXPECTED = (
    "expected (train, test), each a pair of arrays (samples, labels) or a Dataset; without test "
    "samples, None instead of test"
)


def to_memory_data(data: Any) -> DataSet:
    """Return the samples of a pair (train, test) as arrays; `SettingError` says what is wrong."""
    if not isinstance(data, DataSet):
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise SettingError(f"data is {_describe(data)}; {EXPECTED}")
        if all(map(_is_array, data)):
            raise SettingError(f"data is one pair of arrays; {EXPECTED}")
        train = _to_split("train", data[0])
        empty = Split(train.samples[:0], train.labels[:0])
        data = DataSet(train, empty if data[1] is None else _to_split("test", data[1]))
    try:
        return to_dataset(IN_MEMORY, data)
    except DataError as error:
        raise SettingError(str(error)) from None


def _to_split(part: str, value: Any) -> Split:
    if isinstance(value, Split):
        return value
    pair = value if isinstance(value, tuple | list) else _read_dataset(part, value)
    if len(pair) != 2:
        raise SettingError(
            f"data: {part} has {len(pair)} parts; expected two, the samples and their labels"
        )
    try:
        return Split(*(_to_array(array) for array in pair))
    except (DataError, ValueError, TypeError) as error:
        raise SettingError(f"data: {part}: {error}") from None


def _read_dataset(part: str, dataset: Any) -> tuple[Any, ...]:
    """Return the samples and labels of all items of a `Dataset`."""
    if tensors := getattr(dataset, "tensors", None):
        return tuple(tensors)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__") or _is_array(dataset):
        hint = "; pass the dataset of the loader" if hasattr(dataset, "dataset") else ""
        raise SettingError(
            f"data: {part} is {_describe(dataset)}{hint}; expected a pair of arrays (samples, "
            "labels), or a Dataset with a length whose items are pairs"
        )
    try:
        items = [dataset[index] for index in range(len(dataset))]
    except Exception as error:  # The data set is the user's.
        raise SettingError(f"data: {part}: {describe_error(error)}") from error
    if not items:
        raise SettingError(f"data: {part} has no samples; expected at least one")
    if any(not isinstance(item, tuple | list) or len(item) != 2 for item in items):
        raise SettingError(
            f"data: {part}: an item is {_describe(items[0])}; expected a pair of sample and label"
        )
    try:
        samples, labels = zip(*items, strict=True)
        return np.stack([*map(_to_array, samples)]), np.stack([*map(_to_array, labels)])
    except ValueError:
        raise SettingError(
            f"data: {part}: its samples or labels differ in shape; expected one shape for all"
        ) from None


def _to_array(value: Any) -> NDArray[Any]:
    """Return a tensor of any device, or another sequence, as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _describe(value: Any) -> str:
    size = f" of {len(value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{size}"
