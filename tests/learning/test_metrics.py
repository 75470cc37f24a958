from itertools import combinations
from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.allocation import CyclePlan
from melisma.learning import metrics

seconds = st.floats(1e-3, 1e4)
counts = st.lists(st.integers(0, 1000), min_size=1, max_size=12)


def test_truancy_is_what_a_cycle_takes_beyond_its_deadline_as_a_part_of_it() -> None:
    assert metrics.truancy([8, 10, 15], 10).tolist() == [0, 0, 0.5]
    assert metrics.truancy([112], [105]) == pytest.approx(7 / 105)
    assert isnan(metrics.truancy(nan, 10))


@given(seconds, seconds, st.floats(1.0, 10.0))
def test_truancy_does_not_depend_on_the_unit_and_grows_with_time(
    cycle: float, deadline: float, factor: float
) -> None:
    result = float(metrics.truancy(cycle, deadline))
    assert (result == 0) == (cycle <= deadline)
    scaled = metrics.truancy(cycle * factor, deadline * factor)
    assert scaled == pytest.approx(result, rel=1e-9, abs=1e-9)
    assert metrics.truancy(cycle * factor, deadline) >= result


def test_mean_truancy_and_training_time_pass_over_cycles_without_a_time() -> None:
    assert metrics.mean_truancy([5, nan, 15], 10) == 0.25
    assert metrics.training_s([5, nan, 15]) == 20


def test_a_cycle_without_a_time_did_not_end_by_its_deadline() -> None:
    assert metrics.satisfaction([5, nan, 10, 10.1], 10) == 0.5


@given(st.lists(seconds, min_size=1, max_size=20), seconds)
def test_satisfaction_is_the_share_of_cycles_that_are_not_truant(
    cycles: list[float], deadline: float
) -> None:
    share = np.mean(metrics.truancy(cycles, deadline) == 0)
    assert metrics.satisfaction(cycles, deadline) == share


@given(counts, st.data())
def test_fulfilment_and_drop_rate_sum_to_1(planned: list[int], data: st.DataObject) -> None:
    done = data.draw(
        st.lists(st.integers(0, 2000), min_size=len(planned), max_size=len(planned)), "done"
    )
    result = metrics.fulfilment(done, planned)
    if not sum(planned):
        assert isnan(result)
        return
    assert 0 <= result <= 1
    assert result + metrics.drop_rate(done, planned) == pytest.approx(1)
    assert (result == 1) == all(d >= p for d, p in zip(done, planned, strict=True))


def test_visits_beyond_the_plan_do_not_offset_those_of_another_learner() -> None:
    assert metrics.fulfilment([20, 0], [10, 10]) == 0.5
    assert metrics.drop_rate([20, 0], [10, 10]) == 0.5


def test_occupancy_is_busy_time_over_cycle_time_and_nan_where_either_is_nan() -> None:
    result = metrics.occupancy([5, nan, 10], 10)
    assert result[[0, 2]].tolist() == [0.5, 1]
    assert isnan(result[1])
    assert np.isnan(metrics.occupancy([1, 2], nan)).all()
    assert np.isnan(metrics.occupancy([1, 2], 0)).all()
    assert isnan(metrics.occupancy(3, 0))


@given(counts)
def test_staleness_includes_pairs_with_a_learner_without_updates(updates: list[int]) -> None:
    pairs = [abs(a - b) for a, b in combinations(updates, 2)]
    assert metrics.max_staleness(updates) == max(pairs, default=0)
    mean = float(np.mean(pairs)) if pairs else 0
    assert metrics.average_staleness(updates) == pytest.approx(mean)


@given(counts)
def test_staleness_of_completed_plans_equals_that_of_the_plan(updates: list[int]) -> None:
    plan = CyclePlan(1, updates)
    assert metrics.max_staleness(updates) == plan.max_staleness
    assert metrics.average_staleness(updates) == pytest.approx(plan.average_staleness)


def test_staleness_counts_fractions_of_updates_and_ignores_unknown_learners() -> None:
    assert metrics.max_staleness([2, 0.5, nan]) == 1.5
    assert metrics.average_staleness([2, 0.5, nan]) == 1.5
    assert metrics.max_staleness([2, 0.5, nan, 0]) == 2
    assert metrics.average_staleness([2, 0.5, nan, 0]) == pytest.approx((1.5 + 2 + 0.5) / 3)


def test_metrics_of_no_learners_are_nan_and_staleness_is_0() -> None:
    assert isnan(metrics.mean_truancy([], 10))
    assert isnan(metrics.satisfaction([], 10))
    assert isnan(metrics.training_s([nan]))
    assert isnan(metrics.fulfilment([], []))
    assert isnan(metrics.drop_rate([0], [0]))
    assert isnan(metrics.mean_known([nan]))
    assert metrics.occupancy([], 10).size == 0
    assert metrics.max_staleness([]) == metrics.average_staleness([3]) == 0
