"""Prices of shards: the price that a learner sets, and the tolerance of sums of amounts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from melisma.errors import SettingError

MAX_PRICE = 1e9
"""The highest price of a shard."""
AMOUNT_TOLERANCE = 1e-9
"""Sums of amounts are rounded: they may exceed a budget by this part of it."""


def check_prices(prices: ArrayLike, names: Sequence[str]) -> None:
    """Raise `SettingError` for a price that is negative, no number, or above `MAX_PRICE`."""
    values = np.atleast_1d(np.asarray(prices, np.float64))
    wrong = np.flatnonzero(~((values >= 0) & (values <= MAX_PRICE)))
    if wrong.size:
        first = int(wrong[0])
        raise SettingError(
            f"price of {names[first]} is {values[first]:g}; expected a number from 0 to "
            f"{MAX_PRICE:g} for a shard"
        )
