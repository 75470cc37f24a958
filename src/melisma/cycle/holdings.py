"""Who has what, as one sorted array of pairs: of a million learners, too."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from melisma.cycle.rows import Ints

# A pair is one number: what is sought by, and below it the other.
BITS = 32
BELOW = (1 << BITS) - 1


@dataclass(frozen=True, eq=False)
class Holdings:
    """Pairs of two numbers, by the first, then by the second."""

    pairs: Ints

    def plus(self, firsts: Ints, seconds: Ints) -> "Holdings":
        """With these pairs, too."""
        if not firsts.size:
            return self
        # Two sorted runs: a stable sort merges them, many times as fast as a set.
        new = firsts << BITS | seconds
        new.sort()
        both = np.concatenate([self.pairs, new])
        both.sort(kind="stable")
        return Holdings(both[np.diff(both, prepend=-1) != 0])

    def has(self, firsts: Ints, seconds: Ints) -> NDArray[np.bool_]:
        """Whether there is each of these pairs; fast where like firsts stand together."""
        sought = firsts << BITS | seconds
        if not self.pairs.size:
            return np.zeros(sought.size, np.bool_)
        # Among those with its first number each pair is sought by halves, all pairs at once.
        # There are none behind the last one.
        firsts = np.minimum(firsts, self._starts.size - 2)
        low = self._starts[firsts]
        left = self._starts[firsts + 1] - low
        while left.any():
            half = left >> 1
            beyond = (self.pairs.take(low + half, mode="clip") < sought) & (left > 0)
            low += np.where(beyond, half + 1, 0)
            left = np.where(beyond, left - half - 1, half)
        there: NDArray[np.bool_] = self.pairs.take(low, mode="clip") == sought
        return there

    def between(self, first: int, last: int) -> tuple[Ints, Ints]:
        """The numbers of all pairs whose first one is from `first` to before `last`, in order."""
        begin, end = np.searchsorted(self.pairs, [first << BITS, last << BITS])
        found = self.pairs[begin:end]
        return found >> BITS, found & BELOW

    @cached_property
    def _starts(self) -> Ints:
        """Where pairs begin with each first number, and with two behind the last."""
        counts = np.bincount(self.pairs >> BITS)
        return np.cumsum(np.concatenate([[0], counts, [0]]))


NOTHING_HELD = Holdings(np.empty(0, np.int64))
