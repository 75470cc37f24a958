"""The cache index behaves like a set of pairs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle.cache_index import EMPTY_CACHE
from melisma.fleet.array_types import Ints

Pairs = set[tuple[int, int]]
pairs = st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)))


def columns(pairs_to_add: Pairs) -> tuple[Ints, Ints]:
    firsts, seconds = zip(*sorted(pairs_to_add), strict=True) if pairs_to_add else ((), ())
    return np.array(firsts, np.int64), np.array(seconds, np.int64)


@given(pairs, pairs, pairs)
def test_an_index_contains_exactly_the_added_pairs(
    first: Pairs, second: Pairs, sought: Pairs
) -> None:
    held = EMPTY_CACHE.union(*columns(first)).union(*columns(second))
    # Keys and values beyond the largest ones, too.
    queried = sorted(first | second | sought | {(12, 3), (3, 12)})
    assert held.contains(*columns(set(queried))).tolist() == [
        pair in first | second for pair in queried
    ]
    assert held.pairs.size == len(first | second)


@given(pairs, st.integers(0, 11), st.integers(0, 11))
def test_between_returns_the_pairs_in_a_range_of_keys(all_pairs: Pairs, a: int, b: int) -> None:
    held, first, last = EMPTY_CACHE.union(*columns(all_pairs)), min(a, b), max(a, b)
    keys_and_values = held.between(first, last)
    expected = [pair for pair in sorted(all_pairs) if first <= pair[0] < last]
    assert [*zip(*(column.tolist() for column in keys_and_values), strict=True)] == expected
