"""`melisma status`: ask the orchestrator that runs on this machine."""

import click
import msgspec

from melisma import axon
from melisma.cli.options import json_option
from melisma.cli.output import write
from melisma.cli.views.status_view import status_view
from melisma.cli.views.tasks_status_view import tasks_status_view
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


def connect_owner(running: RunningOrchestrator, deadline_s: float = ANSWER_S) -> axon.Remote:
    """Return the methods of a running orchestrator that its owner calls."""
    return axon.connect(running.address, token=running.owner_token, deadline_s=deadline_s)


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
