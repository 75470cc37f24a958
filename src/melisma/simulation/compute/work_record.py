"""The shards that learners were given in a cycle, until the updates to average are known."""

from dataclasses import dataclass

import numpy as np

from melisma.cycle.cache_index import EMPTY_CACHE
from melisma.cycle.ragged import RaggedArray
from melisma.fleet.array_types import Floats, Ints


@dataclass(frozen=True, eq=False)
class CycleWork:
    """The work of each learner in a cycle; `batches` are those that it trains in time."""

    cycle: int
    learners: Ints
    shards: RaggedArray
    passes: Ints
    batches: Ints

    def take(self, rows: Ints) -> "CycleWork":
        """Return the work in these rows."""
        columns = (self.passes[rows], self.batches[rows])
        return CycleWork(self.cycle, self.learners[rows], self.shards.take(rows), *columns)


class WorkRecord:
    """All shards given in one cycle; `batches` by learner are set when updates arrive."""

    def __init__(self, cycle: int, learners: int) -> None:
        self.cycle = cycle
        self.batches = np.zeros(learners, np.int64)
        self._passes = np.zeros(learners, np.int64)
        self._grants: list[tuple[Ints, Ints, RaggedArray]] = []
        self._released = EMPTY_CACHE  # (learner, shard)

    def add(self, learners: Ints, attempts: Ints, shards: RaggedArray, passes: Ints) -> None:
        """Record shards that learners were given, with the attempt of each learner."""
        self._passes[learners] = passes
        self._grants.append((learners, attempts, shards))

    def release(self, learners: Ints, shards: Ints) -> None:
        """Record that learners do not train these shards: pairs of a learner and a shard."""
        self._released = self._released.union(learners, shards)

    def of(self, learners: Ints, attempts: Ints) -> CycleWork:
        """Return the work of learners, ascending, with all shards up to the given attempts."""
        used = np.zeros(self.batches.size, np.int64)
        used[learners] = attempts
        owners, shards = [], []
        for members, nth, rows in self._grants:
            chosen = np.flatnonzero(nth <= used[members])
            part = rows.take(chosen)
            owners.append(members[chosen][part.row_ids])
            shards.append(part.values)
        owner, values = np.concatenate(owners), np.concatenate(shards)
        if self._released.pairs.size:
            kept = ~self._released.contains(owner, values)
            owner, values = owner[kept], values[kept]
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=used.size)[learners]
        joined = RaggedArray(counts, values[order])
        return CycleWork(
            self.cycle, learners, joined, self._passes[learners], self.batches[learners]
        )


@dataclass(frozen=True, eq=False)
class WeightedWork:
    """Updates of one cycle that are averaged, with their weights and visits."""

    record: WorkRecord
    learners: Ints
    attempts: Ints
    weights: Floats
    visits: Ints
