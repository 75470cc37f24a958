import numpy as np
from msgspec.structs import replace

from melisma.fleet.task import Sizes, Task
from melisma.learning.data.datasets import DataSet, Split
from melisma.learning.data.shards import encoded
from melisma.learning.parameters import Layout
from melisma.learning.pytorch.torch_trainer import TorchTrainer
from melisma.learning.task_sizes import sized

OWN = Task(name="own", model="a:B", data="a:b", deadline_s=1.0, shard_samples=40)
TRAIN = Split(np.zeros((90, 3, 2), np.float32), np.zeros((90, 2), np.int16))
DATA = DataSet(TRAIN, TRAIN)
LAYOUT = Layout.of({"w": np.zeros((4, 5)), "b": np.zeros(3, np.float32)})


def test_what_a_file_does_not_say_is_told_by_data_and_model() -> None:
    task = sized(OWN, DATA, LAYOUT)
    assert (task.samples, task.shards, task.model_bytes) == (90, 3, 172)
    assert task.shard_bytes == 40 * (24 + 4)
    assert 0 < len(encoded(TRAIN)) - 90 * 28 < 100


def test_what_is_there_counts_whatever_a_file_says_for_planning() -> None:
    said = Sizes(samples=7, sample_bytes=8, model_bytes=9, sample_ops=10.0)
    found = sized(replace(OWN, sizes=said), DATA, LAYOUT)
    assert found.sizes == Sizes(samples=90, sample_bytes=28, model_bytes=172, sample_ops=10.0)
    assert found.shards == 3


def test_a_model_that_we_ship_weighs_what_planning_counts_with() -> None:
    task = replace(OWN, model="twonn", data="mnist")
    images = Split(np.zeros((9, 28, 28), np.uint8), np.zeros(9, np.uint8))
    found = sized(task, DataSet(images, images), Layout.of(TorchTrainer(task).initial()))
    assert (found.model_bytes, found.shard_bytes) == (task.model_bytes, task.shard_bytes)
