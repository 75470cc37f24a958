"""`melisma learners`: list the devices that have joined this machine's orchestrators."""

import click
import msgspec

from melisma.cli.options import json_option
from melisma.cli.output import write, write_json
from melisma.cli.status import ask_status
from melisma.cli.views.status_view import enrolled_view
from melisma.live.orchestrator.registry import Registry
from melisma.live.orchestrator.running_orchestrator import find_running


@click.command("learners", short_help="List the devices that have joined this orchestrator.")
@json_option
def command(as_json: bool) -> None:
    """List the devices that may join runs of this machine, with their states if one is running."""
    learners, running = Registry().learners(), find_running()
    states = {item.name: item.state for item in ask_status(running).learners} if running else {}
    if as_json:
        rows = [msgspec.to_builtins(item) | {"state": states.get(item.name)} for item in learners]
        write_json(rows)
    elif not learners:
        write("no device has joined yet: melisma orchestrate shows how\n")
    else:
        write(enrolled_view(learners, states))
