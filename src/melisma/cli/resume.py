"""`melisma resume`: go on with a run whose process ended or was killed."""

import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from melisma.cli.durations import DURATION
from melisma.cli.options import COUNT, FILE, json_option, show_option
from melisma.cli.orchestrate import OrchestratorScreen
from melisma.cli.output import exit_with, write, write_json
from melisma.cli.run import RunWatcher, print_note, watch_run
from melisma.cli.service_run import resume_emulated_tasks
from melisma.cli.views.run_summary_view import NO_GROUPS, run_summary_view
from melisma.errors import SettingError
from melisma.live.orchestration import run_orchestrator
from melisma.live.preparation import PreparedTask
from melisma.live.resume_preparation import prepare_resumption
from melisma.live.run_resumption import NewGoal
from melisma.live.run_setup import Reachability
from melisma.live.service.service_folder import is_service_folder
from melisma.live.training import run
from melisma.runs.report import Report


@click.command("resume", short_help="Go on with a run that was killed, or beyond its end.")
@click.argument("folder", metavar="RUN_FOLDER", type=FILE)
@click.option("--cycles", type=COUNT, metavar="N", help="Continue until cycle N.")
@click.option(
    "--total",
    "total_s",
    type=DURATION,
    help="Time from now, such as 90, 10min or 2h, for a run with a total time.",
)
@click.option(
    "--from", "start", type=FILE, metavar="MODEL", help="Go on from this model.safetensors."
)
@show_option
@json_option
def command(
    *,
    folder: Path,
    cycles: int | None,
    total_s: float | None,
    start: Path | None,
    show: int,
    as_json: bool,
) -> None:
    """Go on with the run in RUN_FOLDER, in the cycle in which it was killed.

    Devices that joined it reconnect by themselves; emulated ones are started again. A run that had
    ended goes on with more cycles, or from another model.
    """
    if is_service_folder(folder):
        _check_no_goal(cycles, total_s, start)
        resume_emulated_tasks(folder, print_note, as_json=as_json)
    if is_service_folder(folder.resolve().parent):
        raise SettingError(
            f"{folder} is the folder of one of several tasks: use melisma resume "
            f"{folder.parent}, or melisma orchestrate --out {folder.parent} for a service"
        )
    # Output of the user's modules must not mix with the report.
    with redirect_stdout(sys.stderr):
        prepared, setup = prepare_resumption(folder, NewGoal(cycles, total_s), start)
    groups = NO_GROUPS
    if not as_json:
        write(f"{prepared.describe_resumption()}\n")
    if setup.fleet is not None:
        groups = setup.fleet.ranges
        report = _resume_emulated(prepared, as_json=as_json)
    else:
        assert setup.reachability is not None
        report = _resume_on_devices(prepared, setup.reachability, as_json=as_json)
    if as_json:
        write_json(report.as_dict())
    else:
        write(run_summary_view(report, show, groups))
    exit_with(report.outcome)


def _check_no_goal(cycles: int | None, total_s: float | None, start: Path | None) -> None:
    """Raise `SettingError` for options of a run of one task."""
    for option, value in {"--cycles": cycles, "--total": total_s, "--from": start}.items():
        if value is not None:
            raise SettingError(f"{option} is for one task, and there are several; remove it")


def _resume_emulated(prepared: PreparedTask, *, as_json: bool) -> Report:
    watcher = RunWatcher()
    watcher.catch_up(prepared.earlier_steps)
    with watch_run(watcher, as_json=as_json) as watch:
        return run(prepared, watch=watch, on_fetch=watcher.on_fetch, on_note=print_note)


def _resume_on_devices(
    prepared: PreparedTask, reachability: Reachability, *, as_json: bool
) -> Report:
    screen = OrchestratorScreen(as_json=as_json)
    screen.catch_up(prepared.earlier_steps)
    settings = reachability.settings(screen.decide if reachability.approves else None)
    with screen.open():
        return run_orchestrator(prepared, settings, screen)
