"""Models in files: read and compared with the arrays of a task's model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from melisma.errors import SettingError
from melisma.learning.parameters import Arrays, Layout


def read_model(path: str | Path, layout: Layout) -> dict[str, NDArray[Any]]:
    """Read a .safetensors file; `SettingError` names the first array that differs from the model.

    The order of arrays is that of the model.
    """
    try:
        arrays: Arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        missing = isinstance(error, FileNotFoundError)
        problem = "there is no such file" if missing else f"not a .safetensors file: {error}"
        raise SettingError(
            f"cannot read the model {path}: {problem}; use a model.safetensors of an earlier run"
        ) from error
    for problem in _differences(arrays, layout):
        raise SettingError(f"{path} does not fit the model of the task: {problem}")
    return {field.name: arrays[field.name] for field in layout.fields}


def _differences(arrays: Arrays, layout: Layout) -> Iterator[str]:
    for field in layout.fields:
        array, expected = arrays.get(field.name), f"{field.dtype}{list(field.shape)}"
        if array is None:
            yield f"array {field.name} is missing; expected {expected}"
        elif array.shape != field.shape or array.dtype != field.dtype:
            yield f"array {field.name} is {array.dtype}{list(array.shape)}; expected {expected}"
    names = {field.name for field in layout.fields}
    for name in arrays:
        if name not in names:
            yield f"array {name} is not part of the model"
