import numpy as np
import pytest

from melisma.fleet.array_types import Floats
from melisma.fleet.files.spread import MAX_SPREAD, Distribution, draw_factors

COUNT = 400_000


def draw(relative: float, distribution: Distribution, count: int = COUNT, seed: int = 1) -> Floats:
    return draw_factors(relative, distribution, count, np.random.default_rng(seed))


@pytest.mark.parametrize("relative", [0.05, 0.2, 1 / 3])
@pytest.mark.parametrize("distribution", ["normal", "lognormal", "uniform"])
def test_factors_have_mean_1_and_the_given_deviation(
    relative: float, distribution: Distribution
) -> None:
    factors = draw(relative, distribution)
    assert factors.min() > 0
    assert factors.mean() == pytest.approx(1, abs=0.004)
    # Drawing again lowers a normal deviation by up to 1.4 %, at its maximum of 1/3.
    assert factors.std() == pytest.approx(relative, rel=0.018)


def test_each_distribution_has_its_shape() -> None:
    def shares(distribution: Distribution) -> tuple[float, float]:
        z = (draw(0.2, distribution) - 1) / 0.2
        return float(np.mean(np.abs(z) < 1)), float(np.mean(z**3))

    assert shares("normal") == pytest.approx((0.6827, 0.0), abs=0.02)
    assert shares("uniform") == pytest.approx((1 / np.sqrt(3), 0.0), abs=0.02)
    # The third moment of a log-normal distribution is 3 * deviation + deviation^3.
    assert shares("lognormal")[1] == pytest.approx(0.608, abs=0.05)


@pytest.mark.parametrize("distribution", ["normal", "lognormal", "uniform"])
def test_without_deviation_all_factors_are_1(distribution: Distribution) -> None:
    assert draw(0.0, distribution, count=5).tolist() == [1.0] * 5


@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_the_largest_deviation_allowed_stays_above_0(distribution: Distribution) -> None:
    factors = draw(MAX_SPREAD[distribution], distribution, count=2_000_000)
    assert 0 < factors.min() < 0.02
    assert 1.98 < factors.max() < 2


@pytest.mark.parametrize("distribution", ["normal", "lognormal", "uniform"])
def test_the_same_generator_gives_the_same_factors(distribution: Distribution) -> None:
    first, again = draw(0.3, distribution, 100), draw(0.3, distribution, 100)
    assert first.tolist() == again.tolist()
    assert not np.any(first == draw(0.3, distribution, 100, seed=2))
