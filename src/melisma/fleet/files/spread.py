"""Random factors for the members of a group, above 0, with mean 1 and a given deviation.

`lognormal`: exp(s * z - s^2 / 2) with s^2 = ln(1 + deviation^2) and z standard normal. `normal`:
1 + deviation * z, drawn again if not between 0 and 2, which keeps the mean at 1. `uniform`: between
1 - sqrt(3) * deviation and 1 + sqrt(3) * deviation.
"""

from typing import Literal

import numpy as np

from melisma.fleet.array_types import Floats

Distribution = Literal["normal", "lognormal", "uniform"]
# At 1/3, 0 is three deviations away: at most 1 in 370 normal factors is drawn again, which makes
# the deviation at most 1.4 % smaller. Uniform factors reach 0 at 1 / sqrt(3) = 0.577.
MAX_SPREAD = {"normal": 1 / 3, "uniform": 0.57, "lognormal": np.inf}


def check_spread(name: str, relative: float, distribution: Distribution) -> None:
    """Raise ValueError if a relative deviation is too large to keep all factors above 0."""
    if relative > MAX_SPREAD[distribution]:
        raise ValueError(
            f"{name} is {relative:g}; expected at most {MAX_SPREAD[distribution]:.3g} with "
            f'distribution = "{distribution}"; use "lognormal" for larger ones'
        )


def draw_factors(
    relative: float, distribution: Distribution, count: int, rng: np.random.Generator
) -> Floats:
    """Draw `count` factors with mean 1 and this relative standard deviation."""
    if distribution == "uniform":
        half_width = np.sqrt(3.0) * relative
        return rng.uniform(1.0 - half_width, 1.0 + half_width, count)
    if distribution == "normal":
        limit = 1.0 / max(relative, 1e-300)
        return 1.0 + relative * _redraw_outside(limit, rng.normal(size=count), rng)
    sigma = np.sqrt(np.log1p(relative**2))
    return np.asarray(np.exp(rng.normal(0.0, 1.0, count) * sigma - sigma**2 / 2))


def _redraw_outside(limit: float, z: Floats, rng: np.random.Generator) -> Floats:
    """Draw standard normal numbers again, in place, until all are between -limit and limit."""
    while (outside := np.flatnonzero(np.abs(z) >= limit)).size:
        z[outside] = rng.normal(size=outside.size)
    return z
