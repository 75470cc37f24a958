"""`melisma run`: train a task on a fleet of emulated devices, and show it."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import click
import msgspec
from rich.console import Console, RenderableType
from rich.live import Live

from melisma.cli.output import write
from melisma.cli.run_screen import screen
from melisma.cli.run_view import cycle_line, view
from melisma.cycle.events import Evaluated
from melisma.cycle.story import Story
from melisma.cycle.trace import Step
from melisma.live.orchestrator import Watcher
from melisma.live.preparation import prepare
from melisma.live.training import run

FIRST = Path(__file__).parent / "first"
EXIT = {"done": 0, "stopped": 0, "failed": 1, "cancelled": 130}
FRAMES_PER_S = 8


class Watched:
    """The story so far, told by one thread and shown by another."""

    def __init__(self) -> None:
        self._story, self._lock, self._offset_s = Story(), Lock(), 0.0

    def hear(self, step: Step) -> None:
        """One more step."""
        with self._lock:
            self._story.hear(step)
            self._offset_s = time.monotonic() - step.event.at_s

    def shown(self) -> RenderableType:
        """As it stands now."""
        with self._lock:
            if not self._offset_s:
                return "starting"
            return view(self._story, time.monotonic() - self._offset_s)

    def line(self, step: Step) -> None:
        """One more step, and a line where it ends a cycle."""
        self.hear(step)
        if isinstance(step.event, Evaluated):
            write(f"{cycle_line(self._story.report().cycles[step.event.cycle - 1])}\n")


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
@click.argument("task", type=click.Path(path_type=Path), required=False)
@click.option("--fleet", type=click.Path(path_type=Path), help="FLEET.toml; else four devices.")
@click.option("--scheme", help="Allocate by this scheme, whatever the task says.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for model, picture and trace.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Where learners call.")
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

    Without a file: handwritten digits, on four unlike devices, in about a minute.
    """
    if not as_json and task is None:
        write("MNIST on four emulated devices; the first time it takes a while to start\n")
    files = task or FIRST / "task.toml", fleet or FIRST / "fleet.toml"
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
