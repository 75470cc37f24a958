from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.fleet.shared_link import SharedLink, fair_level
from tests.simulation.scenarios import LEARNERS, make_fleet, make_task


@given(
    rates=st.lists(st.floats(1.0, 1e6), min_size=1, max_size=20),
    capacity=st.floats(1.0, 1e7),
)
def test_shares_are_max_min_fair(rates: list[float], capacity: float) -> None:
    own = np.array(rates)
    level = fair_level(own, capacity)
    shares = np.minimum(own, level)
    assert shares.sum() <= capacity * (1 + 1e-9)
    if own.sum() > capacity:
        # The whole link is used, and only learners above the level get less than their own rate.
        assert shares.sum() == pytest.approx(capacity)
    else:
        assert level == inf


def test_slow_learners_keep_their_rate_and_the_others_share_the_rest() -> None:
    assert fair_level(np.array([1.0, 10.0, 10.0]), 11.0) == 5.0
    assert fair_level(np.array([4.0, 4.0]), 8.0) == inf
    assert fair_level(np.zeros(0), 1.0) == inf
    assert not SharedLink().is_limited
    assert SharedLink(downlink_bps=1e6).is_limited


def test_the_costs_of_a_fleet_follow_from_the_shares() -> None:
    own, shared = (make_fleet(orchestrator=link) for link in ({}, {"uplink_bps": 3e6}))
    task = make_task()
    assert shared.shared_rates_bps[0].tolist() == [1e6] * 3
    assert shared.shared_rates_bps[1].tolist() == own.uplink_bps.tolist()
    assert np.all(shared.ship_s(task) > own.ship_s(task))
    bits = 8 * task.shard_bytes
    assert shared.ship_s(task) == pytest.approx(bits / 1e6 + shared.latency_s)
    assert np.all(shared.state_costs(task).ship_s[:, 0] == shared.ship_s(task))


def test_a_rate_without_effect_is_an_error() -> None:
    rates = {"bandwidth_bps": 1e6, "uplink_bps": 1e6, "downlink_bps": 1e6}
    with pytest.raises(ValueError, match="bandwidth_bps has no effect beside"):
        make_fleet(LEARNERS, orchestrator=rates)
