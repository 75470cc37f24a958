"""`melisma run`: train a task on a fleet of emulated devices."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from threading import Lock

import click
from rich.console import Console, RenderableType
from rich.live import Live

from melisma.cli.options import (
    DEFAULT_FLEET,
    DEFAULT_TASK,
    FILE,
    PORT,
    default_fleet_option,
    default_tasks_argument,
    json_option,
    learners_option,
    run_options,
    show_option,
)
from melisma.cli.output import exit_with, has_live_terminal, write, write_json
from melisma.cli.scheme_option import tasks_scheme_option
from melisma.cli.service_run import run_emulated_tasks
from melisma.cli.views.run_summary_view import run_summary_view
from melisma.cli.views.run_view import FETCHING_S, cycle_line, run_view
from melisma.cycle.events import OrchestratorRestarted, TaskContinued
from melisma.fleet.files.task_file import read_task
from melisma.fleet.run_settings import RunSettings
from melisma.live.orchestrator.orchestrator import Watcher
from melisma.live.preparation import prepare
from melisma.live.service.service_preparation import ServiceOptions
from melisma.live.training import run
from melisma.runs.progress import RunProgress
from melisma.runs.trace import Step

FRAMES_PER_S = 8


class RunWatcher:
    """The progress of a run, updated by one thread and rendered by another."""

    def __init__(self) -> None:
        self._progress, self._lock, self._offset_s = RunProgress(), Lock(), 0.0
        self._fetched_s: dict[int, float] = {}  # when a learner last requested a file
        self._printed_joined, self._printed_cycle = False, 0

    @property
    def began(self) -> bool:
        """Whether there was a step."""
        return bool(self._offset_s)

    def apply(self, step: Step) -> None:
        """Apply one step."""
        with self._lock:
            self._progress.apply(step)
            self._offset_s = time.monotonic() - step.event.at_s

    def catch_up(self, steps: Iterable[Step]) -> None:
        """Apply the steps of earlier processes, which have printed their lines already."""
        for step in steps:
            self.apply(step)
        self._printed_joined = self._progress.evaluated_number > 0
        self._printed_cycle = self._progress.evaluated_number

    def render(self) -> RenderableType:
        """Return the view of the run now."""
        with self._lock:
            if not self._offset_s:
                return "starting"
            now = time.monotonic()
            recent = [n for n, at_s in self._fetched_s.copy().items() if now - at_s < FETCHING_S]
            return run_view(self._progress, now - self._offset_s, recent)

    def on_fetch(self, learner: int) -> None:
        """Note that a learner has requested a file."""
        self._fetched_s[learner] = time.monotonic()

    def apply_and_print(
        self, step: Step, print_line: Callable[[str], object] = lambda line: write(f"{line}\n")
    ) -> None:
        """Apply one step; print a line when learners begin to measure and when a cycle ends."""
        progress = self._progress
        had_ended = progress.outcome != "running"
        self.apply(step)
        if isinstance(step.event, OrchestratorRestarted):
            # The clock of an emulated run stands still while it is down.
            after = (
                f", {downtime_s:.1f} s after" if (downtime_s := step.event.downtime_s) else " where"
            )
            print_line(f"the run goes on{after} it was interrupted")
        if isinstance(step.event, TaskContinued):
            given_up = "from another model; the cycle that was under way is given up"
            print_line(f"the run goes on {'after its end' if had_ended else given_up}")
        if not self._printed_joined and progress.collecting and progress.current_cycle is None:
            self._printed_joined = True
            print_line(
                f"{len(progress.joined)} of {len(progress.names)} learners joined; measuring"
            )
        if progress.evaluated_number > self._printed_cycle and (cycle := progress.evaluated_cycle):
            self._printed_cycle = cycle.number
            print_line(cycle_line(cycle))


def live_view(watcher: RunWatcher) -> Live:
    """Return the view of a run below the lines that its console prints."""
    console = Console(highlight=False, markup=False, emoji=False)
    return Live(
        get_renderable=watcher.render,
        console=console,
        refresh_per_second=FRAMES_PER_S,
        transient=True,
    )


@contextmanager
def watch_run(watcher: RunWatcher, *, as_json: bool) -> Iterator[Watcher]:
    """Yield a function for steps: it prints nothing, or a line per cycle, in a live view or not."""
    if as_json:
        yield lambda _: None
    elif has_live_terminal():
        with live_view(watcher) as live:
            yield lambda step: watcher.apply_and_print(step, live.console.print)
    else:
        yield watcher.apply_and_print


def print_note(note: str) -> None:
    """Print what the owner should know to standard error."""
    click.echo(f"note: {note}", err=True)


def loading_line(task: Path) -> str:
    """Return a line to print before model and data are loaded, which may take seconds.

    Raises the error of a task file that is wrong.
    """
    read = read_task(task)
    return f"loading model {read.model} and data {read.data}"


@click.command("run", short_help="Train a task on emulated devices, by its deadline.")
@default_tasks_argument
@default_fleet_option
@tasks_scheme_option
@learners_option
@run_options
@click.option(
    "--out", type=FILE, help="Empty or new folder for results; default: a new one in runs/."
)
@click.option(
    "--port", default=0, type=PORT, help="Port of the orchestrator; default: any free port."
)
@show_option
@json_option
def command(  # noqa: PLR0913 - one argument per option
    *,
    tasks: tuple[Path, ...],
    fleet: Path | None,
    scheme: str | None,
    learners: int | None,
    run_settings: RunSettings,
    out: Path | None,
    port: int,
    show: int,
    as_json: bool,
) -> None:
    """Train TASK.toml on a fleet of emulated devices, by its deadline.

    Several tasks share the fleet. Without a file: handwritten digits, on four devices of unequal
    speed, in under a minute.
    """
    if len(tasks) > 1:
        options = ServiceOptions(scheme, out, learners, run_settings)
        fleet = fleet or DEFAULT_FLEET
        run_emulated_tasks(tasks, fleet, options, port, print_note, as_json=as_json)
    task = tasks[0] if tasks else None
    if not as_json:
        default = "MNIST on four emulated devices; the first run takes a while to start"
        write(f"{loading_line(task) if task else default}\n")
    files = task or DEFAULT_TASK, fleet or DEFAULT_FLEET
    # Output of the user's modules must not mix with the report.
    with redirect_stdout(sys.stderr):
        prepared = prepare(*files, scheme, out, run_settings, learners)
    for note in prepared.notes:
        print_note(note)
    watcher = RunWatcher()
    with watch_run(watcher, as_json=as_json) as watch:
        report = run(
            prepared,
            port,
            watch=watch,
            on_fetch=watcher.on_fetch,
            on_note=print_note,
        )
    if as_json:
        write_json(report.as_dict())
    else:
        write(run_summary_view(report, show, prepared.fleet.groups))
    exit_with(report.outcome)
