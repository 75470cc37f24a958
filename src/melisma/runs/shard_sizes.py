"""How many samples the shards of learners hold: those of the orchestrator, or those on devices."""

import numpy as np

from melisma.cycle.ragged import Ints, RaggedArray, concatenate_ranges


class ShardSizes:
    """Shards go by number: of all those of the orchestrator, or of those on each device."""

    def __init__(self, central: Ints) -> None:
        self._samples = central
        self._starts = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int64)

    def add(self, learners: Ints, own: RaggedArray) -> None:
        """The samples of each shard on these devices; who comes again says them anew."""
        self._make_room(int(learners.max()) + 1)
        new = np.flatnonzero(self._counts[learners] != own.counts)
        who, counts = learners[new], own.counts[new]
        self._starts[who] = self._samples.size + np.cumsum(counts) - counts
        self._counts[who] = counts
        room = np.zeros(int(counts.sum()), np.int64)
        self._samples = np.concatenate([self._samples, room])
        self._samples[concatenate_ranges(self._starts[learners], own.counts)] = own.values

    def samples_in(self, learners: Ints, dealt: RaggedArray) -> Ints:
        """Distinct samples in what each was dealt."""
        self._make_room(int(learners.max(initial=-1)) + 1)
        samples = np.zeros(len(dealt), np.int64)
        for some, part in dealt.blocks():
            places = np.repeat(self._starts[learners[some]], part.counts) + part.values
            samples[some] = part.row_sums(self._samples[places])
        return samples

    def _make_room(self, count: int) -> None:
        missing = count - self._starts.size
        if missing > 0:
            self._starts = np.pad(self._starts, (0, missing))
            self._counts = np.pad(self._counts, (0, missing))
