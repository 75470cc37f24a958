"""Learners that estimate the probabilities of their states approach the true ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.fleet.observed_states import ObservedStates
from melisma.fleet.states import cycle_states

GIVEN = np.array([[0.7, 0.2, 0.1], [0.5, 0.5, 0.0]])
BOTH = np.arange(2)


def test_given_probabilities_do_not_change() -> None:
    observed = ObservedStates(GIVEN, "given")
    for cycle in range(1, 20):
        observed.count(cycle, BOTH, np.array([2, 1]))
    assert observed.probability(BOTH).tolist() == GIVEN.tolist()


def test_before_the_first_cycle_all_states_of_a_learner_are_equally_likely() -> None:
    probability = ObservedStates(GIVEN, "estimated").probability(BOTH)
    assert probability == pytest.approx(np.array([[1 / 3] * 3, [1 / 2, 1 / 2, 0]]))


@given(st.lists(st.integers(0, 2), max_size=30))
def test_an_estimate_is_the_mean_under_a_uniform_prior(states: list[int]) -> None:
    observed, second = ObservedStates(np.full((3, 3), 1 / 3), "estimated"), np.array([1])
    for cycle, state in enumerate(states, 1):
        observed.count(cycle, second, np.array([state]))
    expected = [(states.count(state) + 1) / (len(states) + 3) for state in range(3)]
    assert observed.probability(second)[0] == pytest.approx(expected)
    assert not observed.counts[[0, 2]].any()


def test_a_cycle_counts_once_and_an_earlier_one_not_at_all() -> None:
    observed = ObservedStates(GIVEN, "estimated")
    for cycle, state in ((3, 0), (3, 0), (2, 1), (5, 1)):
        observed.count(cycle, np.array([0]), np.array([state]))
    assert np.array_equal(observed.counts, [[1, 1, 0], [0, 0, 0]])


def test_estimates_approach_the_probabilities_with_which_states_are_drawn() -> None:
    observed = ObservedStates(GIVEN, "estimated")
    for cycle in range(1, 4001):
        observed.count(cycle, BOTH, cycle_states(cycle, GIVEN, 7, BOTH))
    assert observed.probability(BOTH) == pytest.approx(GIVEN, abs=0.03)
