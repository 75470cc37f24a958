"""A live run and a simulated run of the same task and fleet make the same decisions and model."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from melisma.cycle import commands
from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.files.fleet_file import FleetTable
from melisma.fleet.task import PAPER_RULES, Task
from melisma.live.training import train
from melisma.runs.report import Report
from melisma.runs.trace import read_trace
from melisma.simulation.simulation import simulate

# Slow devices and a long deadline, so that the speed of this machine does not matter.
LEARNERS: list[dict[str, Any]] = [
    {"name": "tortoise", "samples_per_s": 1500.0, "bandwidth_bps": 20e6, "latency_s": 0.002},
    {"name": "hare", "samples_per_s": 4000.0, "bandwidth_bps": 80e6, "latency_s": 0.001},
]
# With extension, the visits of a cycle depend on its exact duration.
TASK = {
    **PAPER_RULES,
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


def list_dispatches(report: Report) -> list[Any]:
    """Return learners, shards and passes of each dispatch."""
    assert report.trace_path is not None
    dispatches = []
    for step in read_trace(report.trace_path):
        for command in step.commands:
            if isinstance(command, commands.Dispatch):
                shards = [row.tolist() for row in command.shards]
                dispatches.append((command.learners.tolist(), shards, command.passes.tolist()))
    return dispatches


@pytest.mark.parametrize("mode", ["parallelized", "federated"])
def test_live_and_simulated_runs_give_the_same_model(mode: str, work_folder: Path) -> None:
    task = msgspec.convert(TASK | {"mode": mode}, Task)
    fleet = build_fleet(msgspec.convert({"learner": LEARNERS}, FleetTable))
    live = train(task, fleet, folder=work_folder / "live")
    simulated = simulate(task, fleet, folder=work_folder / "simulated")
    assert list_dispatches(live) == list_dispatches(simulated)
    weights = [
        [[assignment.weight for assignment in c.assignments] for c in r.cycles]
        for r in (live, simulated)
    ]
    assert weights[0] == weights[1]
    assert live.model is not None
    assert simulated.model is not None
    parameters = load_file(simulated.model)
    for name, array in load_file(live.model).items():
        np.testing.assert_allclose(array, parameters[name], rtol=1e-6, atol=1e-7)
    assert live.accuracy == simulated.accuracy
