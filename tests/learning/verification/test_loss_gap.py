"""The first filter: its statistic, and its cost."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from melisma.learning.verification.loss_gap import (
    COST_FRACTION,
    MAX_SAMPLES,
    MIN_SAMPLES,
    filter_visits,
    sample_count,
    welch_t,
)


@given(st.integers(0, 10**7))
def test_the_filter_costs_at_most_its_part_of_the_training(visits: int) -> None:
    count = sample_count(visits)
    assert count == 0 or MIN_SAMPLES <= count <= MAX_SAMPLES
    assert filter_visits(count) <= COST_FRACTION * visits


def test_the_statistic_of_equal_falls_is_about_normal() -> None:
    rng = np.random.default_rng(1)
    found = [welch_t(rng.normal(0.3, 0.2, 16), rng.normal(0.3, 0.5, 16)) for _ in range(2000)]
    assert abs(np.mean(found)) < 0.1
    assert 0.9 < np.std(found) < 1.2


def test_a_larger_fall_on_given_shards_is_positive() -> None:
    rng = np.random.default_rng(1)
    assert welch_t(rng.normal(0.6, 0.1, 16), rng.normal(0.3, 0.1, 16)) > 4


def test_falls_that_are_not_finite_give_no_statistic() -> None:
    assert np.isnan(welch_t(np.array([np.nan, 1.0]), np.array([1.0, 2.0])))
    assert welch_t(np.zeros(4), np.zeros(4)) == 0.0
