"""`melisma size`: the least deadline, devices or budget, or the largest model, for a goal.

The exit code is 0 if a candidate reaches the goal, and 1 if none does.
"""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import get_args

import click

from melisma.cli.durations import DURATION
from melisma.cli.options import (
    COUNT,
    DEFAULT_FLEET,
    DEFAULT_TASK,
    FILE,
    check_picture_path,
    default_fleet_option,
    default_task_argument,
    json_option,
)
from melisma.cli.output import write, write_json
from melisma.cli.scheme_option import run_scheme_option
from melisma.cli.suggestions import SuggestingChoice
from melisma.cli.views.size_view import candidate_line, size_view
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.runs.svg import save_picture
from melisma.simulation.compute.memory import keep_freed_memory
from melisma.simulation.simulation import ComputeLevel
from melisma.simulation.sizing.candidates import FINDS, Find
from melisma.simulation.sizing.sizing import DEFAULT_SEEDS, MAX_DEVICES, Candidate, size


@click.command("size", short_help="Find the deadline, devices, budget or model for a goal.")
@default_task_argument
@default_fleet_option
@click.option(
    "--find",
    type=SuggestingChoice(FINDS),
    required=True,
    help="The least deadline of a cycle, the fewest devices of --kind, the smallest budget, or the "
    "largest model.",
)
@click.option("--visits", type=float, help="Goal: samples trained, repeated passes included.")
@click.option("--accuracy", type=float, help="Goal: accuracy, such as 0.95; trains for real.")
@click.option(
    "--within", "within_s", type=DURATION, required=True, help="Time in which to reach the goal."
)
@click.option("--kind", help="The learner or group of the fleet to count.")
@click.option(
    "--most", type=COUNT, default=MAX_DEVICES, show_default=True, help="Most devices to try."
)
@run_scheme_option
@click.option("--seeds", type=COUNT, default=DEFAULT_SEEDS, show_default=True, help="Seeds.")
@click.option(
    "--work",
    type=SuggestingChoice(get_args(ComputeLevel)),
    help="What learners compute; default: timing, and with --accuracy that of the task.",
)
@click.option("--picture", type=FILE, metavar="FILE.svg", help="Save a picture to this file.")
@json_option
def command(  # noqa: PLR0913 - one argument per option
    *,
    task: Path | None,
    fleet: Path | None,
    find: Find,
    visits: float | None,
    accuracy: float | None,
    within_s: float,
    kind: str | None,
    most: int,
    scheme: str | None,
    seeds: int,
    work: ComputeLevel | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Find what TASK.toml needs on a fleet to reach a goal, by simulated runs.

    Without a file: handwritten digits, on four devices of unequal speed.
    """
    check_picture_path(picture)
    keep_freed_memory()
    files = task or DEFAULT_TASK, fleet or DEFAULT_FLEET
    # Output of the user's modules must not mix with the result.
    with redirect_stdout(sys.stderr):
        sizing = size(
            *files,
            find,
            within_s=within_s,
            visits=visits,
            accuracy=accuracy,
            kind=kind,
            scheme=scheme,
            work=work,
            seeds=seeds,
            most=most,
            watch=_show(quiet=as_json),
        )
    saved = None if picture is None else save_picture(sizing.plot, picture)
    if as_json:
        write_json(sizing.as_dict())
    else:
        write(size_view(sizing, has_prices=read_fleet(files[1]).has_prices or find == "budget"))
        write(f"picture  {saved}\n" if saved is not None else "")
    sys.exit(0 if sizing.chosen is not None else 1)


def _show(*, quiet: bool) -> Callable[[Candidate], object]:
    """Return a watcher that prints each candidate to standard error."""
    if quiet:
        return lambda _: None
    return lambda candidate: click.echo(f"tried {candidate_line(candidate)}", err=True)
