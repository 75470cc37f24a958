"""Radio rates from distance: path loss, Shannon's bound, and its mean over Rayleigh fading.

There are two path losses, each from the paper that uses it: `attenuation` is Mohammad and
Sorour's 7 + 2.1 * log10(distance in m) dB, as printed; `urban` is that of Ren, Yu and Ding,
128.1 + 37.6 * log10(distance in km) dB. The noise power is N0 * W over the bandwidth W, so the
rate is W * log2(1 + P * h / (N0 * W)).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from melisma.errors import SettingError, suggest
from melisma.fleet.array_types import Floats

PATH_LOSS_DB: dict[str, Callable[[Floats], Floats]] = {
    "attenuation": lambda distance_m: 7.0 + 2.1 * np.log10(distance_m),
    "urban": lambda distance_m: 128.1 + 37.6 * np.log10(distance_m / 1000.0),
}
EULER = 0.57721566490153286061
# Up to this argument the series of E1 converges faster, above it the continued fraction.
SERIES_LIMIT = 1.5
SERIES_TERMS, FRACTION_TERMS = 30, 120


@dataclass(frozen=True)
class Channel:
    """A link: its bandwidth, the sender's power, the noise density and the path loss."""

    bandwidth_hz: float
    power_dbm: float
    noise_dbm_per_hz: float = -174.0
    path_loss: str = "urban"

    def __post_init__(self) -> None:
        _as_floats("bandwidth_hz", self.bandwidth_hz, above=0.0)
        _as_floats("power_dbm", self.power_dbm)
        _as_floats("noise_dbm_per_hz", self.noise_dbm_per_hz)
        if self.path_loss not in PATH_LOSS_DB:
            expected = suggest(self.path_loss, PATH_LOSS_DB)
            raise SettingError(f"path_loss is {self.path_loss!r}; {expected}")

    def snr(self, distance_m: ArrayLike) -> Floats:
        """Return the mean signal-to-noise ratio, linear (not in dB)."""
        distances_m = _as_floats("distance_m", distance_m, above=0.0)
        received_dbm = self.power_dbm - PATH_LOSS_DB[self.path_loss](distances_m)
        return watts(received_dbm) / (watts(self.noise_dbm_per_hz) * self.bandwidth_hz)

    def rate_bps(self, distance_m: ArrayLike) -> Floats:
        """Return bits per second without fading."""
        return self.bandwidth_hz * (np.log1p(self.snr(distance_m)) / math.log(2.0))

    def mean_rate_bps(self, distance_m: ArrayLike) -> Floats:
        """Return mean bits per second over Rayleigh fading (Eq. 5 and 6 of Ren, Yu and Ding)."""
        return self.bandwidth_hz * rayleigh_bits(self.snr(distance_m))


def watts(dbm: ArrayLike) -> Floats:
    """Convert power from dBm to watts."""
    return np.asarray(10.0 ** ((_as_floats("dbm", dbm) - 30.0) / 10.0))


def rayleigh_bits(snr: ArrayLike) -> Floats:
    """Return the mean of log2(1 + snr * x), x ~ Exp(1): exp(1 / snr) * E1(1 / snr) / ln 2."""
    ratio = _as_floats("snr", snr, above=0.0)
    x = np.maximum(1.0 / np.minimum(ratio, 1e300), 1e-300)
    small = x <= SERIES_LIMIT
    scaled = np.where(
        small,
        _exp_e1_series(np.where(small, x, 1.0)),
        _exp_e1_fraction(np.where(small, 1e3, x)),
    )
    return np.asarray(scaled / math.log(2.0))


def random_distances_m(devices: int, radius_m: float, rng: np.random.Generator) -> Floats:
    """Draw distances from the centre for devices spread uniformly over a disc."""
    _as_floats("devices", devices, above=0.0)
    _as_floats("radius_m", radius_m, above=0.0)
    # 1 - u is never 0, so that the path loss is finite.
    return np.asarray(radius_m * np.sqrt(1.0 - rng.random(devices)))


def _exp_e1_series(x: Floats) -> Floats:
    """Return exp(x) * E1(x) by its series for small x.

    exp(x) * E1(x) = exp(x) * (-euler - ln x + x - x^2 / (2 * 2!) + x^3 / (3 * 3!) - ...).
    """
    term, total = np.ones_like(x), np.zeros_like(x)
    for n in range(1, SERIES_TERMS):
        term = term * (-x / n)
        total = total - term / n
    return np.asarray(np.exp(x) * (total - EULER - np.log(x)))


def _exp_e1_fraction(x: Floats) -> Floats:
    """Return exp(x) * E1(x) by its continued fraction for large x, from the last term.

    exp(x) * E1(x) = 1 / (x + 1 - 1 / (x + 3 - 4 / (x + 5 - 9 / ...))).
    """
    tail = x + 2.0 * FRACTION_TERMS + 1.0
    for n in range(FRACTION_TERMS, 0, -1):
        tail = x + 2.0 * n - 1.0 - n * n / tail
    return np.asarray(1.0 / tail)


def _as_floats(name: str, value: ArrayLike, above: float = -math.inf) -> Floats:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise SettingError(f"{name} must be a number or an array of numbers, not {value!r:.80}")
    floats = array.astype(np.float64)
    if not np.all(np.isfinite(floats) & (floats > above)):
        expected = "a finite number" + (f" above {above:g}" if math.isfinite(above) else "")
        raise SettingError(f"{name} is {value!r:.80}; expected {expected}")
    return floats
