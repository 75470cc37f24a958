"""Which learner holds which shard, as one sorted array of pairs."""

from dataclasses import dataclass

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
        merged = np.concatenate([self.pairs, keys << VALUE_BITS | values])
        merged[self.pairs.size :].sort()
        merged.sort(kind="stable")
        first = np.ones(merged.size, np.bool_)
        np.not_equal(merged[1:], merged[:-1], out=first[1:])
        # Most often all pairs are new, and a copy would be a third of the peak memory.
        return CacheIndex(merged if first.all() else merged[first])

    def without(self, keys: Ints, values: Ints) -> "CacheIndex":
        """Return an index without these pairs."""
        return CacheIndex(np.setdiff1d(self.pairs, keys << VALUE_BITS | values))

    def contains(self, keys: Ints, values: Ints) -> NDArray[np.bool_]:
        """Return whether each pair is in the index."""
        sought = keys << VALUE_BITS | values
        contained = np.zeros(sought.size, np.bool_)
        if self.pairs.size:
            # Searches in order find most of what they compare in the processor's cache.
            order = np.argsort(sought)
            sought = sought[order]
            index = np.searchsorted(self.pairs, sought)
            contained[order] = self.pairs.take(index, mode="clip") == sought
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


EMPTY_CACHE = CacheIndex(NO_INTS)
