"""Decisions of a learner: its costs follow the cost model and its measurements."""

from math import inf, nan
from typing import Any

import numpy as np
import pytest

from melisma.cycle.learner import (
    MAX_SILENCE_S,
    MIN_SILENCE_S,
    CostHistory,
    lead_s,
    request_delay_s,
    shard_bound,
    shards_to_release,
    shards_to_request,
    silence_limit_s,
)
from melisma.fleet.estimates import Estimate
from melisma.fleet.task import Task
from tests.simulation.scenarios import make_task

MEASURED: dict[str, Any] = {
    "train_s": 0.2,
    "ship_s": 0.1,
    "down_s": 0.02,
    "up_s": 0.05,
    "rest_s": 0.01,
}
CYCLE = {"train_s": 0.2, "ship_s": 0.1, "down_s": 0.05, "up_s": 0.05, "rest_s": 0.01}


def cost_history(**estimates: Estimate) -> CostHistory:
    default = Estimate(1.0, 0.1, 8)
    names = ("train_s", "ship_s", "down_s", "up_s", "rest_s", "first_ship_s")
    return CostHistory(**dict.fromkeys(names, default) | estimates)


def task(**settings: Any) -> Task:
    return make_task(deadline_s=6.0, passes=1, caution=0.9, **settings)


def bound(history: CostHistory, held: int = 0) -> int:
    return int(shard_bound(history, task(), 6.0, held))


def test_the_three_costs_are_those_of_the_cost_model() -> None:
    costs = cost_history(down_s=Estimate(2.0, 0.3, 4), up_s=Estimate(3.0, 0.4, 6)).estimates
    assert float(costs.fixed_s.mean) == 6.0
    assert float(costs.fixed_s.spread) == pytest.approx(np.sqrt(0.09 + 0.16 + 0.01))
    assert float(costs.fixed_s.variance) == pytest.approx(
        0.09 * 5 / 4 + 0.16 * 7 / 6 + 0.01 * 9 / 8
    )
    assert cost_history().costs().shape == (3, 3)


def test_estimates_follow_a_device_that_slows_down() -> None:
    history, quantiles = cost_history(), []
    for _ in range(3):
        history = history.after(train_s=4.0)
        quantiles.append(float(history.train_s.quantile(0.9)))
    assert quantiles[0] > 1.2
    assert all(4.0 <= quantile <= 5.2 for quantile in quantiles[1:])
    assert float(history.ship_s.mean) == 1.0


def test_a_cost_that_was_not_measured_does_not_change() -> None:
    before = cost_history()
    after = before.after(ship_s=nan, train_s=1.1)
    assert after.costs()[1].tolist() == before.costs()[1].tolist()
    assert float(after.train_s.mean) > 1.0


def test_the_first_upload_replaces_the_guess_of_the_benchmark() -> None:
    history = CostHistory.from_benchmark(**MEASURED)
    assert float(history.up_s.mean) == 0.05
    assert float(history.after(up_s=2.0).up_s.mean) == 2.0


def test_a_fetch_that_took_20_times_as_long_is_forgotten_after_two_cycles() -> None:
    history = CostHistory.from_benchmark(**MEASURED).after(**CYCLE).after(**CYCLE)
    usual = bound(history)
    history = history.after(**CYCLE | {"ship_s": 2.0})
    assert bound(history) >= usual * 0.75
    for _ in range(2):
        history = history.after(**CYCLE)
    assert bound(history) >= usual * 0.95


def test_a_wrong_cost_of_fetching_fades_while_all_shards_are_cached() -> None:
    history = CostHistory.from_benchmark(**MEASURED).after(ship_s=0.1).after(ship_s=4.0)
    history = history.after(ship_s=4.0)
    assert bound(history, held=3) <= 4
    faster = cost_history(ship_s=Estimate(0.1, 0.01, 4), first_ship_s=Estimate(0.5, 0.05, 4))
    for _ in range(5):
        history, faster = history.after(ship_s=nan), faster.after(ship_s=nan)
    assert float(history.ship_s.mean) == pytest.approx(0.1, rel=0.15)
    assert float(faster.ship_s.mean) == pytest.approx(0.1)


