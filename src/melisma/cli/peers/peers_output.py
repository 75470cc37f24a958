"""Progress lines and the final report of `melisma peers`."""

import time

import click
import msgspec

from melisma.cli.output import exit_with, write
from melisma.cli.views.peers_view import peers_view, progress_line
from melisma.live.peer.node_runner import Progress
from melisma.runs.peer_report import PeerReport

LINE_S = 2.0
"""Seconds between lines of progress."""


class ProgressPrinter:
    """Print notices at once, and progress every `LINE_S` seconds."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._last = quiet, time.monotonic()

    def print_line(self, line: str) -> None:
        """Print a notice."""
        click.echo(line, err=True)

    def print_progress(self, progress: Progress) -> None:
        """Print the progress of all nodes if the last line is old enough."""
        now = time.monotonic()
        if progress and not self._quiet and now - self._last >= LINE_S:
            self._last = now
            click.echo(progress_line(progress), err=True)


def finish(report: PeerReport, as_json: bool) -> None:
    """Print the report and exit with its code."""
    write(msgspec.json.encode(report.as_dict()).decode() + "\n" if as_json else peers_view(report))
    cancelled = any(node.outcome == "cancelled" for node in report.nodes)
    exit_with("cancelled" if cancelled else "finished" if report.succeeded else "failed")
