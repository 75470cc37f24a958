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

# Data of three numbers, and a trainer that is done at once: what is tested here is the command.
MODULE = """
import numpy as np
from melisma.learning.trainer import Score, TrainingResult

def load(count=130, width=3):
    x, y = np.ones((count, width), np.float32), np.zeros(count, np.int64)
    return (x, y), (x, y)

class Counter:
    def __init__(self, task, width=3):
        self.batch, self.width = task.batch, width

    def initial(self):
        return {"w": np.zeros(self.width)}

    def train(self, parameters, samples, passes, rng, stop):
        w, visits = np.array(parameters["w"]), 0
        for _ in range(passes):
            for start in range(0, len(samples), self.batch):
                if stop():
                    return TrainingResult({"w": w}, visits, 0.0)
                part = samples.samples[start : start + self.batch]
                w, visits = w + part.sum(axis=0), visits + len(part)
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


def changed(folder: Path, text: str) -> str:
    path = folder / "OTHER.toml"
    path.write_text(TASK + text)
    return str(path)


def refused(*arguments: str | Path) -> str:
    with pytest.raises(SettingError) as caught:
        CliRunner().invoke(melisma, ["bench", *map(str, arguments)], catch_exceptions=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def printed(*arguments: str | Path) -> str:
    """In a process of its own: an emulated device sets threads before libraries are loaded."""
    code = "from melisma.cli import main; main()"
    command = [sys.executable, "-c", code, "bench", *map(str, arguments)]
    wide = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=wide).stdout


def check(part: dict[str, Any], counts: list[int], others: int) -> None:
    assert part["shards"] == others
    assert [prediction["shards"] for prediction in part["predictions"]] == counts
    for prediction in part["predictions"]:
        expected = 100 * (prediction["predicted_s"] / part["actual_s"] - 1)
        assert prediction["error_percent"] == pytest.approx(expected)


def test_this_device_is_predicted_and_checked(folder: Path) -> None:
    found = CliRunner().invoke(
        melisma,
        ["bench", str(folder / "TASK.toml"), "--shards", "3,1,3", "--json"],
        catch_exceptions=False,
    )
    report = json.loads(found.stdout)
    assert (report["task"], report["device"], report["share"]) == ("counting", None, None)
    check(report["train"], [1, 3], 10)
    check(report["download"], [1, 3], 10)
    for prediction in report["train"]["predictions"]:
        expected = prediction["setup_s"] + 10 * prediction["shard_s"]
        assert prediction["predicted_s"] == pytest.approx(expected)
    assert report["flops"]["flops"] > 1e6
    assert report["flops"]["predicted_s"] is None


@pytest.mark.alone
@pytest.mark.parametrize("learner", ["half", "timed"])
def test_an_emulated_device_is_as_slow_as_the_fleet_says(folder: Path, learner: str) -> None:
    files = (folder / "TASK.toml", "--fleet", folder / "FLEET.toml", "--learner", learner)
    report = json.loads(printed(*files, "--shards", "2,4", "--others", "6", "--json"))
    assert report["device"] == learner
    check(report["train"], [2, 4], 6)
    check(report["download"], [2, 4], 6)
    if learner == "half":
        assert report["share"] == 0.5
        # A link does not carry a shard sooner than its latency.
        assert report["download"]["actual_s"] >= 6 * 0.001
    flops = report["flops"]
    expected = 100 * (flops["predicted_s"] / report["train"]["actual_s"] - 1)
    assert flops["error_percent"] == pytest.approx(expected)


def test_the_page_shows_each_prediction(folder: Path) -> None:
    page = printed(folder / "TASK.toml", "--profile", "laptop", "--shards", "2")
    lines = page.splitlines()
    assert lines[0] == "counting on laptop, emulated: 2 of one core of this machine"
    assert "Training 11 other shards" in lines
    assert "Fetching 11 other shards" in lines
    assert sum(line.startswith("2 shards ") for line in lines) == 2
    assert any(line.startswith("FLOPS (") for line in lines)


def test_data_that_stay_on_devices_are_not_fetched(folder: Path) -> None:
    task = changed(folder, 'mode = "federated"\n')
    found = CliRunner().invoke(
        melisma, ["bench", task, "--shards", "1", "--json"], catch_exceptions=False
    )
    assert json.loads(found.stdout)["download"] is None


@pytest.mark.parametrize(
    ("options", "said"),
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
def test_options_that_cannot_work_are_named(folder: Path, options: list[str], said: str) -> None:
    assert refused(folder / "TASK.toml", *options).startswith(said)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("[task.model_args]\nwidth = 4\n", "samples are float32[3], labels"),
        ("[task.model_args]\ndepth = 4\n", "model counted:Counter with {'depth': 4}: "),
        ("[task.data_args]\nsize = 4\n", "data counted:load with {'size': 4}: "),
        ("dedline_s = 4\n", "unknown key dedline_s; did you mean deadline_s?"),
    ],
)
def test_a_task_that_cannot_work_is_named(folder: Path, keys: str, said: str) -> None:
    assert said in refused(changed(folder, keys), "--shards", "1")


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command sets for its own process is not for the tests that follow."""
    for name in bench.THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")


@pytest.mark.usefixtures("threads")
def test_devices_that_nobody_knows_are_named(folder: Path) -> None:
    task, fleet = folder / "TASK.toml", folder / "FLEET.toml"
    assert refused(task, "--profile", "phne").startswith("--profile is 'phne'; did you mean phone?")
    said = refused(task, "--fleet", fleet, "--learner", "pi")
    assert said == f"{fleet}: unknown learner 'pi'; expected one of half, timed"
    missing = refused(task, "--fleet", folder / "NONE.toml", "--learner", "pi")
    assert missing.startswith(f"{folder / 'NONE.toml'}: no such file")


def test_a_device_that_is_said_in_seconds_gets_the_share_that_takes_them(folder: Path) -> None:
    task = Task(name="a", model="a:b", data="a:b", deadline_s=1.0)
    timed = bench_device.select_device(task, str(folder / "FLEET.toml"), "timed", None)
    assert timed is not None
    assert timed.core_share(0.001 / task.shard_samples) == 0.5
    half = bench_device.select_device(task, str(folder / "FLEET.toml"), "half", None)
    assert half is not None
    assert half.core_share(7.0) == 0.5


def test_what_is_fetched_passes_the_link(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(bytes(100_000))
    slept: list[float] = []
    link = LinkShaper(8e6, 0.25, lambda: 0.0, slept.append)
    worker = axon.Worker(port=0, files=lambda name: tmp_path / name)
    with worker.start() as address, axon.connect(address) as remote:
        assert shard_fetcher(remote, [Shard(0, "abc", 100_000, 1)], link)(0) == 100_000
    assert slept[0] == 0.25
    assert slept[-1] == pytest.approx(0.1)
