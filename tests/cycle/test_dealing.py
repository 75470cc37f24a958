from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle.cache_index import EMPTY_CACHE, CacheIndex
from melisma.cycle.dealing import Deck
from melisma.cycle.ragged import RaggedArray
from melisma.fleet.array_types import Ints

SHARDS = 12
counts = st.lists(st.integers(0, SHARDS), min_size=1, max_size=6)


def deck() -> Deck:
    return Deck.shuffle(SHARDS, np.random.default_rng(3))


def positions(shards: Ints) -> Ints:
    """Return the positions of shards in the deck."""
    return np.argsort(deck().shards)[shards]


def deal(deck: Deck, wanted: list[int], held: CacheIndex = EMPTY_CACHE) -> tuple[Deck, RaggedArray]:
    learners, each = np.arange(len(wanted)), np.array(wanted)
    after, dealt, new = deck.deal(learners, each, held)
    ahead = deck.next_new(learners, each, held)
    assert ahead.counts.tolist() == new.counts.tolist()
    assert ahead.values.tolist() == new.values.tolist()
    for learner, (row, fresh) in enumerate(zip(dealt, new, strict=True)):
        # A learner holds all dealt shards that are not new to it.
        assert np.isin(fresh, row).all()
        assert (~held.contains(row, np.full(row.size, learner))).sum() == fresh.size
        assert not held.contains(fresh, np.full(fresh.size, learner)).any()
    return after, RaggedArray(dealt.counts, deck.shards[dealt.values])


def deal_one_by_one(
    stretch: list[int], wanted: list[int], held: dict[int, set[int]]
) -> list[set[int]]:
    """Give each learner in turn the first shards that it holds, then fill up all of them."""
    free = list(stretch)
    dealt = []
    for learner, count in enumerate(wanted):
        learner_shards = [shard for shard in free if shard in held.get(learner, set())][:count]
        free = [shard for shard in free if shard not in learner_shards]
        dealt.append(learner_shards)
    for learner_shards, count in zip(dealt, wanted, strict=True):
        missing = count - len(learner_shards)
        learner_shards.extend(free[:missing])
        free = free[missing:]
    return [set(learner_shards) for learner_shards in dealt]


@given(st.lists(counts, min_size=1, max_size=5))
def test_every_shard_is_dealt_before_any_is_dealt_again(cycles: list[list[int]]) -> None:
    current, times_dealt = deck(), np.zeros(SHARDS, dtype=np.int64)
    for wanted in cycles:
        current, dealt = deal(current, wanted)
        assert [part.size for part in dealt] == wanted
        assert all(np.unique(part).size == part.size for part in dealt)
        if sum(wanted) > SHARDS:
            assert np.unique(dealt.values).size == SHARDS
        else:
            np.add.at(times_dealt, dealt.values, 1)
        assert times_dealt.max() - times_dealt.min() <= 1


@given(
    counts,
    st.dictionaries(st.integers(0, 5), st.sets(st.integers(0, SHARDS - 1))),
    st.integers(0, SHARDS - 1),
)
def test_learners_get_the_dealt_shards_that_they_hold(
    wanted: list[int], held: dict[int, set[int]], first: int
) -> None:
    index = EMPTY_CACHE
    for learner, shards in held.items():
        held_positions = positions(np.array(sorted(shards), np.int64))
        index = index.union(held_positions, np.full(held_positions.size, learner))
    current = replace(deck(), position=first)
    after, without_index = deal(current, wanted)
    after_index, dealt = deal(current, wanted, index)
    assert after_index.position == after.position
    assert dealt.counts.tolist() == wanted
    assert all(np.unique(row).size == row.size for row in dealt)
    if sum(wanted) <= SHARDS:
        assert sorted(dealt.values.tolist()) == sorted(without_index.values.tolist())
        expected = deal_one_by_one(without_index.values.tolist(), wanted, held)
        assert [set(row.tolist()) for row in dealt] == expected
    else:
        assert np.unique(dealt.values).size == SHARDS
        for learner, row in enumerate(dealt):
            holds = held.get(learner, set())
            # Its part of the deck may be of other shards; all the rest is of those that it holds.
            part = wanted[learner] * SHARDS // sum(wanted) + 1
            kept = len(holds & set(row.tolist()))
            assert kept >= min(wanted[learner] - part, len(holds))


@given(
    st.sets(st.integers(0, SHARDS - 1)),
    st.integers(0, SHARDS - 1),
    st.lists(counts, min_size=1, max_size=3),
)
def test_returned_shards_are_dealt_first_and_once(
    returned: set[int], first: int, cycles: list[list[int]]
) -> None:
    current = replace(deck(), position=first).return_shards(np.array(sorted(returned), np.int64))
    left = set(returned)
    for wanted in cycles:
        current, dealt = deal(current, wanted)
        assert all(np.unique(row).size == row.size for row in dealt)
        given_positions = set(positions(dealt.values).tolist())
        assert left <= given_positions or given_positions <= left
        left -= given_positions
        assert set(current.returned.tolist()) == left


@given(counts, st.sets(st.tuples(st.integers(0, SHARDS - 1), st.integers(0, 5))))
def test_a_deal_does_not_depend_on_the_numbers_of_learners(
    wanted: list[int], held: set[tuple[int, int]]
) -> None:
    keys, holders = np.array([*held, (0, len(wanted))], np.int64).T
    learners, each = np.arange(len(wanted)), np.array(wanted)
    known = holders < learners.size
    index = EMPTY_CACHE.union(keys[known], holders[known])
    _, dealt, new = deck().deal(learners, each, index)
    # With gaps between their numbers, and with shards of learners that are not dealt any.
    other = EMPTY_CACHE.union(keys, 3 * holders + 1)
    _, dealt_too, new_too = deck().deal(3 * learners + 1, each, other)
    assert dealt_too.values.tolist() == dealt.values.tolist()
    assert new_too.values.tolist() == new.values.tolist()


def test_a_learner_cannot_get_more_shards_than_the_deck_has() -> None:
    with pytest.raises(ValueError, match="cannot get 13 of 12"):
        deal(deck(), [13])


def test_the_same_seed_deals_the_same_shards() -> None:
    (_, first), (_, second) = deal(deck(), [5, 4]), deal(deck(), [5, 4])
    assert first.values.tolist() == second.values.tolist()
