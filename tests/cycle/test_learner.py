"""Decisions of a learner: its costs follow the cost model and its measurements."""

from math import nan

import numpy as np
import pytest

from melisma.cycle.learner import CostHistory
from melisma.fleet.estimates import Estimate


def cost_history(**estimates: Estimate) -> CostHistory:
    default = Estimate(1.0, 0.1, 8)
    parts = dict.fromkeys(("train_s", "ship_s", "down_s", "up_s", "rest_s"), default)
    return CostHistory(**parts | estimates)


def test_the_three_costs_are_those_of_the_cost_model() -> None:
    costs = cost_history(down_s=Estimate(2.0, 0.3, 4), up_s=Estimate(3.0, 0.4, 6)).estimates
    assert float(costs.fixed_s.mean) == 6.0
    assert float(costs.fixed_s.spread) == pytest.approx(np.sqrt(0.09 + 0.16 + 0.01))
    assert float(costs.fixed_s.count) == 4
    assert cost_history().costs().shape == (3, 3)


def test_estimates_follow_a_device_that_slows_down() -> None:
    history, quantiles = cost_history(), []
    for _ in range(20):
        history = history.after(train_s=4.0)
        quantiles.append(float(history.train_s.quantile(0.9)))
    assert quantiles[0] > 1.5
    assert float(history.train_s.mean) == pytest.approx(4.0, rel=0.1)
    assert float(history.ship_s.mean) == 1.0


def test_a_cost_that_was_not_measured_does_not_change() -> None:
    before = cost_history()
    after = before.after(ship_s=nan, train_s=1.5)
    assert after.costs()[1].tolist() == before.costs()[1].tolist()
    assert float(after.train_s.mean) > 1.0
