"""The number of samples in each shard of the orchestrator, or on each device."""

import numpy as np

from melisma.cycle.ragged import RaggedArray, concatenate_ranges
from melisma.fleet.array_types import Ints


class ShardSizes:
    """Samples by shard number; each device has numbers of its own in federated learning."""

    def __init__(self, central: Ints) -> None:
        self._samples = central
        self._starts = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int64)

    def add(self, learners: Ints, samples: RaggedArray) -> None:
        """Set the samples of each shard on devices; a learner that joins again replaces its own."""
        self._make_room(int(learners.max()) + 1)
        new = np.flatnonzero(self._counts[learners] != samples.counts)
        changed, counts = learners[new], samples.counts[new]
        self._starts[changed] = self._samples.size + np.cumsum(counts) - counts
        self._counts[changed] = counts
        room = np.zeros(int(counts.sum()), np.int64)
        self._samples = np.concatenate([self._samples, room])
        self._samples[concatenate_ranges(self._starts[learners], samples.counts)] = samples.values

    def samples_in(self, learners: Ints, dealt: RaggedArray) -> Ints:
        """Return the number of samples in the dealt shards of each learner."""
        self._make_room(int(learners.max(initial=-1)) + 1)
        samples = np.zeros(len(dealt), np.int64)
        for rows, part in dealt.blocks():
            shards = np.repeat(self._starts[learners[rows]], part.counts) + part.values
            samples[rows] = part.row_sums(self._samples[shards])
        return samples

    def _make_room(self, count: int) -> None:
        missing = count - self._starts.size
        if missing > 0:
            self._starts = np.pad(self._starts, (0, missing))
            self._counts = np.pad(self._counts, (0, missing))
