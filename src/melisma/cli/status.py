"""`melisma status`: ask the orchestrator that runs on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager

import click
import msgspec

from melisma import axon
from melisma.cli.options import json_option
from melisma.cli.output import write
from melisma.cli.views.status_view import status_view
from melisma.cli.views.tasks_status_view import tasks_status_view
from melisma.errors import RefusedError, SettingError
from melisma.live import protocol
from melisma.live.orchestrator.running_orchestrator import RunningOrchestrator, require_running
from melisma.live.orchestrator.status_service import OrchestratorStatus
from melisma.live.service.owner_methods import TasksStatus

AnyStatus = OrchestratorStatus | TasksStatus
ANSWER_S = 10.0


def ask_status(running: RunningOrchestrator) -> AnyStatus:
    """Return the status of a running orchestrator, of one task or of several."""
    with connect_owner(running) as orchestrator:
        status: AnyStatus = protocol.parse(orchestrator.status(), AnyStatus)
    return status


@contextmanager
def connect_owner(
    running: RunningOrchestrator, deadline_s: float = ANSWER_S
) -> Iterator[axon.Remote]:
    """Yield the methods of a running orchestrator that its owner calls.

    What it refuses is a mistake of the owner, and a `SettingError`.
    """
    remote = axon.connect(running.address, token=running.owner_token, deadline_s=deadline_s)
    with remote:
        try:
            yield remote
        except RefusedError as error:
            raise SettingError(str(error)) from error


@click.command("status", short_help="Show the orchestrator that runs on this machine.")
@json_option
def command(as_json: bool) -> None:
    """Show run, cycle and learners of the orchestrator that runs on this machine.

    Of a service: its tasks, why they wait, and the devices.
    """
    status = ask_status(require_running())
    if as_json:
        write(msgspec.json.encode(status).decode() + "\n")
    elif isinstance(status, TasksStatus):
        write(tasks_status_view(status))
    else:
        write(status_view(status))
