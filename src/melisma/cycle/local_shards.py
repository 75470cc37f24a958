"""Sizes of shards; and in federated learning the shards on the devices, and which come next.

The shards of each learner are in a random order of their own that is dealt round and round. A shard
is a number on its device.
"""

from dataclasses import dataclass, field

import numpy as np

from melisma.cycle.cache_index import EMPTY_CACHE
from melisma.cycle.ragged import RaggedArray, blocks, concatenate_ranges
from melisma.fleet.array_types import NO_INTS, Ints
from melisma.fleet.rng import uniform


@dataclass(eq=False)
class ShardSizes:
    """Samples by shard number; each device has numbers of its own in federated learning.

    `samples` has the shards of the orchestrator, then those of all devices. By learner, `starts` is
    the index of its first shard in `samples`, and `counts` is the number of its shards.
    """

    samples: Ints
    starts: Ints = field(default_factory=lambda: NO_INTS)
    counts: Ints = field(default_factory=lambda: NO_INTS)

    def add(self, learners: Ints, samples: RaggedArray) -> None:
        """Set the samples of each shard on devices; a learner that joins again replaces its own."""
        self._make_room(int(learners.max()) + 1)
        new = np.flatnonzero(self.counts[learners] != samples.counts)
        changed, counts = learners[new], samples.counts[new]
        self.starts[changed] = self.samples.size + np.cumsum(counts) - counts
        self.counts[changed] = counts
        room = np.zeros(int(counts.sum()), np.int64)
        self.samples = np.concatenate([self.samples, room])
        self.samples[concatenate_ranges(self.starts[learners], samples.counts)] = samples.values

    def samples_in(self, learners: Ints, dealt: RaggedArray) -> Ints:
        """Return the number of samples in the dealt shards of each learner."""
        self._make_room(int(learners.max(initial=-1)) + 1)
        samples = np.zeros(len(dealt), np.int64)
        for rows, part in dealt.blocks():
            shards = np.repeat(self.starts[learners[rows]], part.counts) + part.values
            samples[rows] = part.row_sums(self.samples[shards])
        return samples

    def _make_room(self, count: int) -> None:
        missing = count - self.starts.size
        if missing > 0:
            self.starts = np.pad(self.starts, (0, missing))
            self.counts = np.pad(self.counts, (0, missing))


@dataclass(eq=False)
class LocalShards:
    """The sizes of the shards on all devices, their order, and the position of each learner.

    `shards` are the numbers of each learner's shards in the order of dealing, as in `sizes`;
    `positions` is the next one of each learner in that order.
    """

    sizes: ShardSizes = field(default_factory=lambda: ShardSizes(NO_INTS))
    shards: Ints = field(default_factory=lambda: NO_INTS)
    positions: Ints = field(default_factory=lambda: NO_INTS)

    def add(self, learners: Ints, samples: RaggedArray, seed: int) -> None:
        """Set the samples of each shard of learners; one that joins again starts over."""
        self.sizes.add(learners, samples)
        self.positions = _extend(self.positions, self.sizes.counts.size)
        self.shards = _extend(self.shards, self.sizes.samples.size)
        self.positions[learners] = 0
        indices = concatenate_ranges(self.sizes.starts[learners], samples.counts)
        self.shards[indices] = _shuffle(learners, samples, seed)

    def count_of(self, learners: Ints) -> Ints:
        """Return the number of shards of each learner; 0 where none were reported."""
        known = learners < self.sizes.counts.size
        counts: Ints = np.zeros(learners.size, np.int64)
        counts[known] = self.sizes.counts[learners[known]]
        return counts

    def deal(self, learners: Ints, counts: Ints) -> RaggedArray:
        """Deal the next `counts` shards of each learner, none of them twice."""
        sizes = self.sizes.counts[learners]
        if np.any(counts > sizes):
            raise ValueError("a learner cannot get more shards than are on its device")
        parts = [self._next(learners[rows], counts[rows]) for rows in blocks(learners.size)]
        self.positions[learners] = (self.positions[learners] + counts) % sizes
        return RaggedArray(counts, np.concatenate([NO_INTS, *parts]))

    def give_back(self, learners: Ints, shards: RaggedArray) -> None:
        """Let these shards of each learner come next, before those that would have come."""
        rows = np.flatnonzero(shards.counts)
        learners, shards = learners[rows], shards.take(rows)
        counts = self.sizes.counts[learners]
        indices = self._indices(learners, counts)
        row_ids, ahead = np.repeat(np.arange(learners.size), counts), self.shards[indices]
        returned = EMPTY_CACHE.union(shards.row_ids, shards.values).contains(row_ids, ahead)
        self.shards[indices] = ahead[np.lexsort((~returned, row_ids))]

    def samples_in(self, learners: Ints, dealt: RaggedArray) -> Ints:
        """Return the number of samples in the dealt shards of each learner."""
        return self.sizes.samples_in(learners, dealt)

    def _next(self, learners: Ints, counts: Ints) -> Ints:
        """Return the next `counts` shards of each learner, one learner after another."""
        numbers: Ints = self.shards[self._indices(learners, counts)]
        return numbers

    def _indices(self, learners: Ints, counts: Ints) -> Ints:
        """Return the indices of the next `counts` shards of each learner in `order`."""
        positions = concatenate_ranges(self.positions[learners], counts)
        sizes = np.repeat(self.sizes.counts[learners], counts)
        # No learner gets more than all of its shards, so positions wrap at most once.
        positions = np.where(positions < sizes, positions, positions - sizes)
        indices: Ints = np.repeat(self.sizes.starts[learners], counts) + positions
        return indices


def _extend(column: Ints, size: int) -> Ints:
    """Return the column with zeros added up to `size`."""
    return np.pad(column, (0, size - column.size))


def _shuffle(learners: Ints, samples: RaggedArray, seed: int) -> Ints:
    """Return the shard numbers of each device in a random order."""
    numbers = concatenate_ranges(np.zeros(len(samples), np.int64), samples.counts)
    keys = uniform(seed, "own", 0, learners[samples.row_ids], numbers)
    # The integer part of each key is its row, so one sort shuffles every row by itself.
    keys += samples.row_ids
    return numbers[np.argsort(keys)]
