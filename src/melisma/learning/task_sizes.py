"""The sizes of a task that trains: `samples` limits its data; the others are measured."""

import numpy as np
from msgspec.structs import replace

from melisma.errors import SettingError
from melisma.fleet.rng import generator
from melisma.fleet.task import Task, TaskSizes
from melisma.learning.data.datasets import DataSet, Split
from melisma.learning.parameters import Layout


def limit_samples(task: Task, data: DataSet) -> DataSet:
    """Return the training data: the first `sizes.samples` of it, shuffled by the seed of the task.

    Without `sizes.samples` that is all data. `SettingError` if the data has fewer samples.
    """
    samples, available = task.sizes.samples, len(data.train)
    if samples is None or samples == available:
        return data
    if samples > available:
        raise SettingError(
            f"sizes.samples is {samples}, but data {task.data} has {available} training samples; "
            f"use samples of at most {available}, or leave it out"
        )
    # The shuffle from which shards are cut, so that the data is that of the first shards.
    chosen = np.sort(generator(task.seed, "samples").permutation(available)[:samples])
    return DataSet(Split(data.train.samples[chosen], data.train.labels[chosen]), data.test)


def with_actual_sizes(
    task: Task, data: DataSet, layout: Layout, sample_ops: float | None = None
) -> Task:
    """Return the task with the sizes of this data and of parameters with this layout.

    Raise `SettingError` if the task states other sizes. `sample_ops` are those of its model, unless
    the task states others.
    """
    measured = {
        "sample_bytes": (sample_bytes(data.train), f"a sample of data {task.data} with its label"),
        "model_bytes": (layout.size_bytes, f"model {task.model}"),
    }
    for key, (size, description) in measured.items():
        stated = getattr(task.sizes, key)
        if stated not in (None, size):
            raise SettingError(
                f"sizes.{key} is {stated}, but {description} has {size} bytes; "
                f"use {key} = {size}, or leave it out"
            )
    sizes = TaskSizes(
        samples=len(data.train),
        sample_bytes=measured["sample_bytes"][0],
        model_bytes=measured["model_bytes"][0],
        sample_ops=task.sizes.sample_ops or sample_ops,
    )
    return replace(task, sizes=sizes)


def sample_bytes(split: Split) -> int:
    """Bytes of one sample with its label."""
    return split.samples[:1].nbytes + split.labels[:1].nbytes
