"""`melisma peers resume`: continue the nodes of `melisma peers run` from their state."""

from pathlib import Path

import click

from melisma.cli.options import json_option
from melisma.cli.peers.peers_output import ProgressPrinter, finish
from melisma.live.peer.local_group import PeerObserver, resume_peers


@click.command("resume", short_help="Continue a run whose processes were killed.")
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
def command(*, folder: Path, as_json: bool) -> None:
    """Continue the run in FOLDER, which was killed or interrupted, each node from its own state."""
    printer = ProgressPrinter(quiet=as_json)
    observer = PeerObserver(printer.print_line, printer.print_progress)
    finish(resume_peers(folder, observer=observer), as_json)
