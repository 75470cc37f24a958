"""The samples in each shard, in the pool of the orchestrator or on the devices."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from melisma.cycle.ragged import NO_ROWS, RaggedArray
from melisma.fleet.array_types import NO_INTS, Ints
from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator
from melisma.learning.data.partition import holdout_mask, partition_shards, shuffle_into_shards
from melisma.learning.loaded_task import LoadedTask


@dataclass(frozen=True, eq=False)
class SampleIndex:
    """The samples of each shard, device after device; `held_back` are kept for evaluation.

    In parallelized learning shards belong to no device, and `local_shard_samples` is empty.
    """

    shards: list[Ints]
    local_shard_samples: RaggedArray
    held_back: Ints

    @classmethod
    def from_task(cls, loaded: LoadedTask, fleet: Fleet) -> "SampleIndex":
        """Assign samples to shards exactly as live runs do."""
        task, data = loaded.task, loaded.data
        sizes = fleet.local_samples(task)
        if task.mode == "parallelized":
            rng = generator(task.seed, "samples")
            shards = shuffle_into_shards(len(data.train), task.shard_samples, rng)
            return cls(shards, NO_ROWS, NO_INTS)
        devices = partition_shards(task, data.train.labels, sizes)
        shards, kept_back = [shard for device in devices for shard in device], []
        if not len(data.test):
            kept_back = [shard[holdout_mask(shard.size)] for shard in shards]
            shards = [shard[~holdout_mask(shard.size)] for shard in shards]
        counts = np.array([len(device) for device in devices])
        local_shard_samples = RaggedArray(counts, np.array([shard.size for shard in shards]))
        return cls(shards, local_shard_samples, np.concatenate([NO_INTS, *kept_back]))

    @cached_property
    def _starts(self) -> Ints:
        return self.local_shard_samples.starts

    def samples(self, learner: int, shards: Ints) -> Ints:
        """Return the samples of shards; in federated learning, of shards on that learner."""
        first = int(self._starts[learner]) if len(self.local_shard_samples) else 0
        return np.concatenate([self.shards[first + shard] for shard in shards.tolist()])
