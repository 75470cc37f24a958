"""Who has what, beside sets of pairs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle.cache_index import EMPTY_CACHE
from melisma.cycle.ragged import Ints

Pairs = set[tuple[int, int]]
pairs = st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)))


def columns(some: Pairs) -> tuple[Ints, Ints]:
    firsts, seconds = zip(*sorted(some), strict=True) if some else ((), ())
    return np.array(firsts, np.int64), np.array(seconds, np.int64)


@given(pairs, pairs, pairs)
def test_there_is_what_was_added(first: Pairs, second: Pairs, sought: Pairs) -> None:
    held = EMPTY_CACHE.union(*columns(first)).union(*columns(second))
    # Beyond the last numbers, too.
    asked = sorted(first | second | sought | {(12, 3), (3, 12)})
    assert held.contains(*columns(set(asked))).tolist() == [
        pair in first | second for pair in asked
    ]


@given(pairs, st.integers(0, 11), st.integers(0, 11))
def test_pairs_are_found_from_one_number_to_another(all_pairs: Pairs, one: int, two: int) -> None:
    held, first, last = EMPTY_CACHE.union(*columns(all_pairs)), min(one, two), max(one, two)
    found = held.between(first, last)
    expected = [pair for pair in sorted(all_pairs) if first <= pair[0] < last]
    assert [*zip(*(each.tolist() for each in found), strict=True)] == expected
