"""Prices of shards: the price that a learner sets, and the tolerance of sums of amounts.

`check_price` needs no NumPy, as the light process of a device checks its price.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from melisma.errors import SettingError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

MAX_PRICE = 1e9
"""The highest price of a shard."""
AMOUNT_TOLERANCE = 1e-9
"""Sums of amounts are rounded: they may exceed a budget by this part of it."""


def check_price(price: float, name: str) -> None:
    """Raise `SettingError` for a price that is negative, no number, or above `MAX_PRICE`."""
    if not 0 <= price <= MAX_PRICE:
        raise SettingError(
            f"price of {name} is {price:g}; expected a number from 0 to {MAX_PRICE:g} for a shard"
        )


def check_prices(prices: "ArrayLike", names: Sequence[str]) -> None:
    """Raise the error of `check_price` for the first learner with a wrong price."""
    import numpy as np

    values = np.atleast_1d(np.asarray(prices, np.float64))
    wrong = np.flatnonzero(~((values >= 0) & (values <= MAX_PRICE)))
    if wrong.size:
        first = int(wrong[0])
        check_price(float(values[first]), names[first])