def test_the_bound_follows_a_device_slowed_to_a_third_after_two_cycles() -> None:
    history = CostHistory.from_benchmark(**MEASURED)
    for _ in range(4):
        history = history.after(**CYCLE)
    for _ in range(2):
        history = history.after(**CYCLE | {"train_s": 0.6})
    assert 6 <= bound(history) <= (6.0 - 0.11) / 0.7


def test_a_repeated_benchmark_is_corrected_by_the_bias_of_those_before() -> None:
    history = CostHistory.from_benchmark(**MEASURED)
    for _ in range(3):
        # A cycle takes 1.3 times as long as the benchmark says; then the learner measures again.
        history = history.after(**CYCLE | {"train_s": 1.3 * 0.2}).after(**CYCLE | {"train_s": 0.26})
        history = CostHistory.from_benchmark(**MEASURED, train_bias=history.train_bias)
    assert float(history.train_s.mean) == pytest.approx(0.26, rel=0.08)


def test_one_cycle_on_a_busy_device_hardly_changes_the_bias_of_benchmarks() -> None:
    history = CostHistory.from_benchmark(**MEASURED).after(**CYCLE | {"train_s": 2.0})
    again = CostHistory.from_benchmark(**MEASURED, train_bias=history.train_bias)
    assert float(again.train_s.mean) <= 0.2 * 1.3
    settled = CostHistory.from_benchmark(**MEASURED, train_bias=again.after(**CYCLE).train_bias)
    assert float(settled.train_s.mean) == pytest.approx(0.2, rel=0.05)


def test_only_the_first_cycle_after_a_benchmark_shows_its_bias() -> None:
    first = CostHistory.from_benchmark(**MEASURED).after(**CYCLE)
    assert first.after(**CYCLE | {"train_s": 0.3}).train_bias is first.train_bias


def test_with_overlap_a_learner_asks_for_more() -> None:
    history = CostHistory.from_benchmark(**MEASURED)
    assert shard_bound(history, task(overlap=True), 6.0, 0) > bound(history)


def test_as_many_shards_are_requested_as_fill_the_spare_time() -> None:
    assert lead_s(0.2, 10.0) == pytest.approx(0.7)
    left_s = np.array([4.0, 4.0, 1.4, 0.3, 0.0, -1.0])
    train_s = np.array([1.0, 0.5, 0.5, 1.0, 1.0, 1.0])
    ship_s = np.array([0.0, 1.5, 1.5, 0.1, 0.0, 0.1])
    # The second link is slower than training; over the third no shard would arrive in time.
    wanted = shards_to_request(left_s, 0.0, 0.0, train_s, ship_s)
    assert wanted.tolist() == [4, 2, 0, 1, 0, 0]
    assert shards_to_request(4.0, 3.5, 0.0, 1.0, 0.1) == 1


def test_no_shards_are_requested_while_the_link_is_busy_until_the_end() -> None:
    fetch_s = np.array([0.0, 2.0, 8.9, 9.0, 20.0])
    wanted = shards_to_request(10.0, 0.1, fetch_s, 0.1, 1.0)
    assert wanted.tolist() == [9, 7, 1, 0, 0]
    # All of them arrive in time, so that none is released again.
    queue_s = fetch_s[:4] + wanted[:4]
    assert not shards_to_release(10.0, 0.1, queue_s, 0.1, 1.0).any()


def test_a_request_is_due_shortly_before_all_is_fetched_and_trained() -> None:
    delay_s = request_delay_s(np.array([3.0, 1.0, 0.5]), np.array([1.0, 4.0, 0.6]), 0.2, 10.0)
    assert delay_s == pytest.approx([2.3, 3.3, 0.0])


def test_shards_that_cannot_be_begun_in_time_are_released() -> None:
    seconds = np.array([2.0, 3.5, 4.0, 6.5])
    assert shards_to_release(3.0, seconds, 0.0, 1.0, 0.1).tolist() == [0, 0, 1, 3]
    assert shards_to_release(3.0, 0.0, seconds, 0.1, 1.0).tolist() == [0, 0, 1, 3]


def test_silence_is_noticed_within_a_third_of_the_predicted_time_and_within_seconds() -> None:
    limits_s = silence_limit_s(np.array([9.0, 60.0, nan, 0.1, inf]), 30.0)
    longest_s = MAX_SILENCE_S
    assert limits_s == pytest.approx([3.0, longest_s, longest_s, MIN_SILENCE_S, longest_s])
    assert silence_limit_s(nan, 9.0) == pytest.approx(3.0)
