"""Aggregation by a function of the user, and errors that name what is wrong with its result."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from melisma.errors import DataError, SettingError
from melisma.learning.own_aggregation import OwnAggregation, UpdateStack, find_aggregation
from melisma.learning.parameters import Layout

PRESENT: dict[str, Any] = {"w": np.zeros((2, 2), np.float32), "count": np.array([7])}
UPDATES: dict[str, Any] = {"w": np.arange(12, dtype=np.float32).reshape(3, 2, 2)}
WEIGHTS = np.array([1.0, 2.0, 3.0])


def median(updates: Any, weights: Any) -> Any:
    assert weights.size == 3
    return {name: np.median(array, axis=0) for name, array in updates.items()}


def test_the_result_replaces_floating_point_arrays_and_others_stay() -> None:
    new = OwnAggregation("m:median", median)(UPDATES, WEIGHTS, PRESENT)
    assert new["w"].tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert new["w"].dtype == np.float32
    assert new["count"].tolist() == [7]


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (None, "returned a NoneType; expected arrays by name"),
        ({}, "did not return 'w'"),
        ({"w": np.zeros((2, 2)), "v": 1}, "returned 'v'; expected w"),
        ({"w": np.zeros(4)}, r"returned w with shape \[4\]; expected \[2, 2\]"),
        ({"w": np.full((2, 2), np.nan)}, "returned w with numbers that are not finite"),
        ({"w": "many"}, "returned w as str, not numbers"),
    ],
)
def test_a_wrong_result_is_named(result: Any, problem: str) -> None:
    with pytest.raises(DataError, match=f"aggregation m:f {problem}"):
        OwnAggregation("m:f", lambda _updates, _weights: result)(UPDATES, WEIGHTS, PRESENT)


def test_an_error_of_the_function_is_described() -> None:
    def fail(updates: Any, weights: Any) -> Any:
        raise ArithmeticError("no idea")

    with pytest.raises(DataError, match=r"aggregation m:f: ArithmeticError: no idea"):
        OwnAggregation("m:f", fail)(UPDATES, WEIGHTS, PRESENT)


def test_an_unknown_aggregation_is_an_error_before_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "robust.py").write_text("number = 3\n\ndef median(updates, weights): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_aggregation("mean") is None
    assert find_aggregation("robust:median") is not None
    for name, problem in {
        "medain": "aggregation is 'medain'; did you mean median",
        "robust:medain": "has no medain; did you mean median",
        "robust:number": "is a int; expected something that can be called",
    }.items():
        with pytest.raises(SettingError, match=problem):
            find_aggregation(name)


def test_late_and_scaled_updates_are_moved_to_the_present_parameters() -> None:
    present, start = {"w": np.full(2, 10.0)}, {"w": np.full(2, 4.0)}
    stack = UpdateStack(Layout.from_arrays(present), 2)
    update = {"w": np.full((1, 2), 5.0)}
    stack.set(slice(0, 1), update, present, present)
    stack.set(slice(1, 2), update, start, present)
    scaled = stack.take_scaled(np.array([1, 0]), present, np.array([0.5, 1.0]))
    assert scaled["w"].tolist() == [[10.5, 10.5], [5.0, 5.0]]
