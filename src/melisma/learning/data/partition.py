"""The assignment of samples to shards and, in federated learning, to devices.

In parallelized learning samples are shuffled once by the seed, so that every shard has the
distribution of the whole set. In federated learning the fleet sets the number of shards of each
device, and `partition` their samples: `iid` draws them from the whole set, `sorted` takes two
ranges of the samples sorted by label, `dirichlet` draws label proportions for each device, which
are more unequal for smaller `alpha`; a function of the user returns the samples of each device.
"""

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from melisma.errors import SettingError
from melisma.fleet.array_types import Ints
from melisma.fleet.rng import generator
from melisma.fleet.task import PartitionSettings, Task
from melisma.user_code import describe_error, import_function, is_import_path

PARTITION_KEY = "partition.kind"
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
    if is_import_path(partition.kind):
        return _partition_by_user(labels, sizes, partition.kind, rng)
    if labels.ndim > 1 or labels.dtype.kind == "f":
        raise SettingError(
            f"partition {partition.kind} needs one integer label per sample; found "
            f"{labels.dtype}{list(labels.shape[1:])}; use partition.kind = 'iid'"
        )
    if partition.kind == "sorted":
        return _partition_sorted(labels, sizes, rng)
    return _partition_dirichlet(labels, sizes, partition.alpha, rng)


def partition_shards(task: Task, labels: NDArray[Any], sizes: Ints) -> list[list[Ints]]:
    """Return the samples of each shard of each device; `sizes` has the samples per device."""
    rng = generator(task.seed, "partition")
    devices = partition_by_sizes(labels, sizes, task.partition or PartitionSettings(), rng)
    return [cut_into_shards(samples, task.shard_samples) for samples in devices]


def holdout_mask(samples: int) -> NDArray[np.bool_]:
    """Return which samples of a shard are held out where learners evaluate the model."""
    return np.equal(np.arange(samples) % HOLDOUT_EVERY, HOLDOUT_EVERY - 1)


def _partition_by_user(labels: NDArray[Any], sizes: Ints, kind: str, rng: Generator) -> list[Ints]:
    """Return the checked result of the user's function: an array of samples for each device."""
    function = import_function(PARTITION_KEY, kind)
    try:
        devices = [np.asarray(rows) for rows in function(labels.copy(), sizes.copy(), rng)]
    except Exception as error:  # The function is the user's.
        raise SettingError(f"{PARTITION_KEY} {kind}: {describe_error(error)}") from error
    if problem := _find_problem(devices, sizes, len(labels)):
        raise SettingError(f"{PARTITION_KEY} {kind}: {problem}")
    return [rows.astype(np.int64) for rows in devices]


def _find_problem(devices: list[NDArray[Any]], sizes: Ints, samples: int) -> str | None:
    """Return what is wrong with the samples of the devices, or None."""
    if len(devices) != sizes.size:
        return f"returned samples of {len(devices)} devices; expected {sizes.size}"
    for device, (rows, size) in enumerate(zip(devices, sizes.tolist(), strict=True)):
        if rows.shape != (size,):
            return f"device {device} has samples {list(rows.shape)}; expected {size} numbers"
        if size and rows.dtype.kind not in "iu":
            return f"the samples of device {device} are {rows.dtype}; expected whole numbers"
    numbers = np.concatenate(devices)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < samples:
        return f"samples range from {numbers.min()} to {numbers.max()}; expected 0 to {samples - 1}"
    found, counts = np.unique(numbers, return_counts=True)
    if found.size < numbers.size:
        return f"sample {found[counts.argmax()]} is used twice; expected each at most once"
    return None


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
