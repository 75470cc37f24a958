"""Which learners hold which shards, as one sorted array: of a million learners, too."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from melisma.cycle.rows import Ints, spans

# A pair is one number: the shard, and below it the learner.
LEARNERS = 1 << 24


@dataclass(frozen=True, eq=False)
class Holdings:
    """Pairs of a shard and a learner who holds it, by shard, then by learner."""

    pairs: Ints

    def plus(self, shards: Ints, learners: Ints) -> "Holdings":
        """With these pairs, too."""
        # Two sorted runs: a stable sort merges them, many times as fast as a set.
        new = np.sort(shards * LEARNERS + learners)
        both = np.sort(np.concatenate([self.pairs, new]), kind="stable")
        return Holdings(both[np.diff(both, prepend=-1) != 0])

    def has(self, shards: Ints, learners: Ints) -> NDArray[np.bool_]:
        """Whether there is each of these pairs."""
        sought = shards * LEARNERS + learners
        # In their order, so that one search goes on where the last one ended.
        order = np.argsort(sought)
        place = np.searchsorted(self.pairs, sought[order])
        there = np.empty(sought.size, np.bool_)
        there[order] = np.append(self.pairs, -1)[place] == sought[order]
        return there

    def of(self, shards: Ints, learners: Ints) -> tuple[Ints, Ints]:
        """Where in `shards` and in `learners` there are pairs, by the place in `shards` first.

        Neither has anything twice.
        """
        order = np.argsort(shards)
        sought = shards[order] * LEARNERS
        starts = np.searchsorted(self.pairs, sought)
        counts = np.searchsorted(self.pairs, sought + LEARNERS) - starts
        where = np.repeat(order, counts)
        found = self.pairs[spans(starts, counts)] % LEARNERS
        place = _places(learners, found)
        known = place >= 0
        where, place = where[known], place[known]
        ranked = np.argsort(where * LEARNERS + place)
        return where[ranked], place[ranked]


def _places(among: Ints, sought: Ints) -> Ints:
    """Where each number is, -1 where it is not."""
    table = np.full(int(max(among.max(initial=0), sought.max(initial=0))) + 1, -1)
    table[among] = np.arange(among.size)
    places: Ints = table[sought]
    return places


NOTHING_HELD = Holdings(np.empty(0, np.int64))
