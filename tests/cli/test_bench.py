import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from melisma import axon
from melisma.cli import bench, bench_device, melisma
from melisma.cli.bench_report import shard_fetcher
from melisma.errors import SettingError
from melisma.fleet.emulation import LinkShaper
from melisma.fleet.task import Task
from melisma.learning.data.shards import Shard
from tests.cli.command_line import MELISMA

# Samples of three numbers and a trainer that takes no time, as only the command is tested.
MODULE = """
import numpy as np
from melisma.learning.trainer import Score, TrainingResult

def load(count=130, width=3):
    x, y = np.ones((count, width), np.float32), np.zeros(count, np.int64)
    return (x, y), (x, y)

class Counter:
    def __init__(self, task, width=3):
        self.width = width

    def initial(self):
        return {"w": np.zeros(self.width)}

    def train(self, parameters, batches, rng):
        w, visits = np.array(parameters["w"]), 0
        for batch in batches:
            w, visits = w + batch.samples.sum(axis=0), visits + len(batch)
        return TrainingResult({"w": w}, visits, 0.0)

    def score(self, parameters, samples):
        return Score(len(samples), float((samples.samples @ parameters["w"]).sum()), 0)
"""
TASK = """
[task]
name = "counting"
model = "counted:Counter"
data = "counted:load"
deadline_s = 1.0
shard_samples = 10
batch = 2
"""
FLEET = """
[[fleet.learner]]
name = "half"
compute = 0.5
bandwidth_bps = 1e7
latency_s = 0.001
[[fleet.learner]]
name = "timed"
train_s = 0.002
bandwidth_bps = 1e7
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "counted.py").write_text(MODULE)
    (tmp_path / "TASK.toml").write_text(TASK)
    (tmp_path / "FLEET.toml").write_text(FLEET)
    yield tmp_path
    sys.modules.pop("counted", None)


def write_task(folder: Path, keys: str) -> str:
    path = folder / "OTHER.toml"
    path.write_text(TASK + keys)
    return str(path)


def refusal(*arguments: str | Path) -> str:
    with pytest.raises(SettingError) as caught:
        CliRunner().invoke(melisma, ["bench", *map(str, arguments)], catch_exceptions=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def bench_process(*arguments: str | Path) -> str:
    """Return the output of a process: emulation sets threads before libraries are loaded."""
    result = subprocess.run(
        [*MELISMA, "bench", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    return result.stdout


def check_predictions(measured: dict[str, Any], counts: list[int], others: int) -> None:
    assert measured["shards"] == others
    assert [prediction["shards"] for prediction in measured["predictions"]] == counts
    for prediction in measured["predictions"]:
        expected = 100 * (prediction["predicted_s"] / measured["actual_s"] - 1)
        assert prediction["error_percent"] == pytest.approx(expected)


def test_predictions_for_this_device_are_checked(folder: Path) -> None:
    result = CliRunner().invoke(
        melisma,
        ["bench", str(folder / "TASK.toml"), "--shards", "3,1,3", "--json"],
        catch_exceptions=False,
    )
    report = json.loads(result.stdout)
    assert (report["task"], report["device"], report["share"]) == ("counting", None, None)
    check_predictions(report["train"], [1, 3], 10)
    check_predictions(report["download"], [1, 3], 10)
    for prediction in report["train"]["predictions"]:
        expected = prediction["setup_s"] + 10 * prediction["shard_s"]
        assert prediction["predicted_s"] == pytest.approx(expected)
    assert report["flops"]["flops"] > 1e6
    assert report["flops"]["predicted_s"] is None


@pytest.mark.alone
@pytest.mark.parametrize("learner", ["half", "timed"])
def test_an_emulated_device_is_as_slow_as_the_fleet_says(folder: Path, learner: str) -> None:
    files = (folder / "TASK.toml", "--fleet", folder / "FLEET.toml", "--learner", learner)
    report = json.loads(bench_process(*files, "--shards", "2,4", "--others", "6", "--json"))
    assert report["device"] == learner
    check_predictions(report["train"], [2, 4], 6)
    check_predictions(report["download"], [2, 4], 6)
    if learner == "half":
        assert report["share"] == 0.5
        # A link does not carry a shard sooner than its latency.
        assert report["download"]["actual_s"] >= 6 * 0.001
    flops = report["flops"]
    expected = 100 * (flops["predicted_s"] / report["train"]["actual_s"] - 1)
    assert flops["error_percent"] == pytest.approx(expected)


def test_the_table_shows_each_prediction(folder: Path) -> None:
    table = bench_process(folder / "TASK.toml", "--profile", "laptop", "--shards", "2")
    lines = table.splitlines()
    assert lines[0] == "counting on laptop, emulated: 2 of one core of this machine"
    assert "Training 11 other shards" in lines
    assert "Fetching 11 other shards" in lines
    assert sum(line.startswith("2 shards ") for line in lines) == 2
    assert any(line.startswith("FLOPS (") for line in lines)


def test_data_of_a_federated_task_are_not_fetched(folder: Path) -> None:
    task = write_task(folder, 'mode = "federated"\n')
    result = CliRunner().invoke(
        melisma, ["bench", task, "--shards", "1", "--json"], catch_exceptions=False
    )
    assert json.loads(result.stdout)["download"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shards", "two"], "--shards is 'two'; expected numbers such as 2,4,8"),
        (["--shards", "2,,4"], "--shards is '2,,4'; expected numbers"),
        (["--shards", "0,4"], "--shards is '0,4'; expected numbers from 1 to 10000"),
        (["--shards", "13"], "--shards goes up to 13, but the data have 13 shards"),
        (["--others", "0"], "--others is 0; expected at least 1"),
        (["--fleet", "F.toml"], "--fleet and --learner go together"),
        (["--learner", "half"], "--fleet and --learner go together"),
        (
            ["--fleet", "F.toml", "--learner", "half", "--profile", "phone"],
            "--learner and --profile exclude each other",
        ),
    ],
)
def test_invalid_options_are_named(folder: Path, options: list[str], message: str) -> None:
    assert refusal(folder / "TASK.toml", *options).startswith(message)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("[task.model_args]\nwidth = 4\n", "samples are float32[3], labels"),
        ("[task.model_args]\ndepth = 4\n", "model counted:Counter with {'depth': 4}: "),
        ("[task.data_args]\nsize = 4\n", "data counted:load with {'size': 4}: "),
        ("dedline_s = 4\n", "unknown key dedline_s; did you mean deadline_s?"),
    ],
)
def test_an_invalid_task_is_refused_with_the_reason(folder: Path, keys: str, message: str) -> None:
    assert message in refusal(write_task(folder, keys), "--shards", "1")


@pytest.fixture
def restored_thread_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the environment variables that the command sets for its own process."""
    for name in bench.THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")


