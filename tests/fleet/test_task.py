"""A task: its defaults, its sizes and its shards."""

from math import ceil
from pathlib import Path

import pytest

from melisma.fleet.files.task_file import read_task
from melisma.fleet.task import Task
from tests.fleet.task_texts import write_task


def test_four_keys_are_enough(tmp_path: Path) -> None:
    task = read_task(write_task(tmp_path))
    assert (task.mode, task.scheme, task.passes) == ("parallelized", "dab", None)
    assert (task.shard_samples, task.batch, task.caution) == (500, 32, 0.9)
    assert (task.samples, task.shards, task.shard_bytes) == (60_000, 120, 785 * 500)
    assert (task.model_bytes, task.sample_ops) == (4 * 40_480, 6 * 40_400)


def test_the_last_shard_may_be_short(tmp_path: Path) -> None:
    assert read_task(write_task(tmp_path, shard_samples="7000")).shards == 9
    assert read_task(write_task(tmp_path, shard_samples="60_001")).shards == 1


@pytest.mark.parametrize("shards", [1, 2, 59, 119, 120, 121, 250, 7777, 60_000])
def test_the_setting_for_a_number_of_shards_is_the_largest_that_suffices(
    tmp_path: Path, shards: int
) -> None:
    task = read_task(write_task(tmp_path))
    key, value = task.shards_setting(shards)
    if shards > task.shards:
        assert key == "shard_samples"
        assert ceil(task.samples / value) >= shards > ceil(task.samples / (value + 1))
    else:
        assert (key, ceil(value / task.shard_samples)) == ("samples", shards)
        assert ceil((value + 1) / task.shard_samples) > shards


def test_sizes_override_those_of_known_names(tmp_path: Path) -> None:
    sizes = "{ samples = 1001, sample_bytes = 3, model_bytes = 5, sample_ops = 7 }"
    task = read_task(write_task(tmp_path, model='"my.net:Net"', data='"my.data:load"', sizes=sizes))
    assert (task.shards, task.shard_bytes) == (3, 1500)
    assert (task.model_bytes, task.sample_ops) == (5, 7)


def test_a_task_created_in_python_is_checked_too() -> None:
    with pytest.raises(ValueError, match="name is empty"):
        Task(name="", model="twonn", data="mnist", deadline_s=1.0)
