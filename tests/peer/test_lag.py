"""How far neighbours may be behind, chosen by what was measured and bounded by theory."""

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


def ten(number: int) -> int:
    return 10 * number


def iterations(number: int) -> int:
    """After that many rounds of 10 i."""
    return 5 * number * (number + 1)


def test_the_bound_allows_what_the_paper_recommends() -> None:
    """7 at 60,000 with rounds of 10 i, of which the last one begins after 59,950."""
    assert iterations(109) == 59_950
    assert lag_bound(109, 59_950, ten) == 7
    assert lag_bound(110, iterations(110), ten) == 6


def test_what_is_tolerated_is_the_root_of_t_over_its_logarithm() -> None:
    assert iteration_tolerance(60_000) == pytest.approx(
        TOLERANCE_FACTOR * sqrt(60_000 / log(60_000))
    )
    # At the beginning, where the logarithm is 0 or less.
    assert iteration_tolerance(0) == iteration_tolerance(1) == iteration_tolerance(2) > 0


@given(number=st.integers(1, 400), a=st.integers(1, 40), p=st.sampled_from([0.0, 0.5, 1.0, 1.5]))
def test_the_bound_is_the_largest_lag_that_misses_no_more_than_is_tolerated(
    number: int, a: int, p: float
) -> None:
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
    # Not before there are some rounds: one is allowed then.
    expected = max(fit, default=0)
    assert lag_bound(number, before, size) == (
        expected if number > LARGEST_LAG else max(1, expected)
    )


def test_it_falls_as_rounds_grow() -> None:
    bounds = [lag_bound(number, iterations(number), ten) for number in range(LARGEST_LAG, 2000)]
    assert bounds[0] == LARGEST_LAG
    assert all(later <= before for before, later in pairwise(bounds))
    assert bounds[-1] == 5


def measured(message_s: float, theirs_s: list[float], number: int = 50) -> int:
    """The lag that is needed after that, with steps of 1 ms and rounds of 100 steps."""
    lag = LagPolicy(None, lambda _: 100)
    at_s = 0.0
    for turn, seconds in enumerate(theirs_s, 1):
        at_s += seconds
        lag.record_round(0.1, 100)
        lag.record_update(at_s, "b", turn)
        lag.record_round_trip(2 * message_s)
    lag.max_lag(number, 100 * number)
    return lag.choices[-1].needed


def test_what_is_needed_rises_with_what_messages_take() -> None:
    even = [0.1] * 20
    found = [measured(message_s, even) for message_s in (0.0, 0.05, 0.15, 0.25, 0.95)]
    assert found == [1, 1, 2, 3, 10]


def test_what_is_needed_rises_with_rounds_of_a_neighbour_that_are_longer_than_usual() -> None:
    usual = [0.1] * 16
    found = [measured(0.0, usual + [0.1 + late_s] * 4) for late_s in (0.0, 0.15, 0.35)]
    assert found == [1, 2, 4]
    # A neighbour that is always slow is no surprise: no lag helps there.
    assert measured(0.0, [0.5] * 20) == 1


def test_an_update_that_comes_late_or_twice_tells_nothing_of_rounds() -> None:
    lag = LagPolicy(None, lambda _: 100)
    for at_s, number in [(0.1, 1), (0.2, 2), (9.0, 2), (9.1, 1), (9.2, 5), (9.3, 6)]:
        lag.record_update(at_s, "b", number)
    assert np.allclose(lag._neighbour_step_s["b"], [0.001, 0.001])


def test_it_is_never_above_what_is_allowed_and_what_was_chosen_is_kept() -> None:
    lag = LagPolicy(None, ten)
    lag.record_round_trip(1000.0)
    for number in range(150):
        lag.record_round(0.01, 10)
        found = lag.max_lag(number, iterations(number))
        assert found == lag.max_lag(number, iterations(number))
        assert found == lag_bound(number, iterations(number), ten)
        assert lag.choices[-1].needed >= found
    assert [each.round_number for each in lag.choices] == [*range(150)]


def test_a_lag_that_was_said_is_not_chosen() -> None:
    lag = LagPolicy(3, ten)
    lag.record_round_trip(1000.0)
    assert lag.max_lag(500, iterations(500)) == 3
    assert lag.choices == []
