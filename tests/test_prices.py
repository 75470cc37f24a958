"""The range of prices."""

import numpy as np
import pytest

from melisma.errors import SettingError
from melisma.prices import MAX_PRICE, check_prices


def test_prices_from_zero_to_the_highest_are_accepted() -> None:
    check_prices(np.array([0.0, 1.5, MAX_PRICE]), ("a", "b", "c"))
    check_prices(0.7, ("a",))
    check_prices(np.empty(0), ())


@pytest.mark.parametrize("price", [-0.1, float("nan"), float("inf"), 1.01 * MAX_PRICE])
def test_other_prices_are_refused_with_the_name_of_the_learner(price: float) -> None:
    with pytest.raises(SettingError, match=r"price of kitchen is .*; expected a number from 0 to"):
        check_prices([1.0, price], ("hall", "kitchen"))
