"""`melisma compare`: compare schemes in virtual time, each on the same seeds.

The exit code is 0, or 1 if every run of every scheme failed.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn, get_args

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
    default_tasks_argument,
    faults_option,
    json_option,
    learners_option,
)
from melisma.cli.output import exit_with, write, write_json
from melisma.cli.scheme_option import CYCLE_SCHEMES, SHARED_SCHEMES, format_schemes
from melisma.cli.suggestions import SuggestingChoice
from melisma.cli.views.compare_view import compare_view, run_line
from melisma.cli.views.service_view import service_comparison_view, service_run_line
from melisma.errors import SettingError
from melisma.runs.svg import save_picture
from melisma.simulation.comparison.scheme_runs import compare
from melisma.simulation.comparison.service_comparison import compare_tasks
from melisma.simulation.compute.memory import keep_freed_memory
from melisma.simulation.simulation import ComputeLevel, SimulationOptions


@click.command("compare", short_help="Compare schemes in virtual time on the same seeds.")
@default_tasks_argument
@default_fleet_option
@click.option(
    "--schemes",
    required=True,
    help="Schemes, separated by commas; the first is the baseline. "
    f"Known: {format_schemes([*CYCLE_SCHEMES, OWN_SCHEME])}; "
    f"for several tasks {format_schemes(SHARED_SCHEMES)}.",
)
@click.option(
    "--seeds",
    "--repetitions",
    "seeds",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Number of seeds.",
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
    tasks: tuple[Path, ...],
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

    Several tasks share the fleet, and are compared by the five metrics of MED. Without a file:
    handwritten digits, on four devices of unequal speed. Figures are means with 95 % confidence
    intervals.
    """
    keep_freed_memory()
    files = tasks[0] if tasks else DEFAULT_TASK, fleet or DEFAULT_FLEET
    names = [name.strip() for name in schemes.split(",")]
    numbers = range(first_seed, first_seed + seeds)
    options = SimulationOptions(learners=learners, work=work, faults=faults)
    if len(tasks) > 1:
        for option, value in (("--accuracy", accuracy), ("--picture", picture)):
            if value is not None:
                raise SettingError(f"{option} is for one task, found {len(tasks)}; remove it")
        _compare_tasks(tasks, files[1], names, numbers, options, as_json=as_json)
    check_picture_path(picture)
    # Output of the user's modules must not mix with the comparison.
    with (
        _watch_runs(len(names) * seeds, run_line, quiet=as_json) as watch,
        redirect_stdout(sys.stderr),
    ):
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


def _compare_tasks(
    tasks: tuple[Path, ...],
    fleet: Path,
    names: list[str],
    seeds: range,
    options: SimulationOptions,
    *,
    as_json: bool,
) -> NoReturn:
    """Compare schemes for tasks that share a fleet, print the comparison and exit."""
    count = len(names) * len(seeds)
    with (
        _watch_runs(count, service_run_line, quiet=as_json) as watch,
        redirect_stdout(sys.stderr),
    ):
        comparison = compare_tasks(tasks, fleet, names, seeds, options, watch=watch)
    if as_json:
        write_json(comparison.as_dict())
    else:
        write(service_comparison_view(comparison))
    if comparison.interrupted:
        exit_with("cancelled")
    sys.exit(0 if any(run.completed for run in comparison.runs) else 1)


@contextmanager
def _watch_runs(
    count: int, line: Callable[[Any], str], *, quiet: bool
) -> Iterator[Callable[[Any], object]]:
    """Yield a watcher that advances a progress bar in a terminal, or prints a line per run."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda run: None if quiet else click.echo(line(run), err=True)
        return
    # No refresh thread: simulations do not fork while other threads run.
    console = Console(stderr=True)
    with Progress(console=console, transient=True, auto_refresh=False) as progress:
        bar = progress.add_task("simulating", total=count)
        progress.refresh()
        yield lambda run: progress.update(bar, advance=1, description=line(run), refresh=True)
