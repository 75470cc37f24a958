from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.allocation.bisection import bisect_largest
from melisma.allocation.costs import MAX_UPDATES


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_the_result_is_the_last_that_reaches_the_target(size: int, target: int, start: int) -> None:
    found = bisect_largest(lambda x: size // x, target, start)
    assert found == (min(size // target, MAX_UPDATES) if size >= target else 0)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(1, 60))
def test_steps_of_any_height_are_found(falls: list[int], target: int) -> None:
    heights = sorted(falls, reverse=True)

    def count(x: int) -> int:
        return heights[x - 1] if x <= len(heights) else 0

    assert bisect_largest(count, target) == sum(height >= target for height in heights)


@pytest.mark.parametrize("count", [lambda _: 7, lambda x: 7 if x < 2**30 else 6])
def test_a_count_that_hardly_falls_takes_few_steps(count: Callable[[int], int]) -> None:
    asked: list[int] = []

    def counted(x: int) -> int:
        asked.append(x)
        return count(x)

    assert bisect_largest(counted, 7) in (MAX_UPDATES, 2**30 - 1)
    assert len(asked) < 120
