"""`melisma code`: replace the pairing code of the orchestrator that runs on this machine."""

import click

from melisma import axon
from melisma.cli.options import json_option
from melisma.cli.output import write, write_json
from melisma.errors import RefusedError, SettingError
from melisma.live.orchestrator.running_orchestrator import require_running

ANSWER_S = 10.0


@click.command("code", short_help="Show a new code with which devices join.")
@json_option
def command(as_json: bool) -> None:
    """Show a new code with which a device joins; pairing that pauses or has stopped goes on."""
    running = require_running()
    with axon.connect(
        running.address, token=running.owner_token, deadline_s=ANSWER_S
    ) as orchestrator:
        try:
            code = orchestrator.renew_code()
        except RefusedError as error:
            raise SettingError(
                "the orchestrator does not pair by a code: start it without --no-discovery, with "
                '"melisma[discovery]" installed'
            ) from error
    if as_json:
        write_json({"code": code})
    else:
        write(f"{code}\n")
