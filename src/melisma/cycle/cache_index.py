"""Who has what, as one sorted array of pairs: of a million learners, too."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from melisma.cycle.ragged import Ints

# A pair is one number: the key, and below it the value.
BITS = 32
BELOW = (1 << BITS) - 1


@dataclass(frozen=True, eq=False)
class CacheIndex:
    """Pairs of a key and a value, in order: a deck asks for runs of keys, learners for pairs."""

    pairs: Ints

    def union(self, keys: Ints, values: Ints) -> "CacheIndex":
        """With these pairs, too."""
        if not keys.size:
            return self
        # Two sorted runs: a stable sort merges them, many times as fast as a set.
        new = keys << BITS | values
        new.sort()
        both = np.concatenate([self.pairs, new])
        both.sort(kind="stable")
        first = np.ones(both.size, np.bool_)
        np.not_equal(both[1:], both[:-1], out=first[1:])
        return CacheIndex(both[first])

    def contains(self, keys: Ints, values: Ints) -> NDArray[np.bool_]:
        """Whether there is each of these pairs; fast where like keys stand together."""
        sought = keys << BITS | values
        if not self.pairs.size:
            return np.zeros(sought.size, np.bool_)
        # Among those with its key each pair is sought by halves, all pairs at once.
        # There are none behind the last one.
        keys = np.minimum(keys, self._starts.size - 2)
        low = self._starts[keys]
        left = self._starts[keys + 1] - low
        while left.any():
            half = left >> 1
            beyond = (self.pairs.take(low + half, mode="clip") < sought) & (left > 0)
            low += np.where(beyond, half + 1, 0)
            left = np.where(beyond, left - half - 1, half)
        there: NDArray[np.bool_] = self.pairs.take(low, mode="clip") == sought
        return there

    def between(self, first: int, last: int) -> tuple[Ints, Ints]:
        """Keys and values of all pairs with a key from `first` to before `last`, in order."""
        begin, end = np.searchsorted(self.pairs, [first << BITS, last << BITS])
        found = self.pairs[begin:end]
        return found >> BITS, found & BELOW

    @cached_property
    def _starts(self) -> Ints:
        """Where the pairs of each key begin, and of two behind the last."""
        counts = np.bincount(self.pairs >> BITS)
        return np.cumsum(np.concatenate([[0], counts, [0]]))


EMPTY_CACHE = CacheIndex(np.empty(0, np.int64))
