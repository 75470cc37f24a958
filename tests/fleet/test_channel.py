import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import exp1

from melisma.errors import SettingError
from melisma.fleet.channel import Channel, random_distances_m, rayleigh_bits, watts

FEEL = Channel(bandwidth_hz=10e6, power_dbm=28)
ASYNC = Channel(bandwidth_hz=5e6, power_dbm=23, path_loss="attenuation")


def test_power_in_dbm_is_power_in_watts() -> None:
    assert watts([30.0, 0.0, 23.0]).tolist() == pytest.approx([1.0, 1e-3, 0.19952623149688797])


def test_the_rate_is_shannons_at_the_papers_path_losses() -> None:
    noise_w = 10 ** (-20.4) * 5e6
    received_w = 10 ** ((23 - 30 - (7 + 2.1 * math.log10(50))) / 10)
    expected = 5e6 * math.log2(1 + received_w / noise_w)
    assert ASYNC.rate_bps(50.0) == pytest.approx(expected, rel=1e-12)
    loss_db = 128.1 + 37.6 * math.log10(0.2)
    snr = 10 ** ((28 - 30 - loss_db) / 10) / (10 ** (-20.4) * 10e6)
    assert FEEL.snr(200.0) == pytest.approx(snr, rel=1e-12)
    assert FEEL.rate_bps([200.0])[0] == pytest.approx(10e6 * math.log2(1 + snr), rel=1e-12)


def test_the_mean_over_fading_is_the_exponential_integral() -> None:
    snr = 10 ** np.linspace(-2.5, 14, 2000)
    expected = np.exp(1 / snr) * exp1(1 / snr) / math.log(2)
    assert np.abs(rayleigh_bits(snr) / expected - 1).max() < 1e-12


@pytest.mark.parametrize("snr", [1e-4, 0.02, 0.5, 0.66, 0.67, 3.0, 1e3])
def test_the_mean_over_fading_is_the_numeric_integral(snr: float) -> None:
    expected, _ = quad(
        lambda x: math.log1p(snr * x) / math.log(2) * math.exp(-x), 0, 60, epsabs=0, epsrel=1e-12
    )
    assert rayleigh_bits(snr) == pytest.approx(expected, rel=1e-9)


def test_the_mean_over_fading_is_the_mean_of_random_draws() -> None:
    rng = np.random.default_rng(1)
    for snr in (0.1, 3.0, 1e4):
        drawn = np.log2(1 + snr * rng.exponential(size=400_000))
        error = 4 * drawn.std() / math.sqrt(drawn.size)
        assert abs(drawn.mean() - float(rayleigh_bits(snr))) < error


def test_tiny_and_huge_ratios_keep_their_limits() -> None:
    assert rayleigh_bits(1e-12) == pytest.approx(1e-12 / math.log(2), rel=1e-9)
    assert rayleigh_bits(1e-290) == pytest.approx(1e-290 / math.log(2), rel=1e-9)
    euler = 0.5772156649015329
    assert rayleigh_bits(1e200) == pytest.approx((math.log(1e200) - euler) / math.log(2), rel=1e-12)


@given(st.floats(1e-9, 1e15), st.floats(1.0, 10.0))
def test_the_rate_grows_with_the_ratio_and_fading_lowers_it(snr: float, factor: float) -> None:
    assert rayleigh_bits(snr * factor) >= rayleigh_bits(snr) * (1 - 1e-12)
    assert rayleigh_bits(snr) <= math.log1p(snr) / math.log(2) * (1 + 1e-12)


@given(st.floats(1.0, 5000.0), st.floats(1.0, 3.0))
def test_the_rate_never_grows_with_distance(distance_m: float, factor: float) -> None:
    for channel in (FEEL, ASYNC):
        near, far = channel.mean_rate_bps([distance_m, distance_m * factor])
        assert far <= near * (1 + 1e-12)


def test_random_distances_are_uniform_over_the_cell() -> None:
    distances_m = random_distances_m(100_000, 200.0, np.random.default_rng(3))
    assert distances_m.min() > 0
    assert distances_m.max() <= 200
    # Uniform over the area: the square of the distance is uniform.
    inside = [float(np.mean(distances_m <= 200 * math.sqrt(part))) for part in (0.1, 0.5, 0.9)]
    assert inside == pytest.approx([0.1, 0.5, 0.9], abs=0.01)
    assert np.array_equal(distances_m, random_distances_m(100_000, 200.0, np.random.default_rng(3)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bandwidth_hz": 0}, "bandwidth_hz is 0; expected a finite number above 0"),
        ({"power_dbm": math.nan}, "power_dbm is nan; expected a finite number"),
        ({"power_dbm": "loud"}, "power_dbm must be a number"),
        ({"noise_dbm_per_hz": math.inf}, "noise_dbm_per_hz is inf"),
        ({"path_loss": "rural"}, "path_loss is 'rural'; did you mean urban"),
    ],
)
def test_an_invalid_channel_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Channel(**{"bandwidth_hz": 1e6, "power_dbm": 20} | fields)


def test_distances_and_sizes_out_of_range_are_an_error() -> None:
    with pytest.raises(SettingError, match="distance_m"):
        FEEL.rate_bps([10.0, 0.0])
    with pytest.raises(SettingError, match="radius_m"):
        random_distances_m(3, -1.0, np.random.default_rng(0))
    with pytest.raises(SettingError, match="devices"):
        random_distances_m(0, 1.0, np.random.default_rng(0))
    with pytest.raises(SettingError, match="snr"):
        rayleigh_bits(-1.0)
