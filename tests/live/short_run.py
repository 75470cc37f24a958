"""Runs of a tiny task on two emulated devices that take seconds.

They follow the rules of the papers unless a test asks for others: learners stop when they have
trained what they were given, so that a run takes less than its deadlines.
"""

from pathlib import Path
from typing import Any

import msgspec

from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.files.fleet_file import FleetTable
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import PAPER_RULES, Task
from melisma.live.preparation import prepare
from melisma.live.training import run
from melisma.runs.report import Report

FLEET: dict[str, Any] = {
    "learner": [
        {"name": "tortoise", "compute": 0.02, "bandwidth_bps": 20e6, "latency_s": 0.002},
        {"name": "hare", "compute": 0.1, "bandwidth_bps": 80e6, "latency_s": 0.001},
    ]
}
TASK = {
    **PAPER_RULES,
    "name": "blobs",
    "model": "tiny_task:Linear",
    "data": "tiny_task:blobs",
    "scheme": "dab",
    "passes": 2,
    "deadline_s": 6.0,
    "cycles": 3,
    "shard_samples": 50,
    "optimizer": {"name": "sgd", "lr": 0.3},
}
DEFAULTS = Task(name="defaults", model="mlp", data="mnist", deadline_s=1.0)

# The rules of a task that does not state any.
DEFAULT_RULES = {name: getattr(DEFAULTS, name) for name in PAPER_RULES}


def build(task: dict[str, Any], fleet: dict[str, Any]) -> tuple[Task, Fleet]:
    """Return task and fleet with these settings instead of the defaults."""
    table = msgspec.convert(FLEET | fleet, FleetTable)
    return msgspec.convert(TASK | task, Task), build_fleet(table)


def run_task(folder: Path, fleet: dict[str, Any] | None = None, **task: Any) -> Report:
    """Run a task with these settings in the folder `run`."""
    watch = task.pop("watch", lambda _: None)
    return run(prepare(*build(task, fleet or {}), folder=folder / "run"), watch=watch)


def received(report: Report, kind: type) -> list[Any]:
    """Return the events of a type."""
    return [step.event for step in report.trace if isinstance(step.event, kind)]


def issued(report: Report, kind: type) -> list[Any]:
    """Return the commands of a type."""
    return [item for step in report.trace for item in step.commands if isinstance(item, kind)]
