"""Which samples make which shard, and in federated learning, which lie on which device.

In parallelized learning samples are shuffled once by the seed, so that every shard is like the
whole. In federated learning each device has as many shards as it has; `partition` says of what:
`iid` like the whole, `sorted` two stretches of the samples sorted by label, `dirichlet` labels in
proportions drawn for each device, the more unequal the smaller `alpha`.
"""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from melisma.errors import SettingError
from melisma.fleet.rng import generator
from melisma.fleet.task import PartitionSettings, Task

Ints = NDArray[np.int64]
# One sample in so many is held back, where learners score the model.
HOLDOUT_EVERY = 10


def shuffle_into_shards(samples: int, shard_samples: int, rng: Generator) -> list[Ints]:
    """All samples in random order, so many a shard; the last may be short."""
    return cut_into_shards(rng.permutation(samples).astype(np.int64), shard_samples)


def cut_into_shards(order: Ints, shard_samples: int) -> list[Ints]:
    """Samples in this order, so many a shard."""
    return [order[start : start + shard_samples] for start in range(0, order.size, shard_samples)]


def partition_by_sizes(
    labels: NDArray[Any], sizes: Ints, partition: PartitionSettings, rng: Generator
) -> list[Ints]:
    """For each device so many samples, none twice; what the sizes leave over is on none."""
    if partition.kind == "iid":
        return np.split(rng.permutation(len(labels))[: sizes.sum()], np.cumsum(sizes)[:-1])
    if labels.ndim > 1 or labels.dtype.kind == "f":
        raise SettingError(
            f"partition {partition.kind} goes by label; these are {labels.dtype}"
            f"{list(labels.shape[1:])}, expected one whole number a sample"
        )
    if partition.kind == "sorted":
        return _partition_sorted(labels, sizes, rng)
    return _partition_dirichlet(labels, sizes, partition.alpha, rng)


def partition_shards(task: Task, labels: NDArray[Any], shards: Ints) -> list[list[Ints]]:
    """For each device the samples of each of its shards, so many as lie there."""
    sizes = shards * task.shard_samples
    # The last shard of all may be short.
    sizes[-1] -= max(0, int(sizes.sum()) - len(labels))
    rng = generator(task.seed, "partition")
    devices = partition_by_sizes(labels, sizes, task.partition or PartitionSettings(), rng)
    return [cut_into_shards(samples, task.shard_samples) for samples in devices]


def holdout_mask(samples: int) -> NDArray[np.bool_]:
    """Which of the samples of a shard are not trained on, where learners score the model."""
    return np.equal(np.arange(samples) % HOLDOUT_EVERY, HOLDOUT_EVERY - 1)


def _partition_sorted(labels: NDArray[Any], sizes: Ints, rng: Generator) -> list[Ints]:
    """Two stretches for each device, from anywhere in what is sorted by label."""
    # Equal labels in random order, so that stretches differ from seed to seed.
    order = rng.permutation(labels.size)
    order = order[np.argsort(labels[order], kind="stable")][: sizes.sum()]
    halves = np.column_stack([sizes // 2, sizes - sizes // 2]).ravel()
    places = rng.permutation(halves.size)
    ends = np.cumsum(halves[places])
    stretches: list[Ints] = [np.empty(0, dtype=np.int64)] * halves.size
    for place, end in zip(places.tolist(), ends.tolist(), strict=True):
        stretches[place] = order[end - halves[place] : end]
    return [
        np.concatenate([stretches[2 * device], stretches[2 * device + 1]])
        for device in range(sizes.size)
    ]


def _partition_dirichlet(
    labels: NDArray[Any], sizes: Ints, alpha: float, rng: Generator
) -> list[Ints]:
    """Labels in drawn proportions; where a label has run out, in those of the others."""
    order = rng.permutation(labels.size)
    pools = [order[labels[order] == label] for label in np.unique(labels)]
    devices = []
    for size in sizes.tolist():
        wanted = rng.dirichlet(np.full(len(pools), alpha))
        mine: list[Ints] = []
        left = size
        while left:
            there = np.array([pool.size for pool in pools])
            chance = np.where(there > 0, np.maximum(wanted, 1e-12), 0.0)
            taken = np.minimum(rng.multinomial(left, chance / chance.sum()), there)
            mine += [pool[:count] for pool, count in zip(pools, taken, strict=True)]
            pools = [pool[count:] for pool, count in zip(pools, taken, strict=True)]
            left -= int(taken.sum())
        devices.append(rng.permutation(np.concatenate(mine)) if mine else np.empty(0, np.int64))
    return devices