@pytest.mark.usefixtures("restored_thread_variables")
def test_unknown_devices_are_named(folder: Path) -> None:
    task, fleet = folder / "TASK.toml", folder / "FLEET.toml"
    assert refusal(task, "--profile", "phne").startswith("--profile is 'phne'; did you mean phone?")
    unknown = refusal(task, "--fleet", fleet, "--learner", "pi")
    assert unknown == f"{fleet}: unknown learner 'pi'; expected one of half, timed"
    missing = refusal(task, "--fleet", folder / "NONE.toml", "--learner", "pi")
    assert missing.startswith(f"{folder / 'NONE.toml'}: no such file")


def test_a_device_with_a_training_time_gets_the_share_that_takes_it(folder: Path) -> None:
    task = Task(name="a", model="a:b", data="a:b", deadline_s=1.0)
    timed = bench_device.select_device(task, str(folder / "FLEET.toml"), "timed", None)
    assert timed is not None
    assert timed.core_share(0.001 / task.shard_samples) == 0.5
    half = bench_device.select_device(task, str(folder / "FLEET.toml"), "half", None)
    assert half is not None
    assert half.core_share(7.0) == 0.5


def test_shards_are_fetched_through_the_link(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(bytes(100_000))
    slept: list[float] = []
    link = LinkShaper(8e6, 0.25, lambda: 0.0, slept.append)
    worker = axon.Worker(port=0, files=lambda name, _: tmp_path / name)
    with worker.start() as address, axon.connect(address) as remote:
        assert shard_fetcher(remote, [Shard(0, "abc", 100_000, 1)], link)(0) == 100_000
    assert slept[0] == 0.25
    assert slept[-1] == pytest.approx(0.1)
