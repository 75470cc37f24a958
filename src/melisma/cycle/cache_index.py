"""Which learner holds which shard, as one sorted array of pairs."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.array_types import NO_INTS, Ints

# A pair is one integer: the key in the high bits, the value in the low ones.
VALUE_BITS = 32
VALUE_MASK = (1 << VALUE_BITS) - 1


@dataclass(frozen=True, eq=False)
class CacheIndex:
    """Sorted pairs of a key and a value, looked up by ranges of keys or by single pairs."""

    pairs: Ints

    def union(self, keys: Ints, values: Ints) -> "CacheIndex":
        """Return an index with more pairs."""
        if not keys.size:
            return self
        # A stable sort merges two sorted runs many times faster than a set union.
        new = keys << VALUE_BITS | values
        new.sort()
        merged = np.concatenate([self.pairs, new])
        merged.sort(kind="stable")
        first = np.ones(merged.size, np.bool_)
        np.not_equal(merged[1:], merged[:-1], out=first[1:])
        return CacheIndex(merged[first])

    def without(self, keys: Ints, values: Ints) -> "CacheIndex":
        """Return an index without these pairs."""
        return CacheIndex(np.setdiff1d(self.pairs, keys << VALUE_BITS | values))

    def contains(self, keys: Ints, values: Ints) -> NDArray[np.bool_]:
        """Return whether each pair is in the index; fastest where equal keys are adjacent."""
        sought = keys << VALUE_BITS | values
        if not self.pairs.size:
            return np.zeros(sought.size, np.bool_)
        # Binary search for all pairs at once, each among the pairs of its key. Keys beyond the
        # largest one share its empty successor.
        keys = np.minimum(keys, self._starts.size - 2)
        low = self._starts[keys]
        left = self._starts[keys + 1] - low
        while left.any():
            half = left >> 1
            beyond = (self.pairs.take(low + half, mode="clip") < sought) & (left > 0)
            low += np.where(beyond, half + 1, 0)
            left = np.where(beyond, left - half - 1, half)
        contained: NDArray[np.bool_] = self.pairs.take(low, mode="clip") == sought
        return contained

    def between(self, first: int, last: int) -> tuple[Ints, Ints]:
        """Return the keys and values of all pairs with first <= key < last, in order."""
        begin, end = np.searchsorted(self.pairs, [first << VALUE_BITS, last << VALUE_BITS])
        pairs = self.pairs[begin:end]
        return pairs >> VALUE_BITS, pairs & VALUE_MASK

    def in_ranges(self, firsts: Ints, lengths: Ints) -> tuple[Ints, Ints, Ints]:
        """Return all pairs with a key in one of the ranges: the counts, the keys and the values."""
        begins = np.searchsorted(self.pairs, firsts << VALUE_BITS)
        ends = np.searchsorted(self.pairs, (firsts + lengths) << VALUE_BITS)
        parts = [self.pairs[begin:end] for begin, end in zip(begins, ends, strict=True)]
        pairs = np.concatenate([self.pairs[:0], *parts])
        return ends - begins, pairs >> VALUE_BITS, pairs & VALUE_MASK

    def of_keys(self, selected: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Return the keys and values of all pairs whose key is selected in this table of keys."""
        keys = self.pairs >> VALUE_BITS
        chosen = selected[keys]
        return keys[chosen], self.pairs[chosen] & VALUE_MASK

    @cached_property
    def _starts(self) -> Ints:
        """The index of the first pair of each key, and of two keys beyond the largest."""
        counts = np.bincount(self.pairs >> VALUE_BITS)
        return np.cumsum(np.concatenate([[0], counts, [0]]))


EMPTY_CACHE = CacheIndex(NO_INTS)
