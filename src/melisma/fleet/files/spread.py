"""How members of a group differ: factors above 0 of mean 1 and a relative standard deviation.

`lognormal`: exp(s * z - s^2 / 2) with s^2 = ln(1 + deviation^2) and z standard normal. `normal`:
1 + deviation * z, drawn again where it is not between 0 and 2: the mean stays 1. `uniform`: alike
between 1 - sqrt(3) * deviation and 1 + sqrt(3) * deviation.
"""

from typing import Literal

import numpy as np

from melisma.fleet.array_types import Floats

Distribution = Literal["normal", "lognormal", "uniform"]
# Three deviations of a normal distribution are above 0: what is drawn again is 1 in 370 at most,
# and the deviation of the rest no more than 1.4 % smaller. A uniform one reaches 0 at 0.577.
MAX_SPREAD = {"normal": 1 / 3, "uniform": 0.57, "lognormal": np.inf}


def check_spread(name: str, relative: float, distribution: Distribution) -> None:
    """A deviation that leaves all factors above 0; `ValueError` names the figure."""
    if relative > MAX_SPREAD[distribution]:
        raise ValueError(
            f"{name} is {relative:g}; expected at most {MAX_SPREAD[distribution]:.3g} with "
            f'distribution = "{distribution}": more would go below 0; "lognormal" never does'
        )


def draw_factors(
    relative: float, distribution: Distribution, count: int, rng: np.random.Generator
) -> Floats:
    """So many factors around 1 with that relative standard deviation."""
    if distribution == "uniform":
        reach = np.sqrt(3.0) * relative
        return rng.uniform(1.0 - reach, 1.0 + reach, count)
    if distribution == "normal":
        return 1.0 + relative * _redraw_beyond(
            1.0 / max(relative, 1e-300), rng.normal(size=count), rng
        )
    sigma = np.sqrt(np.log1p(relative**2))
    return np.asarray(np.exp(rng.normal(0.0, 1.0, count) * sigma - sigma**2 / 2))


def _redraw_beyond(reach: float, z: Floats, rng: np.random.Generator) -> Floats:
    """Standard normal numbers, drawn again where they are not nearer to 0 than `reach`."""
    while (far := np.flatnonzero(np.abs(z) >= reach)).size:
        z[far] = rng.normal(size=far.size)
    return z
