"""Several tasks in `melisma simulate`: a line for each cycle, then one summary of all tasks."""

import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import NoReturn

import click

from melisma.cli.output import exit_with, write, write_json
from melisma.cli.views.run_view import cycle_line
from melisma.cli.views.service_view import service_summary_view
from melisma.cli.views.table_view import format_count
from melisma.errors import SettingError
from melisma.runs.progress import RunProgress
from melisma.runs.trace import Step
from melisma.simulation.service.service_simulation import prepare_tasks, run_tasks
from melisma.simulation.simulation import SimulationOptions


def check_show() -> None:
    """Raise `SettingError` if `--show` was given: the summary of several tasks has no learners."""
    source = click.get_current_context().get_parameter_source("show")
    if source is click.core.ParameterSource.COMMANDLINE:
        raise SettingError(
            "--show lists the learners of one task, and there are several; remove it"
        )


def simulate_tasks(
    files: Sequence[Path],
    fleet: Path,
    options: SimulationOptions,
    out: Path | None,
    *,
    as_json: bool,
) -> NoReturn:
    """Run tasks that share a fleet, print their report and exit."""
    began = time.monotonic()
    # Output of the user's modules must not mix with the report.
    with redirect_stdout(sys.stderr):
        prepared = prepare_tasks(files, fleet, options)
    for note in prepared.notes(out):
        click.echo(f"note: {note}", err=True)
    names = [each.scenario.task.name for each in prepared.tasks]
    printed: defaultdict[int, int] = defaultdict(int)
    if not as_json:
        learners = format_count(prepared.fleet.learners, "learner")
        write(f"{', '.join(names)}: {prepared.scheme}, {learners}\n")

    def watch(number: int, progress: RunProgress, _step: Step) -> None:
        if progress.evaluated_number > printed[number]:
            printed[number] = progress.evaluated_number
            if not as_json and (cycle := progress.evaluated_cycle):
                write(f"{names[number]}, {cycle_line(cycle)}\n")

    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        report = run_tasks(prepared, out, watch)
    if as_json:
        write_json(report.as_dict())
    else:
        write(service_summary_view(report))
        took_s = time.monotonic() - began
        write(f"{report.ended_s:.1f} s simulated in {took_s:.1f} s\n")
    exit_with(report.outcome)
