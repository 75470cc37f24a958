"""`melisma compare`: schemes side by side in virtual time, each on the same seeds.

It ends with 0, or with 1 if every run of every scheme failed.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import get_args

import click
import msgspec
from rich.console import Console
from rich.progress import Progress

from melisma.cli.files import FILE
from melisma.cli.output import write
from melisma.cli.suggestions import SuggestingChoice
from melisma.cli.views.compare_view import run_line, view
from melisma.errors import SettingError
from melisma.runs.svg import save_picture
from melisma.simulation.comparison.comparison import ComparedRun, compare
from melisma.simulation.comparison.comparison_picture import draw_comparison
from melisma.simulation.compute.memory import keep_freed_memory
from melisma.simulation.simulation import ComputeLevel, SimulationOptions


@click.command("compare")
@click.argument("task", metavar="TASK.toml", type=FILE)
@click.option("--fleet", metavar="FLEET.toml", type=FILE, required=True, help="The devices.")
@click.option("--schemes", required=True, help="Which, with commas; the others against the first.")
@click.option("--seeds", type=click.IntRange(1), default=5, show_default=True, help="So many.")
@click.option("--first-seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--learners", type=click.IntRange(1), help="So many, in the fleet's proportions.")
@click.option(
    "--work", type=SuggestingChoice(get_args(ComputeLevel)), help="Instead of what the task says."
)
@click.option("--accuracy", type=float, help="Take the time to it; 0.97, for example.")
@click.option(
    "--faults", default="", help="What goes wrong in every run, in words; a number draws some."
)
@click.option("--picture", type=FILE, metavar="FILE.svg", help="Draw it into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(  # noqa: PLR0913 - one argument an option
    *,
    task: Path,
    fleet: Path,
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

    Figures are means with 95 % confidence intervals.
    """
    keep_freed_memory()
    names = [name.strip() for name in schemes.split(",")]
    numbers = range(first_seed, first_seed + seeds)
    options = SimulationOptions(learners=learners, work=work, faults=faults)
    _check_place(picture)
    # What modules of one's own print is not the comparison.
    with _shown(len(names) * seeds, quiet=as_json) as watch, redirect_stdout(sys.stderr):
        found = compare(task, fleet, names, numbers, options, accuracy=accuracy, watch=watch)
    saved = save_picture(partial(draw_comparison, found), picture) if picture is not None else None
    write(msgspec.json.encode(found.as_dict()).decode() + "\n" if as_json else view(found))
    if saved is not None and not as_json:
        write(f"picture  {saved}\n")
    sys.exit(0 if any(each.completed for each in found.runs) else 1)


@contextmanager
def _shown(count: int, *, quiet: bool) -> Iterator[Callable[[ComparedRun], object]]:
    """How runs are watched: a bar in a terminal, else a line for each."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda run: None if quiet else click.echo(run_line(run), err=True)
        return
    # Without a thread that refreshes it: beside one, simulations would not fork.
    console = Console(stderr=True)
    with Progress(console=console, transient=True, auto_refresh=False) as progress:
        bar = progress.add_task("simulating", total=count)
        progress.refresh()
        yield lambda run: progress.update(bar, advance=1, description=run_line(run), refresh=True)


def _check_place(picture: Path | None) -> None:
    """Better told before the runs than after them."""
    if picture is not None and (picture.is_dir() or not picture.parent.is_dir()):
        raise SettingError(f"--picture is {picture}; expected a file in a folder that is there")
    if picture is not None and picture.suffix != ".svg":
        raise SettingError(f"--picture is {picture}; expected a name that ends with .svg")
