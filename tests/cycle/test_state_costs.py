"""What a learner reports is a mean of its costs in the states."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle.learner import CostHistory
from melisma.cycle.state_costs import mean_history, report_weights

PROBABILITY = np.array([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]])
ONE, TWO = np.array([0, 1]), np.array([2, 0])


def history(seconds: float) -> CostHistory:
    return CostHistory.from_benchmark(
        train_s=seconds, ship_s=2 * seconds, down_s=seconds, up_s=0.0, rest_s=seconds / 4
    )


def test_weights_are_the_probabilities_or_select_one_state() -> None:
    expected = report_weights("expected", PROBABILITY, ONE, TWO)
    assert expected.tolist() == PROBABILITY.tolist()
    assert report_weights("measured", PROBABILITY, ONE, TWO).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert report_weights("present", PROBABILITY, ONE, TWO).tolist() == [[0, 0, 1], [1, 0, 0]]


@given(st.lists(st.floats(0.001, 1e6), min_size=3, max_size=3))
def test_expected_costs_are_the_sum_of_costs_times_probabilities(seconds: list[float]) -> None:
    costs = [history(each) for each in seconds]
    expected = mean_history(costs, PROBABILITY).costs()
    tables = np.stack([each.costs()[..., None] for each in costs])
    for part in (0, 1):
        assert expected[:, part] == pytest.approx(
            np.einsum("kcl,lk->cl", tables[:, :, part], PROBABILITY)
        )


@given(st.lists(st.floats(0.001, 1e6), min_size=3, max_size=3), st.integers(0, 2))
def test_costs_of_one_state_are_reported_exactly(seconds: list[float], state: int) -> None:
    costs = [history(each) for each in seconds]
    costs[1] = costs[1].after(train_s=3.0, down_s=0.5)
    (one,) = mean_history(costs, np.eye(3)[[state]]).costs().T
    assert one.T.tolist() == costs[state].costs().tolist()


def test_a_state_that_was_hardly_measured_makes_the_mean_worth_less() -> None:
    known = history(1.0)
    for _ in range(3):
        known = known.after(train_s=1.0)
    mean = mean_history([known, history(1.0)], np.array([[0.5, 0.5]])).train_s
    assert history(1.0).train_s.count < mean.count[0] < known.train_s.count
