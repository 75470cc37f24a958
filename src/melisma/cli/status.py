"""`melisma status`: ask the orchestrator that runs on this machine."""

import click
import msgspec

from melisma import axon
from melisma.cli.options import json_option
from melisma.cli.output import write
from melisma.cli.views.status_view import status_view
from melisma.live import protocol
from melisma.live.orchestrator.running_orchestrator import RunningOrchestrator, require_running
from melisma.live.orchestrator.status_service import OrchestratorStatus

ANSWER_S = 10.0


def ask_status(running: RunningOrchestrator) -> OrchestratorStatus:
    """Return the status of a running orchestrator."""
    with axon.connect(
        running.address, token=running.owner_token, deadline_s=ANSWER_S
    ) as orchestrator:
        return protocol.parse(orchestrator.status(), OrchestratorStatus)


@click.command("status", short_help="Show the orchestrator that runs on this machine.")
@json_option
def command(as_json: bool) -> None:
    """Show run, cycle and learners of the orchestrator that runs on this machine."""
    status = ask_status(require_running())
    write(msgspec.json.encode(status).decode() + "\n" if as_json else status_view(status))
