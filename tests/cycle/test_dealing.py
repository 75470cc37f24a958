from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle.cache_index import EMPTY_CACHE, CacheIndex
from melisma.cycle.dealing import Deck
from melisma.cycle.ragged import Ints, RaggedArray

SHARDS = 12
counts = st.lists(st.integers(0, SHARDS), min_size=1, max_size=6)


def deck() -> Deck:
    return Deck.shuffle(SHARDS, np.random.default_rng(3))


def places(shards: Ints) -> Ints:
    """Where in the deck they are."""
    return np.argsort(deck().order)[shards]


def dealt_by(
    deck: Deck, wanted: list[int], held: CacheIndex = EMPTY_CACHE
) -> tuple[Deck, RaggedArray]:
    after, dealt, new = deck.deal(np.arange(len(wanted)), np.array(wanted), held)
    for learner, (mine, fresh) in enumerate(zip(dealt, new, strict=True)):
        # What is not new to it, it holds.
        known = np.setdiff1d(places(mine), fresh)
        assert held.contains(known, np.full(known.size, learner)).all()
        assert np.isin(deck.order[fresh], mine).all()
    return after, dealt


def in_turn(stretch: list[int], wanted: list[int], held: dict[int, set[int]]) -> list[set[int]]:
    """One learner after another takes the first that it holds, then all are filled up."""
    free = list(stretch)
    taken = []
    for learner, count in enumerate(wanted):
        mine = [shard for shard in free if shard in held.get(learner, set())][:count]
        free = [shard for shard in free if shard not in mine]
        taken.append(mine)
    for mine, count in zip(taken, wanted, strict=True):
        missing = count - len(mine)
        mine.extend(free[:missing])
        free = free[missing:]
    return [set(mine) for mine in taken]


@given(st.lists(counts, min_size=1, max_size=5))
def test_every_shard_is_seen_before_any_is_seen_again(cycles: list[list[int]]) -> None:
    now, times = deck(), np.zeros(SHARDS, dtype=np.int64)
    for wanted in cycles:
        now, dealt = dealt_by(now, wanted)
        assert [part.size for part in dealt] == wanted
        for part in dealt:
            assert np.unique(part).size == part.size
            times[part] += 1
        assert times.max() - times.min() <= 1


@given(
    counts,
    st.dictionaries(st.integers(0, 5), st.sets(st.integers(0, SHARDS - 1))),
    st.integers(0, SHARDS - 1),
)
def test_learners_keep_what_they_hold_as_far_as_it_is_dealt(
    wanted: list[int], held: dict[int, set[int]], first: int
) -> None:
    kept = EMPTY_CACHE
    for learner, shards in held.items():
        own = places(np.array(sorted(shards), np.int64))
        kept = kept.union(own, np.full(own.size, learner))
    now = replace(deck(), position=first)
    after, plain = dealt_by(now, wanted)
    again, dealt = dealt_by(now, wanted, kept)
    assert again.position == after.position
    assert dealt.counts.tolist() == wanted
    assert sorted(dealt.values.tolist()) == sorted(plain.values.tolist())
    if sum(wanted) <= SHARDS:
        expected = in_turn(plain.values.tolist(), wanted, held)
        assert [set(row.tolist()) for row in dealt] == expected


def test_nobody_gets_more_than_there_is() -> None:
    with pytest.raises(ValueError, match="cannot get 13 of 12"):
        dealt_by(deck(), [13])


def test_the_same_seed_deals_the_same() -> None:
    one, other = dealt_by(deck(), [5, 4]), dealt_by(deck(), [5, 4])
    assert one[1].values.tolist() == other[1].values.tolist()
