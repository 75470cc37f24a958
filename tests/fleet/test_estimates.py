import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from scipy.stats import t as student

from melisma.errors import SettingError
from melisma.fleet.estimates import ASSUMED_SPREAD, MEMORY_MEASUREMENTS, Estimate, Estimates
from melisma.fleet.states import StateCosts

SHARES = st.floats(0.001, 0.999)
COUNTS = st.sampled_from([1.0, 2.0, 3.0, 8.0, 100.0, math.inf])
COSTS = ("train_s", "ship_s", "fixed_s")


@given(st.floats(1e-6, 1e6), st.floats(0, 20.0), st.floats(0.5, 0.999), st.integers(2, 50))
def test_the_quantile_is_that_of_students_t_for_the_next_measurement(
    mean: float, relative: float, share: float, count: int
) -> None:
    t = student.ppf(share, count - 1) * math.sqrt(1 + 1 / count)
    quantile = Estimate(mean, mean * relative, count).quantile(share)
    assert float(quantile) == pytest.approx(mean * (1 + t * relative), rel=1e-6)


@given(st.floats(0, 1e9), SHARES, st.sampled_from([2.0, 9.0, math.inf]))
def test_without_spread_every_quantile_is_the_mean(mean: float, share: float, count: float) -> None:
    quantile = Estimate([mean, 0.0], 0.0, count).quantile(share)
    assert quantile.tolist() == pytest.approx([mean, 0.0], rel=1e-15)


@given(st.floats(0, 100), st.floats(0, 1000), st.tuples(SHARES, SHARES), COUNTS)
def test_the_quantile_grows_with_caution(
    mean: float, spread: float, shares: tuple[float, float], count: float
) -> None:
    estimate = Estimate(mean, spread, count)
    low, high = estimate.quantile(min(shares)), estimate.quantile(max(shares))
    assert 0 <= low <= high


@given(st.floats(0.01, 100), st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), st.floats(0.5, 0.999))
def test_the_quantile_grows_with_the_spread(
    mean: float, spreads: tuple[float, float], share: float
) -> None:
    less, more = (Estimate(mean, spread, 5).quantile(share) for spread in sorted(spreads))
    assert less <= more


@given(st.floats(0.01, 100), st.floats(0, 100), st.floats(0.5, 0.999), st.integers(2, 30))
def test_the_quantile_grows_with_fewer_measurements(
    mean: float, spread: float, share: float, count: int
) -> None:
    few, more = (Estimate(mean, spread, each).quantile(share) for each in (count, count + 1))
    assert few >= more * (1 - 1e-12)


@pytest.mark.parametrize("share", [0, 1, -0.5, 1.5, math.nan, math.inf])
def test_a_share_outside_0_to_1_is_an_error(share: float) -> None:
    with pytest.raises(SettingError, match=r"caution is .*; expected more than 0 and less than 1"):
        Estimate(1, 1).quantile(share)


def test_learners_are_estimated_separately() -> None:
    estimate = Estimate.from_measurements([[1.0, 5.0], [2.0, 5.0], [6.0, 5.0]])
    assert estimate.mean.tolist() == [3.0, 5.0]
    assert estimate.spread.tolist() == pytest.approx([math.sqrt(7), 0.0])
    assert estimate.count.tolist() == [3, 3]


def test_a_single_measurement_gets_the_assumed_spread() -> None:
    estimate = Estimate.from_measurements([0.25])
    assert estimate.mean == 0.25
    expected = 0.25 * (1 + norm.ppf(0.9) * ASSUMED_SPREAD * math.sqrt(2))
    assert float(estimate.quantile(0.9)) == pytest.approx(expected)


@pytest.mark.parametrize("count", [2, 3, 5, 39])
@pytest.mark.parametrize("caution", [0.5, 0.75, 0.9, 0.95])
def test_caution_holds_for_the_next_measurement(count: int, caution: float) -> None:
    rng = np.random.default_rng(5)
    drawn = np.maximum(rng.normal(1.0, 0.2, size=(count + 1, 40_000)), 0.0)
    held = drawn[-1] <= Estimate.from_measurements(drawn[:-1]).quantile(caution)
    assert held.mean() == pytest.approx(caution, abs=0.012)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 39])
def test_caution_holds_approximately_for_lognormal_times(count: int) -> None:
    rng = np.random.default_rng(6)
    drawn = rng.lognormal(0.0, 0.3, size=(count + 1, 40_000))
    held = drawn[-1] <= Estimate.from_measurements(drawn[:-1]).quantile(0.9)
    # A single measurement depends on the assumed spread.
    assert held.mean() == pytest.approx(0.9, abs=0.03 if count > 1 else 0.06)


