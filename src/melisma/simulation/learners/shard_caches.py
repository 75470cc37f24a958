"""The shards that simulated learners hold in their caches."""

import numpy as np

from melisma.cycle.cache_index import EMPTY_CACHE
from melisma.cycle.ragged import RaggedArray
from melisma.fleet.array_types import Floats, Ints

ROUNDING_SHARDS = 1e-9


class ShardCaches:
    """The caches of all learners; in federated learning no shard is missing, and none is stored.

    `counts` are the shards in each cache. `fetched` shards include fractions; only whole shards
    are stored.
    """

    def __init__(self, learners: int, *, federated: bool) -> None:
        self.counts = np.zeros(learners, np.int64)
        self._federated = federated
        self._held = EMPTY_CACHE  # (learner, shard)
        self._fetched: list[tuple[Ints, Ints]] = []  # held too, but not in the index yet
        self._prefetched = EMPTY_CACHE  # (learner, shard) fetched before the current cycle

    def missing(self, learners: Ints, shards: RaggedArray) -> Ints:
        """Return 1 for each shard that its learner does not hold, and 0 for the others."""
        if self._federated:
            return np.zeros(shards.values.size, np.int64)
        return (~self._held.contains(learners[shards.row_ids], shards.values)).astype(np.int64)

    def store(self, learners: Ints, shards: RaggedArray, missing: Ints, fetched: Floats) -> None:
        """Store the first `fetched` of the missing shards of each learner."""
        if self._federated or not learners.size:
            return
        row_ids, upto = shards.row_ids, np.concatenate([[0], np.cumsum(missing)])
        nth = upto[1:] - np.repeat(upto[shards.starts], shards.counts)
        kept = (missing > 0) & (nth <= whole_shards(fetched)[row_ids])
        self._fetched.append((learners[row_ids[kept]], shards.values[kept]))
        self.counts[learners] += shards.row_sums(kept.astype(np.int64))

    def update_index(self) -> None:
        """Add the shards of all blocks to the index at once: each merge copies the whole index."""
        if self._fetched:
            learners, shards = map(np.concatenate, zip(*self._fetched, strict=True))
            self._fetched = []  # before the merge, which needs memory itself
            self._held = self._held.union(learners, shards)

    def store_prefetched(
        self, learners: Ints, shards: RaggedArray, missing: Ints, fetched: Floats
    ) -> None:
        """Store shards that were fetched before the current cycle, and remember which they are."""
        before = len(self._fetched)
        self.store(learners, shards, missing, fetched)
        self._prefetched = EMPTY_CACHE
        for owners, numbers in self._fetched[before:]:
            self._prefetched = self._prefetched.union(owners, numbers)
        self.update_index()

    def count_prefetched(self, learners: Ints, shards: RaggedArray) -> Ints:
        """Return how many of these shards each learner fetched before the current cycle."""
        if not self._prefetched.pairs.size:
            return np.zeros(learners.size, np.int64)
        early = self._prefetched.contains(learners[shards.row_ids], shards.values)
        return shards.row_sums(early.astype(np.int64))


def whole_shards(fetched: Floats) -> Ints:
    """Return the number of whole shards, with a tolerance for rounding."""
    return np.floor(fetched + ROUNDING_SHARDS).astype(np.int64)
