"""Models in files fit the model of the task, or the first array that differs is named."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from melisma.errors import SettingError
from melisma.learning.parameters import Layout
from melisma.learning.saved_model import read_model

MODEL: dict[str, Any] = {"b": np.zeros((2, 3), np.float32), "a": np.zeros(4, np.float32)}
LAYOUT = Layout.from_arrays(MODEL)


def test_arrays_are_read_in_the_order_of_the_model(tmp_path: Path) -> None:
    save_file({**MODEL, "a": np.ones(4, np.float32)}, tmp_path / "m.safetensors")
    read = read_model(tmp_path / "m.safetensors", LAYOUT)
    assert list(read) == ["b", "a"]
    assert read["a"].tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"b": None}, r"array b is missing; expected float32\[2, 3\]"),
        ({"a": np.zeros(5, np.float32)}, r"array a is float32\[5\]; expected float32\[4\]"),
        ({"a": np.zeros(4)}, r"array a is float64\[4\]; expected float32\[4\]"),
        ({"c": np.zeros(1)}, "array c is not part of the model"),
        ({"b": np.zeros(1), "a": None}, "array b is float64"),
    ],
)
def test_the_first_array_that_differs_is_named(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    arrays = {name: array for name, array in (MODEL | changes).items() if array is not None}
    save_file(arrays, tmp_path / "m.safetensors")
    with pytest.raises(SettingError, match=problem):
        read_model(tmp_path / "m.safetensors", LAYOUT)


def test_a_file_that_is_missing_or_no_model_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"gone.safetensors: there is no such file"):
        read_model(tmp_path / "gone.safetensors", LAYOUT)
    (tmp_path / "text").write_text("not a model")
    with pytest.raises(SettingError, match=r"text: not a \.safetensors file"):
        read_model(tmp_path / "text", LAYOUT)
