"""Who holds what, beside sets of pairs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle.holdings import NOTHING_HELD
from melisma.cycle.rows import Ints

Pairs = set[tuple[int, int]]
pairs = st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)))


def columns(some: Pairs) -> tuple[Ints, Ints]:
    shards, learners = zip(*sorted(some), strict=True) if some else ((), ())
    return np.array(shards, np.int64), np.array(learners, np.int64)


@given(pairs, pairs, pairs)
def test_there_is_what_was_added(first: Pairs, second: Pairs, sought: Pairs) -> None:
    held = NOTHING_HELD.plus(*columns(first)).plus(*columns(second))
    # Beyond the last shard and the last learner, too.
    asked = sorted(first | second | sought | {(12, 3), (3, 12)})
    shards, learners = columns(set(asked))
    assert held.has(shards, learners).tolist() == [pair in first | second for pair in asked]


@given(pairs, st.permutations(range(12)), st.sets(st.integers(0, 12)))
def test_pairs_are_found_by_shard_among_some_learners(
    all_pairs: Pairs, shards: list[int], learners: set[int]
) -> None:
    held = NOTHING_HELD.plus(*columns(all_pairs))
    asked, among = shards[:7], sorted(learners)
    where, place = held.of(np.array(asked, np.int64), np.array(among, np.int64))
    expected = [
        (nth, rank)
        for nth, shard in enumerate(asked)
        for rank, learner in enumerate(among)
        if (shard, learner) in all_pairs
    ]
    assert [*zip(where.tolist(), place.tolist(), strict=True)] == expected
