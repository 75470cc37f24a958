"""`melisma compare`: compare schemes in virtual time, each on the same seeds.

The exit code is 0, or 1 if every run of every scheme failed.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import get_args

import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from melisma.allocation.schemes import OWN_SCHEME
from melisma.cli.options import (
    DEFAULT_FLEET,
    DEFAULT_TASK,
    FILE,
    check_picture_path,
    default_fleet_option,
    default_task_argument,
    faults_option,
    json_option,
    learners_option,
)
from melisma.cli.output import exit_with, write
from melisma.cli.scheme_option import CYCLE_SCHEMES, format_schemes
from melisma.cli.suggestions import SuggestingChoice
from melisma.cli.views.compare_view import compare_view, run_line
from melisma.runs.svg import save_picture
from melisma.simulation.comparison.comparison import ComparedRun, compare
from melisma.simulation.compute.memory import keep_freed_memory
from melisma.simulation.simulation import ComputeLevel, SimulationOptions


@click.command("compare", short_help="Compare schemes in virtual time on the same seeds.")
@default_task_argument
@default_fleet_option
@click.option(
    "--schemes",
    required=True,
    help="Schemes, separated by commas; the first is the baseline. "
    f"Known: {format_schemes([*CYCLE_SCHEMES, OWN_SCHEME])}.",
)
@click.option(
    "--seeds", type=click.IntRange(1), default=5, show_default=True, help="Number of seeds."
)
@click.option(
    "--first-seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="First seed; the others follow it, one by one.",
)
@learners_option
@click.option(
    "--work",
    type=SuggestingChoice(get_args(ComputeLevel)),
    help="What learners compute, instead of the task's simulation.work.",
)
@click.option("--accuracy", type=float, help="Target accuracy to time, such as 0.97.")
@faults_option
@click.option("--picture", type=FILE, metavar="FILE.svg", help="Save a picture to this file.")
@json_option
def command(  # noqa: PLR0913 - one argument per option
    *,
    task: Path | None,
    fleet: Path | None,
    schemes: str,
    seeds: int,
    first_seed: int,
    learners: int | None,
    work: ComputeLevel | None,
    accuracy: float | None,
    faults: str,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Compare schemes for TASK.toml on a fleet in virtual time, each on the same seeds.

    Without a file: handwritten digits, on four devices of unequal speed. Figures are means with
    95 % confidence intervals.
    """
    keep_freed_memory()
    files = task or DEFAULT_TASK, fleet or DEFAULT_FLEET
    names = [name.strip() for name in schemes.split(",")]
    numbers = range(first_seed, first_seed + seeds)
    options = SimulationOptions(learners=learners, work=work, faults=faults)
    check_picture_path(picture)
    # Output of the user's modules must not mix with the comparison.
    with _watch_runs(len(names) * seeds, quiet=as_json) as watch, redirect_stdout(sys.stderr):
        comparison = compare(*files, names, numbers, options, accuracy=accuracy, watch=watch)
    write(
        msgspec.json.encode(comparison.as_dict()).decode() + "\n"
        if as_json
        else compare_view(comparison)
    )
    # After the table, which must not depend on it.
    if picture is not None:
        saved = save_picture(comparison.plot, picture)
        if saved is not None and not as_json:
            write(f"picture  {saved}\n")
    if comparison.interrupted:
        exit_with("cancelled")
    sys.exit(0 if any(run.completed for run in comparison.runs) else 1)


@contextmanager
def _watch_runs(count: int, *, quiet: bool) -> Iterator[Callable[[ComparedRun], object]]:
    """Yield a watcher that advances a progress bar in a terminal, or prints a line per run."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda run: None if quiet else click.echo(run_line(run), err=True)
        return
    # No refresh thread: simulations do not fork while other threads run.
    console = Console(stderr=True)
    with Progress(console=console, transient=True, auto_refresh=False) as progress:
        bar = progress.add_task("simulating", total=count)
        progress.refresh()
        yield lambda run: progress.update(bar, advance=1, description=run_line(run), refresh=True)
