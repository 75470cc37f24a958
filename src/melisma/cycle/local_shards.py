"""Shards that lie on the devices themselves: how many samples each has, and which come next.

Each learner's shards are in a random order of their own that is gone round and round. Shards go by
their number on the device.
"""

from dataclasses import dataclass, field

import numpy as np

from melisma.cycle.ragged import Ints, RaggedArray, blocks, concatenate_ranges
from melisma.fleet.rng import uniform


def _none() -> Ints:
    return np.empty(0, np.int64)


@dataclass(eq=False)
class LocalShards:
    """Columns by learner, and all shards one behind the other."""

    starts: Ints = field(default_factory=_none)
    counts: Ints = field(default_factory=_none)
    places: Ints = field(default_factory=_none)  # where each one's next stretch begins
    samples: Ints = field(default_factory=_none)  # of all shards, by their numbers
    order: Ints = field(default_factory=_none)  # numbers in the order in which they are dealt

    def add(self, learners: Ints, rows: RaggedArray, seed: int) -> None:
        """The samples of each shard on these devices; who comes again begins anew."""
        missing = int(learners.max()) + 1 - self.counts.size
        if missing > 0:
            self.starts, self.counts, self.places = (
                np.concatenate([column, np.zeros(missing, np.int64)])
                for column in (self.starts, self.counts, self.places)
            )
        self.starts[learners] = self.samples.size + rows.starts
        self.counts[learners], self.places[learners] = rows.counts, 0
        self.samples = np.concatenate([self.samples, rows.values])
        self.order = np.concatenate([self.order, _shuffled(learners, rows, seed)])

    def count_of(self, learners: Ints) -> Ints:
        """Return the number of shards of each learner; 0 where none were reported."""
        known = learners < self.counts.size
        counts: Ints = np.zeros(learners.size, np.int64)
        counts[known] = self.counts[learners[known]]
        return counts

    def deal(self, learners: Ints, counts: Ints) -> RaggedArray:
        """The next so many shards of each; none gets one twice."""
        sizes = self.counts[learners]
        if np.any(counts > sizes):
            raise ValueError("a learner cannot get more shards than lie on it")
        parts = [self._next(learners[at], counts[at]) for at in blocks(learners.size)]
        self.places[learners] = (self.places[learners] + counts) % sizes
        return RaggedArray(counts, np.concatenate([_none(), *parts]))

    def samples_in(self, learners: Ints, dealt: RaggedArray) -> Ints:
        """Distinct samples in what each was dealt."""
        return dealt.row_sums(
            self.samples[np.repeat(self.starts[learners], dealt.counts) + dealt.values]
        )

    def _next(self, learners: Ints, counts: Ints) -> Ints:
        nth = concatenate_ranges(self.places[learners], counts)
        sizes = np.repeat(self.counts[learners], counts)
        # Nobody gets more than all, so a stretch goes past the end of its row at most once.
        nth = np.where(nth < sizes, nth, nth - sizes)
        numbers: Ints = self.order[np.repeat(self.starts[learners], counts) + nth]
        return numbers


def _shuffled(learners: Ints, rows: RaggedArray, seed: int) -> Ints:
    """Numbers of shards on each device, in a random order for each."""
    numbers = concatenate_ranges(np.zeros(len(rows), np.int64), rows.counts)
    drawn = uniform(seed, "own", 0, learners[rows.row_ids], numbers)
    # Each row among its own: the whole part of what is sorted is the row.
    drawn += rows.row_ids
    return numbers[np.argsort(drawn)]
