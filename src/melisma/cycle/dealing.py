"""Which shards go to whom, once it is decided how many.

One seeded permutation of all shards is gone round and round, from cycle to cycle: every shard is
seen before any is seen again. What a cycle takes is the next stretch of it. No learner gets a
shard twice in a cycle: a stretch no longer than the data has none twice. As far as no shard is
taken twice at all, a learner gets those of the stretch first that it already holds.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from melisma.cycle.cache_index import EMPTY_CACHE, CacheIndex
from melisma.cycle.ragged import Ints, RaggedArray


@dataclass(frozen=True, eq=False)
class Deck:
    """All shards in their order, and where the next stretch begins.

    Who holds what goes by places in the deck: what a stretch needs to know lies in a row.
    """

    order: Ints
    place: int = 0

    @classmethod
    def shuffle(cls, shards: int, rng: Generator) -> "Deck":
        """So many shards in a random order."""
        return cls(rng.permutation(shards).astype(np.int64))

    def holders(self, count: int, learners: Ints, held: CacheIndex) -> tuple[Ints, Ints]:
        """Which of the next `count` shards are held by which of these learners, shards first.

        Both by their places: in the stretch, and in `learners`, which are ascending. The stretch
        is no longer than the deck.
        """
        end, size = self.place + count, self.order.size
        nth, who = held.between(self.place, min(end, size))
        nth = nth - self.place
        if end > size:
            beyond, others = held.between(0, end - size)
            nth = np.concatenate([nth, beyond + (size - self.place)])
            who = np.concatenate([who, others])
        rank = _ranks(learners, who)
        known = rank >= 0
        return nth[known], rank[known]

    def deal(
        self, learners: Ints, counts: Ints, held: CacheIndex = EMPTY_CACHE
    ) -> tuple["Deck", RaggedArray, RaggedArray]:
        """The deck after this, the shards that each learner gets, and the places of new ones.

        None gets more than all.
        """
        total, size = int(counts.sum()), self.order.size
        if counts.size and int(counts.max()) > size:
            raise ValueError(f"a learner cannot get {counts.max()} of {size} shards")
        stretch = (self.place + np.arange(total)) % max(size, 1)
        after = replace(self, place=(self.place + total) % max(size, 1))
        if total > size:
            dealt = new = RaggedArray(counts, stretch)
        else:
            to = _keepers(*self.holders(total, learners, held), total, counts)
            dealt, new = _with_the_rest(stretch, to, counts)
        return after, RaggedArray(counts, self.order[dealt.values]), new


def _ranks(among: Ints, sought: Ints) -> Ints:
    """Where each number is, -1 where it is not."""
    table = np.full(int(max(among.max(initial=0), sought.max(initial=0))) + 1, -1)
    table[among] = np.arange(among.size)
    ranks: Ints = table[sought]
    return ranks


def _keepers(shards: Ints, holders: Ints, size: int, counts: Ints) -> Ints:
    """For each of so many shards the learner that holds it and has room for it, else -1.

    The pairs are by shard. A shard asks its holders one after another; a learner keeps the first
    shards of those that ask it, as far as it has room, and what it does not keep asks on. So the
    first learner has the first choice, then the second, and so on.
    """
    asked = np.bincount(shards, minlength=size)
    last = np.cumsum(asked)
    asks, to = last - asked, np.full(size, -1)
    while True:
        free = np.flatnonzero((to < 0) & (asks < last))
        if not free.size:
            return to
        to[free] = holders[asks[free]]
        refused = _beyond(to, counts)
        to[refused] = -1
        asks[refused] += 1


def _beyond(to: Ints, counts: Ints) -> Ints:
    """Shards that a learner has no room for, the first ones being kept."""
    given = np.flatnonzero(to >= 0)
    full = np.bincount(to[given], minlength=counts.size) > counts
    given = given[full[to[given]]]
    given = given[np.argsort(to[given], kind="stable")]
    first = np.searchsorted(to[given], to[given])
    return given[np.arange(given.size) - first >= counts[to[given]]]


def _with_the_rest(stretch: Ints, to: Ints, counts: Ints) -> tuple[RaggedArray, RaggedArray]:
    """First what each holds; the rest fills up, in the order of the stretch. And the rest alone."""
    new = to < 0
    room = counts - np.bincount(to[~new], minlength=counts.size)
    to = to.copy()
    to[new] = np.repeat(np.arange(counts.size), room)
    # By learner, then those that it holds, then as they lie: one number each, the place below all.
    keys = (2 * to + new) * to.size + np.arange(to.size)
    keys.sort()
    return RaggedArray(counts, stretch[keys % max(to.size, 1)]), RaggedArray(room, stretch[new])
