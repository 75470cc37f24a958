"""`melisma submit`: add a task to the service that runs on this machine."""

from pathlib import Path

import click
import msgspec

from melisma.cli.options import DEFAULT_TASK, default_task_argument, json_option
from melisma.cli.output import write
from melisma.cli.status import connect_owner
from melisma.fleet.files.task_file import read_task
from melisma.live import protocol
from melisma.live.orchestrator.running_orchestrator import require_running
from melisma.live.service.owner_methods import ServedTask

LOAD_S = 600.0
"""Time in which a service loads the model and the data of a task."""


@click.command("submit", short_help="Add a task to the service that runs on this machine.")
@default_task_argument
@json_option
def command(task: Path | None, as_json: bool) -> None:
    """Add TASK.toml to the tasks of the service that `melisma orchestrate` runs on this machine.

    Without a file: handwritten digits.
    """
    file = (task or DEFAULT_TASK).resolve()
    read_task(file)
    with connect_owner(require_running(), LOAD_S) as service:
        added = protocol.parse(service["submit"](str(file)), ServedTask)
    if as_json:
        write(msgspec.json.encode(added).decode() + "\n")
        return
    write(f"{added.name}: task {added.number}, {added.state}; its folder is {added.folder}\n")
    if added.reason:
        write(f"{added.reason}\n")
    write(f"melisma status shows it, and melisma result {added.name} what it has learnt\n")
