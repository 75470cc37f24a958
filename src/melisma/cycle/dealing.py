"""Which shards each learner gets, once a plan says how many.

All shards are in one seeded permutation, the deck, that is dealt round and round from cycle to
cycle, so that every shard is dealt before any is dealt again. A cycle takes the next stretch of the
deck. No learner gets a shard twice in a cycle. Unless a stretch is longer than the deck, a learner
first gets those of its shards that it already holds.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from melisma.cycle.cache_index import EMPTY_CACHE, CacheIndex
from melisma.cycle.ragged import RaggedArray
from melisma.fleet.array_types import Ints


@dataclass(frozen=True, eq=False)
class Deck:
    """All shards in order, and the position of the next one to deal.

    A cache index for the deck has positions as keys, so that a stretch is a range of keys.
    """

    order: Ints
    position: int = 0

    @classmethod
    def shuffle(cls, shards: int, rng: Generator) -> "Deck":
        """Return a deck of `shards` shards in random order."""
        return cls(rng.permutation(shards).astype(np.int64))

    def holders(self, count: int, learners: Ints, held: CacheIndex) -> tuple[Ints, Ints]:
        """Return pairs of a shard among the next `count` and a learner that holds it.

        Both are indices: into the stretch, ascending, and into `learners`, which must be ascending.
        `count` is at most the size of the deck.
        """
        end, size = self.position + count, self.order.size
        positions, holders = held.between(self.position, min(end, size))
        shards = positions - self.position
        if end > size:
            positions, others = held.between(0, end - size)
            shards = np.concatenate([shards, positions + (size - self.position)])
            holders = np.concatenate([holders, others])
        indices = _index_in(learners, holders)
        known = indices >= 0
        return shards[known], indices[known]

    def deal(
        self, learners: Ints, counts: Ints, held: CacheIndex = EMPTY_CACHE
    ) -> tuple["Deck", RaggedArray, RaggedArray]:
        """Deal `counts` shards to each learner.

        Returns the deck afterwards, the shards of each learner, and the positions of those shards
        that it does not hold yet.
        """
        total, size = int(counts.sum()), self.order.size
        if counts.size and int(counts.max()) > size:
            raise ValueError(f"a learner cannot get {counts.max()} of {size} shards")
        stretch = (self.position + np.arange(total)) % max(size, 1)
        after = replace(self, position=(self.position + total) % max(size, 1))
        if total > size:
            dealt = new = RaggedArray(counts, stretch)
        else:
            keepers = _match_holders(*self.holders(total, learners, held), total, counts)
            dealt, new = _fill_up(stretch, keepers, counts)
        return after, RaggedArray(counts, self.order[dealt.values]), new


def _index_in(numbers: Ints, sought: Ints) -> Ints:
    """Return the index of each sought number in `numbers`, -1 where it is missing."""
    table = np.full(int(max(numbers.max(initial=0), sought.max(initial=0))) + 1, -1)
    table[numbers] = np.arange(numbers.size)
    indices: Ints = table[sought]
    return indices


def _match_holders(shards: Ints, holders: Ints, size: int, counts: Ints) -> Ints:
    """Return for each of `size` shards a learner that holds it and has room for it, else -1.

    Pairs are sorted by shard. Each shard proposes to its holders in order; a learner keeps the
    first shards that propose to it, up to its count, and the others go on to their next holder.
    """
    proposals = np.bincount(shards, minlength=size)
    last = np.cumsum(proposals)
    proposal, keepers = last - proposals, np.full(size, -1)
    while True:
        free = np.flatnonzero((keepers < 0) & (proposal < last))
        if not free.size:
            return keepers
        keepers[free] = holders[proposal[free]]
        rejected = _over_count(keepers, counts)
        keepers[rejected] = -1
        proposal[rejected] += 1


def _over_count(keepers: Ints, counts: Ints) -> Ints:
    """Return the shards beyond the count of their learner; the first ones are kept."""
    kept = np.flatnonzero(keepers >= 0)
    full = np.bincount(keepers[kept], minlength=counts.size) > counts
    kept = kept[full[keepers[kept]]]
    kept = kept[np.argsort(keepers[kept], kind="stable")]
    first = np.searchsorted(keepers[kept], keepers[kept])
    return kept[np.arange(kept.size) - first >= counts[keepers[kept]]]


def _fill_up(stretch: Ints, keepers: Ints, counts: Ints) -> tuple[RaggedArray, RaggedArray]:
    """Give learners the shards that they keep, then the rest in order; return all, and the rest."""
    new = keepers < 0
    room = counts - np.bincount(keepers[~new], minlength=counts.size)
    owners = keepers.copy()
    owners[new] = np.repeat(np.arange(counts.size), room)
    # Sort by learner, then kept before new, then position: one integer key for all three.
    keys = (2 * owners + new) * owners.size + np.arange(owners.size)
    keys.sort()
    dealt = RaggedArray(counts, stretch[keys % max(owners.size, 1)])
    return dealt, RaggedArray(room, stretch[new])
