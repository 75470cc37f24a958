import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melisma.cycle.dealing import Deck

SHARDS = 12
counts = st.lists(st.integers(0, SHARDS), min_size=1, max_size=6)


def deck() -> Deck:
    return Deck.shuffled(SHARDS, np.random.default_rng(3))


@given(st.lists(counts, min_size=1, max_size=5))
def test_every_shard_is_seen_before_any_is_seen_again(cycles: list[list[int]]) -> None:
    now, times = deck(), np.zeros(SHARDS, dtype=np.int64)
    for wanted in cycles:
        now, dealt = now.deal(np.array(wanted))
        assert [part.size for part in dealt] == wanted
        for part in dealt:
            assert np.unique(part).size == part.size
            times[part] += 1
        assert times.max() - times.min() <= 1


@given(counts, st.dictionaries(st.integers(0, 5), st.sets(st.integers(0, SHARDS - 1))))
def test_learners_keep_what_they_hold_as_far_as_it_is_dealt(
    wanted: list[int], held: dict[int, set[int]]
) -> None:
    amounts = np.array(wanted)
    after, plain = deck().deal(amounts)
    again, dealt = deck().deal(amounts, held)
    assert again.place == after.place
    assert [part.size for part in dealt] == wanted
    assert sorted(np.concatenate(dealt).tolist()) == sorted(np.concatenate(plain).tolist())
    if amounts.sum() <= SHARDS and held.get(0):
        kept = held[0] & set(np.concatenate(plain).tolist())
        assert len(held[0] & set(dealt[0].tolist())) == min(len(kept), wanted[0])


def test_nobody_gets_more_than_there_is() -> None:
    with pytest.raises(ValueError, match="cannot get 13 of 12"):
        deck().deal(np.array([13]))


def test_the_same_seed_deals_the_same() -> None:
    one, other = deck().deal(np.array([5, 4])), deck().deal(np.array([5, 4]))
    assert [part.tolist() for part in one[1]] == [part.tolist() for part in other[1]]
