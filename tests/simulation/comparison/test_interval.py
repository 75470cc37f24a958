"""Confidence intervals over seeds."""

from math import isnan, nan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.fleet.t_distribution import t_quantile
from melisma.simulation.comparison.interval import Interval


@given(st.floats(-1e9, 1e9), st.integers(2, 12))
def test_equal_values_have_an_interval_of_width_0(value: float, count: int) -> None:
    assert Interval.from_values([value] * count) == Interval(value, 0.0, count, count)


def test_an_interval_equals_that_computed_by_hand_with_students_t() -> None:
    result = Interval.from_values([1.0, 2.0, 3.0, 4.0])
    assert result.mean == 2.5
    assert result.half_width == pytest.approx(3.182446 * sqrt(5 / 3) / 2, rel=1e-6)
    t = float(t_quantile(0.975, np.array([3.0]))[0])
    assert result.half_width == pytest.approx(t * np.std([1, 2, 3, 4], ddof=1) / 2)


def test_a_single_value_has_no_interval_and_no_values_have_no_mean() -> None:
    one, none = Interval.from_values([2.0, nan]), Interval.from_values([nan])
    assert (one.mean, one.known, one.count) == (2.0, 1, 2)
    assert isnan(one.half_width)
    assert not one.excludes_zero
    assert isnan(none.mean)
    assert not none.excludes_zero
