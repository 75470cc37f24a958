"""The figures that are shown, and their digits."""

from math import nan

import pytest

from melisma.simulation.comparison.comparison_picture import draw_comparison
from melisma.simulation.comparison.figures import (
    format_interval,
    is_shown,
)
from melisma.simulation.comparison.interval import Interval
from melisma.simulation.comparison.scheme_runs import compare
from tests.simulation import scenarios
from tests.simulation.comparison.compared_runs import TIMING


def test_a_fleet_without_prices_has_no_column_of_cost() -> None:
    task, schemes = scenarios.make_task(), ["dab", "equal"]
    for fleet, shown in (
        (scenarios.make_fleet(), False),
        (scenarios.make_fleet(budget=1000.0), True),
        (scenarios.make_fleet([each | {"price": 2.0} for each in scenarios.LEARNERS]), True),
    ):
        result = compare(task, fleet, schemes, [0], TIMING)
        assert is_shown(result, "cost") is shown
        assert (">cost<" in draw_comparison(result).svg) is shown


@pytest.mark.parametrize(
    ("values", "unit", "message"),
    [
        ([12.0, 12.5, 13.0], "s", "12.5 ± 1.2 s"),
        ([2e6, 2e6], "B", "2 ± 0 MB"),
        ([4.0], "", "4 ± ?"),
        ([1500.0, 1600.0], "J", "1.55 ± 0.64 kJ"),
        ([0.97, 0.97], "%", "97 ± 0 %"),
        ([nan], "s", "-"),
        ([0.0, 0.0], "", "0 ± 0"),
    ],
)
def test_numbers_have_as_many_digits_as_their_interval_justifies(
    values: list[float], unit: str, message: str
) -> None:
    assert format_interval(Interval.from_values(values), unit) == message
