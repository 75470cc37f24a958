"""Which learners hold which shards, as one sorted array: of a million learners, too."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from melisma.cycle.rows import Ints, spans

# A pair is one number: the shard, and below it the learner.
BITS = 24
LEARNERS = 1 << BITS


@dataclass(frozen=True, eq=False)
class Holdings:
    """Pairs of a shard and a learner who holds it, by shard, then by learner."""

    pairs: Ints

    def plus(self, shards: Ints, learners: Ints) -> "Holdings":
        """With these pairs, too."""
        if not shards.size:
            return self
        # Two sorted runs: a stable sort merges them, many times as fast as a set.
        new = shards * LEARNERS + learners
        new.sort()
        both = np.concatenate([self.pairs, new])
        both.sort(kind="stable")
        return Holdings(both[np.diff(both, prepend=-1) != 0])

    def has(self, shards: Ints, learners: Ints) -> NDArray[np.bool_]:
        """Whether there is each of these pairs."""
        sought = shards * LEARNERS + learners
        if not self.pairs.size:
            return np.zeros(sought.size, np.bool_)
        # Among the holders of its shard each pair is sought by halves, all pairs at once.
        low, left = self._holders(shards)
        while left.any():
            half = left >> 1
            beyond = (self.pairs.take(low + half, mode="clip") < sought) & (left > 0)
            low += np.where(beyond, half + 1, 0)
            left = np.where(beyond, left - half - 1, half)
        there: NDArray[np.bool_] = self.pairs.take(low, mode="clip") == sought
        return there

    def of(self, shards: Ints, learners: Ints) -> tuple[Ints, Ints]:
        """Where in `shards` and in `learners` there are pairs, by the place in `shards` first.

        Neither has anything twice; `learners` are ascending.
        """
        starts, counts = self._holders(shards)
        where = np.repeat(np.arange(shards.size), counts)
        place = _places(learners, self.pairs[spans(starts, counts)] & (LEARNERS - 1))
        known = place >= 0
        return where[known], place[known]

    def _holders(self, shards: Ints) -> tuple[Ints, Ints]:
        """Where in `pairs` those of each shard begin, and how many there are."""
        # Nobody holds any behind the last one.
        shards = np.minimum(shards, self._starts.size - 2)
        starts = self._starts[shards]
        return starts, self._starts[shards + 1] - starts

    @cached_property
    def _starts(self) -> Ints:
        """For each shard, and for two behind the last."""
        counts = np.bincount(self.pairs >> BITS)
        return np.cumsum(np.concatenate([[0], counts, [0]]))


def _places(among: Ints, sought: Ints) -> Ints:
    """Where each number is, -1 where it is not."""
    table = np.full(int(max(among.max(initial=0), sought.max(initial=0))) + 1, -1)
    table[among] = np.arange(among.size)
    places: Ints = table[sought]
    return places


NOTHING_HELD = Holdings(np.empty(0, np.int64))
