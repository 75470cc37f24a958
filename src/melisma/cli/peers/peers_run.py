"""`melisma peers run`: one process per node on this machine."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from melisma.cli.peers.peers_options import (
    GROUP_OPTIONS,
    STATE_OPTION,
    TRAINING_OPTIONS,
    build_peers,
    with_options,
)
from melisma.cli.peers.peers_output import ProgressPrinter, finish
from melisma.live.peer.local_group import PeerObserver, run_peers


@click.command("run", short_help="Run a process for each node on this machine.")
@with_options(TRAINING_OPTIONS)
@with_options(GROUP_OPTIONS)
@STATE_OPTION
@click.option("--tls", is_flag=True, help="Nodes use TLS with self-signed certificates.")
def command(
    *, as_json: bool, tls: bool, no_state: bool, every: int, out: Path | None, **options: Any
) -> None:
    """Start a process for each node on this machine, and print their progress."""
    with redirect_stdout(sys.stderr):
        peers = build_peers(options)
    printer = ProgressPrinter(quiet=as_json)
    observer = PeerObserver(printer.print_line, printer.print_progress)
    report = run_peers(
        peers,
        file=options["task"],
        folder=out,
        score_every=every,
        tls=tls,
        keep_state=not no_state,
        observer=observer,
    )
    finish(report, as_json)
