"""Which samples are in which shard: as they are dealt, and as they lie on devices."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from melisma.cycle.ragged import NO_ROWS, Ints, RaggedArray
from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator
from melisma.learning.data.partition import held_back, owned, shuffled_shards
from melisma.learning.loaded_task import Material


@dataclass(frozen=True, eq=False)
class SampleIndex:
    """The samples of each shard, with those of one device behind those of another.

    In parallelized learning there are no devices, and `own` is empty; `held_back` are samples that
    nobody trains on.
    """

    parts: list[Ints]
    local_sizes: RaggedArray
    held_back: Ints

    @classmethod
    def from_task(cls, material: Material, fleet: Fleet) -> "SampleIndex":
        """As it is live, sample by sample."""
        task, data = material.task, material.data
        if task.mode == "parallelized":
            rng = generator(task.seed, "samples")
            parts = shuffled_shards(len(data.train), task.shard_samples, rng)
            return cls(parts, NO_ROWS, np.empty(0, np.int64))
        devices = owned(task, data.train.labels, fleet.own_shards(task))
        parts, back = [part for shards in devices for part in shards], []
        if not len(data.test):
            back = [part[held_back(part.size)] for part in parts]
            parts = [part[~held_back(part.size)] for part in parts]
        counts = np.array([len(shards) for shards in devices])
        own = RaggedArray(counts, np.array([part.size for part in parts]))
        return cls(parts, own, np.concatenate([np.empty(0, np.int64), *back]))

    @cached_property
    def _starts(self) -> Ints:
        return self.local_sizes.starts

    def samples(self, learner: int, shards: Ints) -> Ints:
        """Those of these shards; in federated learning of those that lie on the learner."""
        first = int(self._starts[learner]) if len(self.local_sizes) else 0
        return np.concatenate([self.parts[first + shard] for shard in shards.tolist()])
