from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from torch import nn

from melisma.errors import SettingError
from melisma.fleet.rng import generator
from melisma.fleet.task import Task, TaskSizes
from melisma.learning.data.datasets import DataSet, Split
from melisma.learning.data.partition import shuffle_into_shards
from melisma.learning.data.shards import encode_shard
from melisma.learning.given_objects import GivenObjects
from melisma.learning.loaded_task import load_sized_task, load_task
from melisma.learning.parameters import Layout
from melisma.learning.pytorch.models import build_model
from melisma.learning.pytorch.torch_trainer import TorchTrainer
from melisma.learning.task_sizes import limit_samples, with_actual_sizes
from melisma.learning.trainer_factory import STEP_OPS

OWN = Task(name="own", model="a:B", data="a:b", deadline_s=1.0, shard_samples=40)
TRAIN = Split(np.zeros((90, 3, 2), np.float32), np.zeros((90, 2), np.int16))
DATA = DataSet(TRAIN, TRAIN)
LAYOUT = Layout.from_arrays({"w": np.zeros((4, 5)), "b": np.zeros(3, np.float32)})


def test_missing_sizes_are_measured_on_data_and_model() -> None:
    task = with_actual_sizes(OWN, DATA, LAYOUT)
    assert (task.samples, task.shards, task.model_bytes) == (90, 3, 172)
    assert task.shard_bytes == 40 * (24 + 4)
    assert 0 < len(encode_shard(TRAIN)) - 90 * 28 < 100


def test_sizes_that_agree_with_data_and_model_may_be_stated() -> None:
    stated = TaskSizes(samples=90, sample_bytes=28, model_bytes=172, sample_ops=10.0)
    task = replace(OWN, sizes=stated)
    assert with_actual_sizes(task, limit_samples(task, DATA), LAYOUT).sizes == stated


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (
            TaskSizes(sample_bytes=8),
            (
                "sizes.sample_bytes is 8, but a sample of data a:b with its label has 28 bytes; "
                "use sample_bytes = 28, or leave it out"
            ),
        ),
        (
            TaskSizes(model_bytes=9),
            (
                "sizes.model_bytes is 9, but model a:B has 172 bytes; "
                "use model_bytes = 172, or leave it out"
            ),
        ),
    ],
)
def test_sizes_that_contradict_data_or_model_are_refused(stated: TaskSizes, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        with_actual_sizes(replace(OWN, sizes=stated), DATA, LAYOUT)
    assert str(caught.value) == message


def numbered(samples: int) -> DataSet:
    numbers = np.arange(samples)
    return DataSet(Split(numbers, numbers), Split(numbers[:3], numbers[:3]))


def test_samples_limits_the_data_to_the_first_of_the_shuffled_set() -> None:
    task = replace(OWN, sizes=TaskSizes(samples=80))
    result = limit_samples(task, numbered(200))
    shards = shuffle_into_shards(200, 40, generator(task.seed, "samples"))
    assert set(result.train.labels.tolist()) == set(np.concatenate(shards[:2]).tolist())
    assert result.train.samples.tolist() == result.train.labels.tolist()
    assert len(result.test) == 3


def test_the_limit_depends_on_the_seed_alone_and_can_be_applied_again() -> None:
    task = replace(OWN, sizes=TaskSizes(samples=80))
    once = limit_samples(task, numbered(200))
    assert limit_samples(task, numbered(200)).train.labels.tolist() == once.train.labels.tolist()
    assert limit_samples(task, once) is once
    other = limit_samples(replace(task, seed=2), numbered(200))
    assert other.train.labels.tolist() != once.train.labels.tolist()


def test_more_samples_than_the_data_set_has_are_refused() -> None:
    with pytest.raises(SettingError) as caught:
        limit_samples(replace(OWN, sizes=TaskSizes(samples=91)), DATA)
    assert str(caught.value) == (
        "sizes.samples is 91, but data a:b has 90 training samples; use samples of at most 90, or "
        "leave it out"
    )


def test_the_bytes_of_a_built_in_model_equal_those_used_for_planning() -> None:
    task = replace(OWN, model="twonn", data="mnist")
    images = Split(np.zeros((9, 28, 28), np.uint8), np.zeros(9, np.uint8))
    result = with_actual_sizes(
        task, DataSet(images, images), Layout.from_arrays(TorchTrainer(task).initial())
    )
    assert (result.model_bytes, result.shard_bytes) == (task.model_bytes, task.shard_bytes)


class ConvNet(nn.Sequential):
    """The built-in `convnet` as a model of the user."""

    def __init__(self) -> None:
        super().__init__(build_model("convnet"))


def test_operations_and_bytes_of_an_own_model_are_those_of_the_same_built_in_one() -> None:
    images = Split(np.zeros((9, 28, 28), np.uint8), np.zeros(9, np.uint8))
    objects = GivenObjects(ConvNet, DataSet(images, images))
    task = Task(name="own", deadline_s=1.0, passes=1, shard_samples=3)
    known = Task(name="a", model="convnet", data="mnist", deadline_s=1.0)
    own = load_task(task, None, objects)
    assert own.task.model_bytes == known.model_bytes
    assert own.task.sample_ops == known.sample_ops + STEP_OPS / task.batch


def test_stated_operations_are_kept() -> None:
    task = Task(
        name="own",
        model="tests.live.tiny_task:Linear",
        data="tests.live.tiny_task:blobs",
        deadline_s=1.0,
        shard_samples=50,
    )
    assert load_task(task).task.sample_ops == 6 * 5 + STEP_OPS / task.batch
    stated = replace(task, sizes=TaskSizes(sample_ops=7.0))
    assert load_task(stated).task.sample_ops == 7


def test_a_task_file_with_an_own_model_needs_no_sizes(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    names = 'model = "tests.live.tiny_task:Linear"\ndata = "tests.live.tiny_task:blobs"\n'
    path.write_text(f'[task]\nname = "own"\n{names}deadline_s = 1.0\nshard_samples = 50\n')
    task = load_sized_task(path)
    assert (task.samples, task.model_bytes, task.shards) == (600, 20, 12)
    assert task.sample_ops > 0
