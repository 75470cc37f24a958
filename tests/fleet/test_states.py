from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melisma.errors import SettingError
from melisma.fleet.array_types import Floats
from melisma.fleet.states import StateCosts
from tests.lanes import cases


def state_costs(probability: Any, slow: Any, narrow: Any) -> StateCosts:
    """Return costs of 2 s to train, 1 s to fetch a shard and 3 s for the model, times factors."""
    train_s, ship_s = 2.0 * np.array(slow), 1.0 * np.array(narrow)
    typical_s = 4 * ship_s + train_s
    return StateCosts(np.array(probability), typical_s, train_s, ship_s, 3.0 * ship_s)


def seconds(costs: dict[str, Floats], shards: int, passes: int) -> Floats:
    return costs["fixed_s"] + shards * (costs["ship_s"] + passes * costs["train_s"])


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.floats(0.01, 0.99),
    st.integers(0, 40),
    st.integers(1, 9),
)
@settings(max_examples=cases(200))
def test_no_cycle_takes_longer_than_planned_more_often_than_caution_allows(
    seed: int, states: int, caution: float, shards: int, passes: int
) -> None:
    rng = np.random.default_rng(seed)
    costs = state_costs(
        rng.dirichlet(np.ones(states), size=6),
        rng.uniform(1, 9, (6, states)),
        rng.uniform(1, 9, (6, states)),
    )
    planned_s = seconds(costs.quantile(caution), shards, passes)
    late = np.zeros(6)
    for state in range(states):
        real_s = seconds(costs.in_states(np.full(6, state)), shards, passes)
        late += costs.probability[:, state] * (real_s > planned_s * (1 + 1e-12))
    assert np.all(late <= 1 - caution + 2e-6)


@pytest.mark.parametrize(
    ("caution", "slow"), [(0.5, 1.0), (0.69, 1.0), (0.7, 1.0), (0.71, 2.0), (0.9, 2.0), (0.91, 5.0)]
)
def test_with_states_in_the_same_order_for_all_costs_each_cost_is_at_its_quantile(
    caution: float, slow: float
) -> None:
    costs = state_costs([[0.1, 0.7, 0.2]], [[5, 1, 2]], [[3, 1, 2]]).quantile(caution)
    assert costs["train_s"].tolist() == [2 * slow]
    assert costs["ship_s"].tolist() == [{1.0: 1, 2.0: 2, 5.0: 3}[slow]]


def test_a_state_of_probability_0_does_not_affect_costs() -> None:
    costs = state_costs([[0.5, 0.5, 0.0]], [[0.1, 0.2, 1.0]], [[0.1, 0.2, 1.0]])
    assert costs.quantile(0.99)["train_s"].tolist() == [0.4]


def test_with_one_state_caution_changes_nothing() -> None:
    costs = state_costs([[1.0], [1.0]], [[1.0], [2.0]], [[1.0], [1.0]])
    for caution in (0.01, 0.99):
        assert costs.quantile(caution)["train_s"].tolist() == [2.0, 4.0]


def test_a_share_outside_0_to_1_is_an_error() -> None:
    with pytest.raises(SettingError, match="caution is 1; expected more than 0"):
        state_costs([[1.0]], [[1.0]], [[1.0]]).quantile(1.0)
