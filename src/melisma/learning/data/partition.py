"""The assignment of samples to shards and, in federated learning, to devices.

In parallelized learning samples are shuffled once by the seed, so that every shard has the
distribution of the whole set. In federated learning the fleet sets the number of shards of each
device, and `partition` their samples: `iid` draws them from the whole set, `sorted` takes two
ranges of the samples sorted by label, `dirichlet` draws label proportions for each device, which
are more unequal for smaller `alpha`.
"""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from melisma.errors import SettingError
from melisma.fleet.array_types import Ints
from melisma.fleet.rng import generator
from melisma.fleet.task import PartitionSettings, Task

HOLDOUT_EVERY = 10  # one sample in ten is held out where learners evaluate the model


def shuffle_into_shards(samples: int, shard_samples: int, rng: Generator) -> list[Ints]:
    """Return all samples in random order, cut into shards; the last may be short."""
    return cut_into_shards(rng.permutation(samples).astype(np.int64), shard_samples)


def cut_into_shards(order: Ints, shard_samples: int) -> list[Ints]:
    """Cut the samples into shards, in this order."""
    return [order[start : start + shard_samples] for start in range(0, order.size, shard_samples)]


def partition_by_sizes(
    labels: NDArray[Any], sizes: Ints, partition: PartitionSettings, rng: Generator
) -> list[Ints]:
    """Return `sizes[k]` samples for each device k; no sample is on two devices."""
    if partition.kind == "iid":
        return np.split(rng.permutation(len(labels))[: sizes.sum()], np.cumsum(sizes)[:-1])
    if labels.ndim > 1 or labels.dtype.kind == "f":
        raise SettingError(
            f"partition {partition.kind} needs one integer label per sample; found "
            f"{labels.dtype}{list(labels.shape[1:])}; use partition.kind = 'iid'"
        )
    if partition.kind == "sorted":
        return _partition_sorted(labels, sizes, rng)
    return _partition_dirichlet(labels, sizes, partition.alpha, rng)


def partition_shards(task: Task, labels: NDArray[Any], shards: Ints) -> list[list[Ints]]:
    """Return the samples of each shard of each device; `shards` has the number per device."""
    sizes = shards * task.shard_samples
    # The last shard of the last device may be short.
    sizes[-1] -= max(0, int(sizes.sum()) - len(labels))
    rng = generator(task.seed, "partition")
    devices = partition_by_sizes(labels, sizes, task.partition or PartitionSettings(), rng)
    return [cut_into_shards(samples, task.shard_samples) for samples in devices]


def holdout_mask(samples: int) -> NDArray[np.bool_]:
    """Return which samples of a shard are held out where learners evaluate the model."""
    return np.equal(np.arange(samples) % HOLDOUT_EVERY, HOLDOUT_EVERY - 1)


def _partition_sorted(labels: NDArray[Any], sizes: Ints, rng: Generator) -> list[Ints]:
    """Assign two ranges of the samples sorted by label to each device, at random."""
    # Equal labels in random order, so that ranges differ from seed to seed.
    order = rng.permutation(labels.size)
    order = order[np.argsort(labels[order], kind="stable")][: sizes.sum()]
    halves = np.column_stack([sizes // 2, sizes - sizes // 2]).ravel()
    half_order = rng.permutation(halves.size)
    ends = np.cumsum(halves[half_order])
    ranges: list[Ints] = [np.empty(0, dtype=np.int64)] * halves.size
    for half, end in zip(half_order.tolist(), ends.tolist(), strict=True):
        ranges[half] = order[end - halves[half] : end]
    return [
        np.concatenate([ranges[2 * device], ranges[2 * device + 1]]) for device in range(sizes.size)
    ]


def _partition_dirichlet(
    labels: NDArray[Any], sizes: Ints, alpha: float, rng: Generator
) -> list[Ints]:
    """Draw label proportions for each device; replace exhausted labels by the others."""
    order = rng.permutation(labels.size)
    pools = [order[labels[order] == label] for label in np.unique(labels)]
    devices = []
    for size in sizes.tolist():
        proportions = rng.dirichlet(np.full(len(pools), alpha))
        parts: list[Ints] = []
        missing = size
        while missing:
            available = np.array([pool.size for pool in pools])
            weights = np.where(available > 0, np.maximum(proportions, 1e-12), 0.0)
            counts = np.minimum(rng.multinomial(missing, weights / weights.sum()), available)
            parts += [pool[:count] for pool, count in zip(pools, counts, strict=True)]
            pools = [pool[count:] for pool, count in zip(pools, counts, strict=True)]
            missing -= int(counts.sum())
        devices.append(rng.permutation(np.concatenate(parts)) if parts else np.empty(0, np.int64))
    return devices
