"""`melisma cancel`: end a task of the service that runs on this machine."""

import click
import msgspec

from melisma.cli.options import json_option
from melisma.cli.output import write
from melisma.cli.status import connect_owner
from melisma.live import protocol
from melisma.live.orchestrator.running_orchestrator import require_running
from melisma.live.service.owner_methods import ServedTask


@click.command("cancel", short_help="End a task of the service that runs on this machine.")
@click.argument("name")
@json_option
def command(name: str, as_json: bool) -> None:
    """End the task NAME; its model and trace so far are kept, and its open work is not paid."""
    with connect_owner(require_running()) as service:
        ended = protocol.parse(service.cancel_task(name), ServedTask)
    if as_json:
        write(msgspec.json.encode(ended).decode() + "\n")
        return
    write(f"{ended.name} is cancelled; what it has learnt is in {ended.folder}\n")
