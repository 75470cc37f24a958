"""Normalisation by local steps, as in FedNova."""

import numpy as np
import pytest

from melisma.cycle.learner import count_steps, count_visits
from melisma.learning.step_normalization import normalize_changes, step_factors
from melisma.learning.update_guard import UpdateChanges, UpdateGuard


def test_the_mean_change_is_that_of_the_paper() -> None:
    """tau_eff * sum(p_i * change_i / tau_i), with p_i the share of the weights."""
    weights, steps = np.array([1.0, 3.0, 4.0]), np.array([10, 2, 5])
    changes = np.array([7.0, -1.0, 2.0])
    shares = weights / weights.sum()
    expected = (shares @ steps) * (shares @ (changes / steps))
    assert shares @ (step_factors(weights, steps) * changes) == pytest.approx(expected)


def test_equal_steps_and_no_steps_change_nothing() -> None:
    weights = np.array([1.0, 3.0])
    assert step_factors(weights, np.array([4, 4])).tolist() == [1.0, 1.0]
    assert step_factors(weights, np.empty(0, np.int64)).tolist() == [1.0, 1.0]


def test_fewer_reported_visits_do_not_make_a_large_change_count() -> None:
    """One of six learners reports one step; its change counts 20 times, and the guard sees that."""
    changes = UpdateChanges(np.full(6, 2.0), np.array([640] * 5 + [32]))
    steps = np.array([20] * 5 + [1])
    weights = np.ones(6)
    factors = step_factors(weights, steps)
    scales = UpdateGuard("clip").scales(normalize_changes(changes, weights, factors), norm=1.0)
    assert scales[:5].tolist() == [1.0] * 5
    assert factors[5] * scales[5] == pytest.approx(4 * factors[0])


@pytest.mark.parametrize("batch", [1, 7, 32])
def test_steps_are_the_batches_of_the_visits(batch: int) -> None:
    samples = np.array([1, 6, 31, 32, 33, 100])
    for batches in range(12):
        visits = count_visits(np.full(samples.size, batches), samples, batch)
        assert count_steps(visits, samples, batch).tolist() == [batches] * samples.size
