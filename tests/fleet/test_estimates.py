import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import lognorm

from melisma.errors import SettingError
from melisma.fleet.estimates import Estimate, Estimates

SHARES = st.floats(0.001, 0.999)


def estimate(mean: Any, spread: Any) -> Estimate:
    return Estimate(np.asarray(mean, dtype=np.float64), np.asarray(spread, dtype=np.float64))


@given(mean=st.floats(1e-6, 1e6), relative=st.floats(0.001, 20.0), share=SHARES)
def test_a_quantile_is_that_of_the_log_normal_with_this_mean_and_spread(
    mean: float, relative: float, share: float
) -> None:
    sigma = math.sqrt(math.log1p(relative**2))
    law = lognorm(s=sigma, scale=mean * math.exp(-(sigma**2) / 2))
    assert law.mean() == pytest.approx(mean)
    assert law.std() == pytest.approx(mean * relative)
    found = float(estimate(mean, mean * relative).quantile(share))
    assert found == pytest.approx(law.ppf(share), rel=1e-6)


@given(mean=st.floats(0, 1e9), share=SHARES)
def test_without_spread_every_quantile_is_the_mean_to_the_last_bit(
    mean: float, share: float
) -> None:
    assert estimate([mean, 0.0], 0.0).quantile(share).tolist() == [mean, 0.0]


@given(mean=st.floats(0.01, 100), spread=st.floats(0, 100), shares=st.tuples(SHARES, SHARES))
def test_more_caution_never_gives_less(
    mean: float, spread: float, shares: tuple[float, float]
) -> None:
    known = estimate(mean, spread)
    assert known.quantile(min(shares)) <= known.quantile(max(shares))


@pytest.mark.parametrize("share", [0, 1, -0.5, 1.5, math.nan, math.inf])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(SettingError, match=r"caution is .*; expected more than 0 and less than 1"):
        estimate(1, 1).quantile(share)


def test_measurements_of_several_learners_are_counted_apart() -> None:
    known = Estimate.of([[1.0, 5.0], [2.0, 5.0], [6.0, 5.0]])
    assert known.mean.tolist() == [3.0, 5.0]
    # The sample's variance is (4 + 1 + 9) / 2; that of the next one is a third larger.
    assert known.spread.tolist() == pytest.approx([math.sqrt(7 * 4 / 3), 0.0])


def test_one_measurement_has_no_spread() -> None:
    known = Estimate.of([0.25])
    assert known.mean == 0.25
    assert known.quantile(0.99) == 0.25


def test_caution_holds_for_the_next_measurement() -> None:
    rng = np.random.default_rng(5)
    drawn = rng.lognormal(0.0, 0.4, size=(40, 20_000))
    held = drawn[-1] <= Estimate.of(drawn[:-1]).quantile(0.9)
    assert held.mean() == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(
    "wrong", [[], 3.0, [1.0, math.nan], [math.inf], [-1.0, 1.0], np.zeros((0, 3))]
)
def test_what_is_no_measurement_is_refused(wrong: Any) -> None:
    with pytest.raises(SettingError, match="at least one measurement, each a finite number"):
        Estimate.of(wrong)


def test_the_three_costs_keep_their_names() -> None:
    costs = Estimates(estimate([1.0], [1.0]), estimate([2.0], [0.0]), estimate([3.0], [0.0]))
    assert {name: each.tolist() for name, each in costs.mean().items()} == {
        "train_s": [1.0],
        "ship_s": [2.0],
        "fixed_s": [3.0],
    }
    cautious = costs.quantile(0.9)
    assert list(cautious) == ["train_s", "ship_s", "fixed_s"]
    assert cautious["train_s"][0] == pytest.approx(lognorm.ppf(0.9, s=math.log(2) ** 0.5) / 2**0.5)
    assert cautious["ship_s"].tolist() == [2.0]
