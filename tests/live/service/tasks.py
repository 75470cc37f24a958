"""Tiny tasks that share two emulated devices, in runs of seconds."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from melisma.cycle import commands, events
from melisma.fleet.task import Task
from melisma.live.service.emulated_service import run_service
from melisma.live.service.service_preparation import (
    PreparedTasks,
    ServiceOptions,
    prepare_service,
)
from melisma.runs.interruption import Cancellation
from melisma.runs.service_progress import ServiceStep
from melisma.runs.service_report import ServiceReport
from melisma.runs.trace import Step
from melisma.service import commands as service_commands
from tests.live.short_run import build

TASK: dict[str, Any] = {"scheme": "med", "data_args": {"samples": 300}, "cycles": 2}


def prepare_tasks(folder: Path, *tasks: dict[str, Any], **fleet: Any) -> PreparedTasks:
    """Prepare tasks with these settings instead of the defaults."""
    built = [build(TASK | task, fleet) for task in tasks]
    options = ServiceOptions(folder=folder / "out")
    return prepare_service([task for task, _ in built], built[0][1], options)


class Observed:
    """The steps of a service and of its tasks."""

    def __init__(self, cancellation: Cancellation | None = None) -> None:
        self.service: list[ServiceStep] = []
        self.tasks: defaultdict[int, list[Step]] = defaultdict(list)
        self.cancellation, self.cancel_after = cancellation, ""

    def run(self, prepared: PreparedTasks) -> ServiceReport:
        return run_service(
            prepared,
            watch_task=self.watch_task,
            watch=self.service.append,
            cancellation=self.cancellation,
        )

    def watch_task(self, number: int, step: Step) -> None:
        self.tasks[number].append(step)
        if self.cancellation is not None and type(step.event).__name__ == self.cancel_after:
            self.cancellation.request("enough")

    def rounds(self) -> dict[int, dict[int, list[int]]]:
        """Return the learners that each task was granted, by round."""
        granted: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)
        for step in self.service:
            for command in step.commands:
                if isinstance(command, service_commands.GrantShares):
                    granted[command.round][command.number] = command.learners.tolist()
        return dict(granted)

    def held(self) -> list[str]:
        """Return why tasks had to wait."""
        return [
            command.reason
            for step in self.service
            for command in step.commands
            if isinstance(command, service_commands.HoldTask)
        ]


def dispatched(report: Any) -> list[commands.Dispatch]:
    """Return the assignments of a task."""
    return [
        item
        for step in report.trace
        for item in step.commands
        if isinstance(item, commands.Dispatch)
    ]


def submitted(report: Any) -> Task:
    """Return the task that the trace of a run begins with."""
    event = report.trace[0].event
    assert isinstance(event, events.TaskSubmitted)
    assert event.shared
    return event.task
