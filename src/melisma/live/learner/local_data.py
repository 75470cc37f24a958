"""The data on a device in federated learning: shards to train, and samples held back.

It is a folder of shards, a folder with `samples.npy` and `labels.npy`, or a `module:function` of
the device's owner, which returns samples and labels or the parts of a data set. It never leaves the
device, nor does an error message that could quote it.
"""

from pathlib import Path
from typing import Any

import numpy as np

from melisma.errors import DataError, SettingError
from melisma.fleet.rng import generator
from melisma.fleet.task import Task
from melisma.learning.data.datasets import DataSet, Split, to_dataset
from melisma.learning.data.partition import holdout_mask
from melisma.learning.data.shards import decode_shard
from melisma.learning.trainer import Trainer
from melisma.learning.trainer_factory import check_model_fits
from melisma.user_code import (
    DEVICE_SEARCHED,
    call_user_code,
    import_object,
    is_import_path,
)

ARRAY_FILES = ("samples.npy", "labels.npy")


def read_local_data(
    source: str | None, task: Task, learner: int, *, hold_back: bool
) -> tuple[list[Split], list[Split]]:
    """Return the shards to train on and the samples held back; without `hold_back` none.

    Samples that are not in shards are shuffled and divided by `shard_samples`. The test samples of
    a function, if there are any, are held back, else a tenth of each shard.
    """
    if source is None:
        return [], []
    try:
        shards, test = _read(source, task, learner)
    except (DataError, SettingError, OSError, ValueError) as error:
        raise DataError(f"local data {source}: {error}") from error
    if not shards:
        raise DataError(f"local data {source}: found no shards and no arrays")
    if not hold_back:
        return shards, []
    if len(test):
        return shards, [test]
    trained = [_select(shard, held=False) for shard in shards]
    return trained, [_select(shard, held=True) for shard in shards]


def check_local_data(source: str, trainer: Trainer, splits: list[Split]) -> None:
    """Raise `DataError` with both shapes unless the model of the task accepts the samples.

    One shard of each shape is tried, and those with the smallest and the largest label.
    """
    splits = [split for split in splits if split.labels.size]
    if not splits:
        return
    tried = {(split.samples.shape[1:], split.labels.shape[1:]): split for split in splits}
    lowest = min(splits, key=lambda split: split.labels.min())
    highest = max(splits, key=lambda split: split.labels.max())
    for split in (*tried.values(), lowest, highest):
        try:
            check_model_fits(trainer, DataSet(split, _none_of(split)))
        except SettingError as error:
            # No SettingError: its message would be sent to the orchestrator, and may quote samples.
            raise DataError(f"local data {source}: {error}") from error


def _read(source: str, task: Task, learner: int) -> tuple[list[Split], Split]:
    """Return the shards, and test samples if the source has them."""
    if is_import_path(source) and not Path(source).is_dir():
        data = _call(source)
        return _into_shards(data.train, task, learner), data.test
    folder = Path(source)
    if all((folder / name).is_file() for name in ARRAY_FILES):
        arrays = [np.load(folder / name, allow_pickle=False) for name in ARRAY_FILES]
        split = Split(*arrays)
        return _into_shards(split, task, learner), _none_of(split)
    shards = [decode_shard(path.read_bytes()) for path in sorted(folder.iterdir())]
    return shards, _none_of(shards[0]) if shards else Split(np.empty(0), np.empty(0))


def _call(source: str) -> DataSet:
    import_object("local data", source, DEVICE_SEARCHED)
    returned = call_user_code("local data", source)
    if isinstance(returned, tuple | list) and len(returned) == 2 and not _is_nested(returned):
        samples, labels = (np.asarray(array) for array in returned)
        returned = DataSet(Split(samples, labels), _none_of(Split(samples, labels)))
    return to_dataset(source, returned)


def _is_nested(pair: Any) -> bool:
    """Whether both items are pairs of arrays themselves."""
    return all(isinstance(item, tuple | list) and len(item) == 2 for item in pair)


def _into_shards(data: Split, task: Task, learner: int) -> list[Split]:
    order = generator(task.seed, "local data", learner=learner).permutation(len(data))
    size = task.shard_samples
    return [data.take(order[start : start + size]) for start in range(0, len(data), size)]


def _none_of(split: Split) -> Split:
    return Split(split.samples[:0], split.labels[:0])


def _select(shard: Split, *, held: bool) -> Split:
    mask = holdout_mask(len(shard)) == held
    return Split(shard.samples[mask], shard.labels[mask])
