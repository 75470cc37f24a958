"""`melisma run`: train a task on a fleet of emulated devices, and show it."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from threading import Lock

import click
import msgspec
from rich.console import Console, RenderableType
from rich.live import Live

from melisma.cli.files import FILE, FIRST
from melisma.cli.output import write
from melisma.cli.views.run_summary_view import screen
from melisma.cli.views.run_view import cycle_line, view
from melisma.cycle.commands import AskBound, Benchmark
from melisma.cycle.events import Evaluated
from melisma.live.orchestrator.orchestrator import Watcher
from melisma.live.preparation import prepare
from melisma.live.training import run
from melisma.runs.progress import RunProgress
from melisma.runs.trace import Step

EXIT = {"done": 0, "stopped": 0, "failed": 1, "cancelled": 130}
FRAMES_PER_S = 8
PORT = click.IntRange(0, 65535)


class Watched:
    """The story so far, told by one thread and shown by another."""

    def __init__(self) -> None:
        self._story, self._lock, self._offset_s = RunProgress(), Lock(), 0.0
        self._told = False

    def hear(self, step: Step) -> None:
        """One more step."""
        with self._lock:
            self._story.apply(step)
            self._offset_s = time.monotonic() - step.event.at_s

    def shown(self) -> RenderableType:
        """As it stands now."""
        with self._lock:
            if not self._offset_s:
                return "starting"
            return view(self._story, time.monotonic() - self._offset_s)

    def line(self, step: Step) -> None:
        """One more step, and a line where learners begin to measure, or a cycle ends."""
        self.hear(step)
        asks = any(isinstance(each, Benchmark | AskBound) for each in step.commands)
        if asks and self._story.current_cycle is None and not self._told:
            self._told = True
            there, all_of = len(self._story.joined), len(self._story.names)
            write(f"{there} of {all_of} learners are there, and measure what they can do\n")
        if isinstance(step.event, Evaluated):
            ended = self._story.evaluated_cycle
            write(f"{cycle_line(ended)}\n" if ended else "")


@contextmanager
def shown(as_json: bool) -> Iterator[Watcher]:
    """How a run is watched: not at all, in a terminal, or by a line a cycle."""
    watched = Watched()
    if as_json:
        yield lambda _: None
    elif sys.stdout is not None and sys.stdout.isatty():
        console = Console(highlight=False, markup=False, emoji=False)
        with Live(
            get_renderable=watched.shown,
            console=console,
            refresh_per_second=FRAMES_PER_S,
            transient=True,
        ):
            yield watched.hear
    else:
        yield watched.line


@click.command("run")
@click.argument("task", metavar="[TASK.toml]", type=FILE, required=False)
@click.option("--fleet", type=FILE, help="FLEET.toml; else two Pis, a phone and a Jetson.")
@click.option("--scheme", help="Allocate by this scheme, whatever the task says.")
@click.option("--out", type=FILE, help="Empty or new folder for results; else one below runs/.")
@click.option("--port", default=0, type=PORT, help="Where learners call; else any that is free.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def command(
    task: Path | None,
    fleet: Path | None,
    scheme: str | None,
    out: Path | None,
    port: int,
    as_json: bool,
) -> None:
    """Train TASK.toml on a fleet of emulated devices, by its deadline.

    Without a file: handwritten digits, on four unlike devices, in under a minute.
    """
    if not as_json and task is None:
        write("MNIST on four emulated devices; the first time it takes a while to start\n")
    files = task or FIRST / "task.toml", fleet or FIRST / "fleet.toml"
    # What modules of one's own print is not the report.
    with redirect_stdout(sys.stderr):
        prepared = prepare(*files, scheme, out)
    for note in prepared.notes:
        click.echo(f"note: {note}", err=True)
    with shown(as_json) as watch:
        report = run(prepared, port, watch)
    if as_json:
        write(msgspec.json.encode(report.as_dict()).decode() + "\n")
    else:
        write(screen(report))
    sys.exit(EXIT[report.outcome or "failed"])
