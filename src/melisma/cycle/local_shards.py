"""Shards on the devices in federated learning: their samples, and which ones come next.

The shards of each learner are in a random order of their own that is dealt round and round. A shard
is a number on its device.
"""

from dataclasses import dataclass, field

import numpy as np

from melisma.cycle.ragged import RaggedArray, blocks, concatenate_ranges
from melisma.fleet.array_types import Ints
from melisma.fleet.rng import uniform


def _no_ints() -> Ints:
    return np.empty(0, np.int64)


@dataclass(eq=False)
class LocalShards:
    """Columns by learner, and the shards of all learners one after another."""

    starts: Ints = field(default_factory=_no_ints)  # first shard of each learner
    counts: Ints = field(default_factory=_no_ints)  # shards of each learner
    positions: Ints = field(default_factory=_no_ints)  # next shard in the order of each learner
    samples: Ints = field(default_factory=_no_ints)  # of all shards, by number
    order: Ints = field(default_factory=_no_ints)  # numbers in the order of dealing

    def add(self, learners: Ints, samples: RaggedArray, seed: int) -> None:
        """Set the samples of each shard of learners; one that joins again starts over."""
        missing = int(learners.max()) + 1 - self.counts.size
        if missing > 0:
            self.starts, self.counts, self.positions = (
                np.concatenate([column, np.zeros(missing, np.int64)])
                for column in (self.starts, self.counts, self.positions)
            )
        self.starts[learners] = self.samples.size + samples.starts
        self.counts[learners], self.positions[learners] = samples.counts, 0
        self.samples = np.concatenate([self.samples, samples.values])
        self.order = np.concatenate([self.order, _shuffle(learners, samples, seed)])

    def count_of(self, learners: Ints) -> Ints:
        """Return the number of shards of each learner; 0 where none were reported."""
        known = learners < self.counts.size
        counts: Ints = np.zeros(learners.size, np.int64)
        counts[known] = self.counts[learners[known]]
        return counts

    def deal(self, learners: Ints, counts: Ints) -> RaggedArray:
        """Deal the next `counts` shards of each learner, none of them twice."""
        sizes = self.counts[learners]
        if np.any(counts > sizes):
            raise ValueError("a learner cannot get more shards than are on its device")
        parts = [self._next(learners[rows], counts[rows]) for rows in blocks(learners.size)]
        self.positions[learners] = (self.positions[learners] + counts) % sizes
        return RaggedArray(counts, np.concatenate([_no_ints(), *parts]))

    def samples_in(self, learners: Ints, dealt: RaggedArray) -> Ints:
        """Return the number of samples in the dealt shards of each learner."""
        shards = np.repeat(self.starts[learners], dealt.counts) + dealt.values
        return dealt.row_sums(self.samples[shards])

    def _next(self, learners: Ints, counts: Ints) -> Ints:
        positions = concatenate_ranges(self.positions[learners], counts)
        sizes = np.repeat(self.counts[learners], counts)
        # No learner gets more than all of its shards, so positions wrap at most once.
        positions = np.where(positions < sizes, positions, positions - sizes)
        numbers: Ints = self.order[np.repeat(self.starts[learners], counts) + positions]
        return numbers


def _shuffle(learners: Ints, samples: RaggedArray, seed: int) -> Ints:
    """Return the shard numbers of each device in a random order."""
    numbers = concatenate_ranges(np.zeros(len(samples), np.int64), samples.counts)
    keys = uniform(seed, "own", 0, learners[samples.row_ids], numbers)
    # The integer part of each key is its row, so one sort shuffles every row by itself.
    keys += samples.row_ids
    return numbers[np.argsort(keys)]