@pytest.mark.parametrize(
    "wrong", [[], 3.0, [1.0, math.nan], [math.inf], [-1.0, 1.0], np.zeros((0, 3))]
)
def test_invalid_measurements_are_an_error(wrong: Any) -> None:
    with pytest.raises(SettingError, match="at least one measurement, each a finite number"):
        Estimate.from_measurements(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, math.nan], 0), "mean of an estimate is nan; expected a finite number of at least"),
        ((-1.0, 0), "mean of an estimate is -1"),
        ((1.0, math.inf), "spread of an estimate is inf"),
        ((1.0, 1.0, 0.5), "count of an estimate is 0.5; expected a finite number of at least 1"),
    ],
)
def test_invalid_estimates_are_an_error(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Estimate(*arguments)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=int(MEMORY_MEASUREMENTS)))
def test_observations_one_by_one_give_the_same_estimate_as_all_at_once(
    measured: list[float],
) -> None:
    estimate = Estimate.from_measurements(measured[:1])
    for value in measured[1:]:
        estimate = estimate.with_observation(value)
    at_once = Estimate.from_measurements(measured)
    assert float(estimate.mean) == pytest.approx(float(at_once.mean), abs=1e-9)
    assert float(estimate.spread) == pytest.approx(float(at_once.spread), abs=1e-6)
    assert estimate.count == at_once.count


def test_the_estimate_follows_a_device_that_slows_down() -> None:
    rng = np.random.default_rng(3)
    estimate = Estimate.from_measurements(rng.normal(1.0, 0.05, 50))
    slow = estimate.with_observation(3.0)
    # The quantile grows at once; later the mean follows and the spread shrinks again.
    assert slow.quantile(0.9) > 2.0
    for value in rng.normal(3.0, 0.15, 40):
        slow = slow.with_observation(value)
    assert float(slow.mean) == pytest.approx(3.0, rel=0.05)
    assert float(slow.quantile(0.9)) == pytest.approx(3.25, rel=0.07)


def test_caution_holds_in_every_later_cycle() -> None:
    rng = np.random.default_rng(4)
    drawn = rng.normal(1.0, 0.1, size=(60, 5_000))
    estimate, held = Estimate.from_measurements(drawn[:2]), []
    for value in drawn[2:]:
        held.append(value <= estimate.quantile(0.9))
        estimate = estimate.with_observation(value)
    assert np.mean(held) == pytest.approx(0.9, abs=0.01)


def test_a_learner_without_observation_keeps_its_estimate() -> None:
    estimate = Estimate([1.0, 2.0], [0.1, 0.2], [3, 4]).with_observation([math.nan, 3.0])
    assert (estimate.mean[0], estimate.spread[0], estimate.count[0]) == (1.0, 0.1, 3.0)
    assert (estimate.mean[1], estimate.count[1]) == (2.2, 5.0)


def estimates_of(train_s: float, count: int) -> Estimates:
    return Estimates(Estimate(train_s, 0.1, count), Estimate(0.5, 0, count), Estimate(2, 0, count))


def test_estimates_of_learners_are_concatenated_in_order() -> None:
    estimate = Estimates.concatenate(
        [estimates_of(1.0, 2), estimates_of(3.0, 5), estimates_of(2.0, 1)]
    )
    assert estimate.train_s.mean.tolist() == [1.0, 3.0, 2.0]
    assert estimate.train_s.count.tolist() == [2, 5, 1]
    alone = [
        float(estimates_of(*each).train_s.quantile(0.9)) for each in ((1.0, 2), (3.0, 5), (2.0, 1))
    ]
    assert estimate.quantile(0.9)["train_s"].tolist() == pytest.approx(alone)
    assert tuple(estimate.mean()) == tuple(estimate.quantile(0.9)) == COSTS
    assert Estimates.concatenate([estimate, estimate]).fixed_s.mean.tolist() == [2.0] * 6
    with pytest.raises(
        SettingError, match="no estimates to concatenate; expected those of at least one"
    ):
        Estimates.concatenate([])


def test_only_observed_costs_are_updated() -> None:
    estimate = Estimates.concatenate([estimates_of(1.0, 2), estimates_of(3.0, 5)])
    after = estimate.with_observations(train_s=[2.0, 3.0], fixed_s=[math.nan, 3.0])
    assert after.train_s.count.tolist() == [3, 6]
    assert after.fixed_s.count.tolist() == [2, 6]
    assert after.ship_s is estimate.ship_s


@pytest.mark.parametrize(
    ("observed", "message"),
    [
        ({"foo": [1.0, 1.0]}, "unknown cost foo; expected one of train_s, ship_s, fixed_s"),
        ({"train_s": [-1.0, 1.0]}, "observed seconds are -1; expected at least 0"),
        ({"train_s": [1.0]}, r"have shape \(1,\); expected \(2,\)"),
    ],
)
def test_invalid_observations_are_an_error(observed: dict[str, Any], message: str) -> None:
    estimate = Estimates(*(Estimate([1.0, 2.0], [0.1, 0.1], 3) for _ in range(3)))
    with pytest.raises(SettingError, match=message):
        estimate.with_observations(**observed)


@pytest.mark.parametrize("caution", [1e-9, 1e-6, 0.5])
def test_the_fastest_state_is_always_kept(caution: float) -> None:
    cost_s = np.array([[1.0, 2.0]])
    states = StateCosts(np.array([[0.7, 0.3]]), cost_s, cost_s, cost_s, cost_s)
    assert states.quantile(caution)["train_s"].tolist() == [1.0]
