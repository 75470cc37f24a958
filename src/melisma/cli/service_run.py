"""Several tasks in `run`, `resume` and `simulate`: a line for each cycle, one summary of all."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import NoReturn

import click

from melisma.cli.output import exit_with, write, write_json
from melisma.cli.views.run_view import cycle_line
from melisma.cli.views.service_view import service_summary_view
from melisma.cli.views.table_view import format_count
from melisma.errors import SettingError
from melisma.live.service.emulated_service import run_service
from melisma.live.service.service_preparation import (
    PreparedTasks,
    ServiceOptions,
    prepare_service,
    recover_service,
)
from melisma.runs.progress import RunProgress
from melisma.runs.service_progress import ServiceStep
from melisma.runs.service_report import ServiceReport
from melisma.runs.trace import Step
from melisma.service import commands
from melisma.simulation.service.service_simulation import prepare_tasks, run_tasks
from melisma.simulation.simulation import SimulationOptions


def check_show() -> None:
    """Raise `SettingError` if `--show` was given: the summary of several tasks has no learners."""
    source = click.get_current_context().get_parameter_source("show")
    if source is click.core.ParameterSource.COMMANDLINE:
        raise SettingError(
            "--show lists the learners of one task, and there are several; remove it"
        )


class TaskLines:
    """Prints a line for each cycle of each task, and for each task that has to wait."""

    def __init__(self, names: Mapping[int, str], *, quiet: bool) -> None:
        self._names, self._quiet = names, quiet
        self._printed = dict.fromkeys(names, 0)

    def skip(self, number: int, progress: RunProgress) -> None:
        """Take the cycles so far as printed, by an earlier process."""
        self._printed[number] = progress.evaluated_number

    def apply(self, number: int, progress: RunProgress) -> None:
        """Print the line of a cycle that was evaluated since the last call."""
        if progress.evaluated_number <= self._printed[number]:
            return
        self._printed[number] = progress.evaluated_number
        if not self._quiet and (cycle := progress.evaluated_cycle):
            write(f"{self._names[number]}, {cycle_line(cycle)}\n")

    def apply_service(self, step: ServiceStep) -> None:
        """Print which tasks have to wait, and why."""
        for command in step.commands:
            if isinstance(command, commands.HoldTask) and not self._quiet:
                write(f"{self._names[command.number]} waits: {command.reason}\n")


def simulate_tasks(
    files: Sequence[Path],
    fleet: Path,
    options: SimulationOptions,
    out: Path | None,
    *,
    as_json: bool,
) -> NoReturn:
    """Run tasks that share a fleet in virtual time, print their report and exit."""
    check_show()
    began = time.monotonic()
    # Output of the user's modules must not mix with the report.
    with redirect_stdout(sys.stderr):
        prepared = prepare_tasks(files, fleet, options)
    for note in prepared.notes(out):
        click.echo(f"note: {note}", err=True)
    names = [each.scenario.task.name for each in prepared.tasks]
    lines = TaskLines(dict(enumerate(names)), quiet=as_json)
    if not as_json:
        write(_heading(names, prepared.scheme, prepared.fleet.learners))

    def watch(number: int, progress: RunProgress, _step: Step) -> None:
        lines.apply(number, progress)

    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        report = run_tasks(prepared, out, watch)
    _print_report(report, as_json=as_json)
    if not as_json:
        took_s = time.monotonic() - began
        write(f"{report.ended_s:.1f} s simulated in {took_s:.1f} s\n")
    exit_with(report.outcome)


def run_emulated_tasks(
    files: Sequence[Path],
    fleet: Path,
    options: ServiceOptions,
    port: int,
    note: Callable[[str], None],
    *,
    as_json: bool,
) -> NoReturn:
    """Run tasks that share a fleet on emulated devices, print their report and exit."""
    check_show()
    with redirect_stdout(sys.stderr):
        prepared = prepare_service(files, fleet, options)
    run_prepared_tasks(prepared, port, note, as_json=as_json)


def resume_emulated_tasks(folder: Path, note: Callable[[str], None], *, as_json: bool) -> NoReturn:
    """Go on with tasks that share emulated devices, print their report and exit."""
    check_show()
    with redirect_stdout(sys.stderr):
        prepared = recover_service(folder)
    if not as_json:
        write(f"{', '.join(prepared.task_names.values())}: going on in {prepared.folder}\n")
    run_prepared_tasks(prepared, 0, note, as_json=as_json)


def run_prepared_tasks(
    prepared: PreparedTasks, port: int, note: Callable[[str], None], *, as_json: bool
) -> NoReturn:
    """Run tasks on emulated devices, print their report and exit."""
    for line in prepared.notes:
        note(line)
    names = prepared.task_names
    lines, progress = TaskLines(names, quiet=as_json), {}
    for number, each in prepared.tasks.items():
        progress[number] = RunProgress()
        for step in each.earlier_steps:
            progress[number].apply(step)
        lines.skip(number, progress[number])
    if not as_json:
        write(_heading([*names.values()], prepared.scheme, len(prepared.names)))

    def watch_task(number: int, step: Step) -> None:
        progress[number].apply(step)
        lines.apply(number, progress[number])

    report = run_service(
        prepared, port, watch_task=watch_task, watch=lines.apply_service, on_note=note
    )
    _print_report(report, as_json=as_json)
    exit_with(report.outcome)


def _heading(names: Sequence[str], scheme: str, learners: int) -> str:
    return f"{', '.join(names)}: {scheme}, {format_count(learners, 'learner')}\n"


def _print_report(report: ServiceReport, *, as_json: bool) -> None:
    if as_json:
        write_json(report.as_dict())
    else:
        write(service_summary_view(report))
