"""The same task on the same fleet, live and in virtual time: the same decisions, the same model."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from melisma.cycle import commands
from melisma.fleet.fleet_builder import muster
from melisma.fleet.fleet_file import FleetTable
from melisma.fleet.task import Task
from melisma.live.training import train
from melisma.runs.report import Report
from melisma.runs.trace import read_trace
from melisma.simulation.simulation import simulate
from tests.live import tiny_task

# Slow enough that the speed of this machine decides nothing, and with room in the deadline.
LEARNERS: list[dict[str, Any]] = [
    {"name": "tortoise", "samples_per_s": 1500.0, "bandwidth_bps": 20e6, "latency_s": 0.002},
    {"name": "hare", "samples_per_s": 4000.0, "bandwidth_bps": 80e6, "latency_s": 0.001},
]
TASK = {
    "name": "blobs",
    "model": "tiny_task:Linear",
    "data": "tiny_task:blobs",
    "scheme": "equal",
    "passes": 2,
    "deadline_s": 20.0,
    "cycles": 3,
    "shard_samples": 50,
    "optimizer": {"name": "sgd", "lr": 0.3},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(tiny_task.__file__, tmp_path / "tiny_task.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def dispatched(report: Report) -> list[Any]:
    """Who got which shards, for how many passes, in each cycle."""
    assert report.trace_path is not None
    given = []
    for step in read_trace(report.trace_path):
        for command in step.commands:
            if isinstance(command, commands.Dispatch):
                shards = [row.tolist() for row in command.shards]
                given.append((command.learners.tolist(), shards, command.passes.tolist()))
    return given


@pytest.mark.parametrize("mode", ["parallelized", "federated"])
def test_live_and_simulated_runs_come_to_the_same(mode: str, place: Path) -> None:
    task = msgspec.convert(TASK | {"mode": mode}, Task)
    fleet = muster(msgspec.convert({"learner": LEARNERS}, FleetTable))
    live = train(task, fleet, folder=place / "live")
    simulated = simulate(task, fleet, folder=place / "simulated")
    assert dispatched(live) == dispatched(simulated)
    weights = [
        [[each.weight for each in c.assignments] for c in r.cycles] for r in (live, simulated)
    ]
    assert weights[0] == weights[1]
    assert live.model is not None
    assert simulated.model is not None
    one, other = load_file(live.model), load_file(simulated.model)
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], rtol=1e-6, atol=1e-7)
    assert live.accuracy == simulated.accuracy
