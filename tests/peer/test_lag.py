"""The maximum lag: chosen by measured times, bounded by theory."""

import math
from itertools import pairwise
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.peer.lag import (
    LARGEST_LAG,
    TOLERANCE_FACTOR,
    LagPolicy,
    iteration_tolerance,
    lag_bound,
)


def ten_i(number: int) -> int:
    return 10 * number


def iterations(number: int) -> int:
    """Return the iterations of that many rounds of 10 i."""
    return 5 * number * (number + 1)


def test_the_bound_allows_the_lag_that_the_paper_recommends() -> None:
    """d = 7 at 60,000 iterations; the last round begins after 59,950."""
    assert iterations(109) == 59_950
    assert lag_bound(109, 59_950, ten_i) == 7
    assert lag_bound(110, iterations(110), ten_i) == 6


def test_the_tolerance_is_the_root_of_t_over_its_logarithm() -> None:
    assert iteration_tolerance(60_000) == pytest.approx(
        TOLERANCE_FACTOR * sqrt(60_000 / log(60_000))
    )
    # Also at the beginning, where the logarithm is 0 or less.
    assert iteration_tolerance(0) == iteration_tolerance(1) == iteration_tolerance(2) > 0


@given(number=st.integers(1, 400), a=st.integers(1, 40), p=st.sampled_from([0.0, 0.5, 1.0, 1.5]))
def test_the_bound_is_the_largest_lag_within_the_tolerance(number: int, a: int, p: float) -> None:
    def size(i: int) -> int:
        return max(1, round(a * math.pow(i, p)))

    before = sum(size(i) for i in range(1, number + 1))

    def missing(lag: int) -> int:
        return size(number + 1) + sum(size(number - each) for each in range(lag))

    fit = [
        d
        for d in range(1, min(number, LARGEST_LAG) + 1)
        if missing(d) <= iteration_tolerance(before)
    ]
    # In the first rounds a lag of 1 is always allowed.
    expected = max(fit, default=0)
    assert lag_bound(number, before, size) == (
        expected if number > LARGEST_LAG else max(1, expected)
    )


def test_the_bound_falls_as_rounds_grow() -> None:
    bounds = [lag_bound(number, iterations(number), ten_i) for number in range(LARGEST_LAG, 2000)]
    assert bounds[0] == LARGEST_LAG
    assert all(later <= before for before, later in pairwise(bounds))
    assert bounds[-1] == 5


def lag_needed(message_s: float, rounds_s: list[float], number: int = 50) -> int:
    """Return the lag needed with steps of 1 ms and rounds of 100 steps."""
    lag = LagPolicy(None, lambda _: 100)
    at_s = 0.0
    for turn, seconds in enumerate(rounds_s, 1):
        at_s += seconds
        lag.record_round(0.1, 100)
        lag.record_update(at_s, "b", turn)
        lag.record_round_trip(2 * message_s)
    lag.max_lag(number, 100 * number)
    return lag.choices[-1].needed


def test_slower_messages_need_a_larger_lag() -> None:
    even = [0.1] * 20
    needed = [lag_needed(message_s, even) for message_s in (0.0, 0.05, 0.15, 0.25, 0.95)]
    assert needed == [1, 1, 2, 3, 10]


def test_irregular_rounds_of_a_neighbour_need_a_larger_lag() -> None:
    usual = [0.1] * 16
    needed = [lag_needed(0.0, usual + [0.1 + late_s] * 4) for late_s in (0.0, 0.15, 0.35)]
    assert needed == [1, 2, 4]
    # No lag helps against a neighbour that is always slow.
    assert lag_needed(0.0, [0.5] * 20) == 1


def test_only_consecutive_updates_measure_a_round() -> None:
    lag = LagPolicy(None, lambda _: 100)
    for at_s, number in [(0.1, 1), (0.2, 2), (9.0, 2), (9.1, 1), (9.2, 5), (9.3, 6)]:
        lag.record_update(at_s, "b", number)
    assert np.allclose(lag._neighbour_step_s["b"], [0.001, 0.001])


def test_the_chosen_lag_is_within_the_bound_and_recorded() -> None:
    lag = LagPolicy(None, ten_i)
    lag.record_round_trip(1000.0)
    for number in range(150):
        lag.record_round(0.01, 10)
        chosen = lag.max_lag(number, iterations(number))
        assert chosen == lag.max_lag(number, iterations(number))
        assert chosen == lag_bound(number, iterations(number), ten_i)
        assert lag.choices[-1].needed >= chosen
    assert [each.round_number for each in lag.choices] == [*range(150)]


def test_a_fixed_lag_is_returned_without_a_choice() -> None:
    lag = LagPolicy(3, ten_i)
    lag.record_round_trip(1000.0)
    assert lag.max_lag(500, iterations(500)) == 3
    assert lag.choices == []
