"""Median and trimmed mean: a few arbitrary updates move no number beyond the others."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.learning.own_aggregation import find_aggregation
from melisma.learning.robust_aggregation import ROBUST_AGGREGATIONS, TRIM, median, trimmed_mean

every_aggregation = pytest.mark.parametrize("name", ROBUST_AGGREGATIONS)
PRESENT: dict[str, Any] = {"w": np.zeros(2, np.float32), "count": np.array([7])}


def test_the_median_is_that_of_each_number() -> None:
    rows = np.array([[0.0, 9.0], [1.0, 5.0], [5.0, 1.0]])
    assert median({"w": rows}, np.ones(3))["w"].tolist() == [1.0, 5.0]


def test_the_trimmed_mean_leaves_out_a_fifth_at_each_end() -> None:
    rows = np.array([[-1e30], [1.0], [2.0], [6.0], [1e30]])
    assert TRIM == 0.2
    assert trimmed_mean({"w": rows}, np.ones(5))["w"].tolist() == [3.0]
    # A fifth of four is less than one update.
    assert trimmed_mean({"w": rows[1:4]}, np.ones(3))["w"].tolist() == [3.0]


@every_aggregation
def test_weights_do_not_matter(name: str) -> None:
    aggregation = find_aggregation(name)
    assert aggregation is not None
    updates = {"w": np.array([[0.0, 1.0], [2.0, 4.0], [3.0, 3.0], [9.0, 0.0]], np.float32)}
    even = aggregation(updates, np.ones(4), PRESENT)
    uneven = aggregation(updates, np.array([1.0, 1e6, 1.0, 3.0]), PRESENT)
    assert even["w"].tolist() == uneven["w"].tolist()
    assert even["w"].dtype == np.float32
    assert even["count"].tolist() == [7]


@every_aggregation
@given(
    honest=st.lists(st.floats(-10, 10), min_size=5, max_size=12),
    lies=st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=12),
)
def test_a_fifth_of_dishonest_updates_stays_among_the_honest_ones(
    name: str, honest: list[float], lies: list[float]
) -> None:
    lies = lies[: (len(honest)) // 4]
    rows = np.array([*honest, *lies])[:, None]
    (result,) = ROBUST_AGGREGATIONS[name]({"w": rows}, np.ones(len(rows)))["w"]
    assert min(honest) - 1e-9 <= result <= max(honest) + 1e-9
