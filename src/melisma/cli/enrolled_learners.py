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
    """List the devices that have joined runs of this machine, with their states if one is running.

    Revoked devices are last: they cannot join again.
    """
    learners, running = Registry().all_learners(), find_running()
    in_run = {item.name: item.state for item in ask_status(running).learners} if running else {}
    states = [in_run.get(item.name) if item.revoked_at is None else "revoked" for item in learners]
    if as_json:
        rows = zip(learners, states, strict=True)
        write_json([msgspec.to_builtins(item) | {"state": state} for item, state in rows])
    elif not learners:
        write("no device has joined yet: melisma orchestrate shows how\n")
    else:
        write(enrolled_view(learners, states))
