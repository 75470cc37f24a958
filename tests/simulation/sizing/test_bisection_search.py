"""The first candidate that holds, beside a search through all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.simulation.sizing.bisection_search import FirstHolding, find_first


@given(count=st.integers(1, 300), first=st.integers(0, 310))
def test_monotone_candidates_are_searched_as_by_brute_force_but_with_fewer_calls(
    count: int, first: int
) -> None:
    calls: list[int] = []

    def holds(index: int) -> bool:
        calls.append(index)
        return index >= first

    brute = next((index for index in range(count) if index >= first), None)
    assert find_first(count, holds) == FirstHolding(brute)
    assert len(calls) == len(set(calls))
    assert len(calls) <= 3 + 2 * count.bit_length()
    if brute is not None:
        assert {brute, *range(max(brute - 1, 0), brute)} <= set(calls)


@given(pattern=st.lists(st.booleans(), min_size=1, max_size=40))
def test_of_any_candidates_the_result_holds_and_its_predecessor_fails(pattern: list[bool]) -> None:
    result = find_first(len(pattern), pattern.__getitem__)
    if result.index is None:
        assert not pattern[-1]
        return
    assert pattern[result.index]
    assert result.index == 0 or not pattern[result.index - 1]
    assert result.confirmed == all(pattern[result.index : result.index + 2])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_without_a_candidate_that_holds_there_is_no_index(count: int) -> None:
    assert find_first(count, lambda _: False) == FirstHolding(None)
