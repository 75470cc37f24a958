"""`melisma orchestrate`: train a task on devices that join over the network."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import NoReturn

import click
from rich.live import Live

from melisma.cli.durations import DURATION
from melisma.cli.options import (
    COUNT,
    FILE,
    PORT,
    default_task_argument,
    json_option,
    run_options,
    show_option,
)
from melisma.cli.output import exit_with, has_live_terminal, write, write_json
from melisma.cli.run import RunWatcher, live_view, loading_line
from melisma.cli.scheme_option import tasks_scheme_option
from melisma.cli.views.invitation_view import invitation_lines, qr_code
from melisma.cli.views.run_summary_view import run_summary_view
from melisma.cli.views.run_view import cycle_line
from melisma.cli.views.service_view import service_summary_view
from melisma.errors import SettingError
from melisma.fleet.run_settings import RunSettings
from melisma.live.invitation import Invitation, OrchestrationObserver
from melisma.live.orchestration import run_orchestrator
from melisma.live.orchestrator.lobby import DEFAULT_UNTIL_READY_S, StartCondition
from melisma.live.orchestrator_settings import DEFAULT_PORT, MAX_LEARNERS, OrchestratorSettings
from melisma.live.resume_preparation import prepare_or_resume
from melisma.live.service.served_service import serve_tasks
from melisma.live.service.service_folder import ServiceFolder, is_service_folder
from melisma.runs.progress import RunProgress
from melisma.runs.trace import Step

TASK_OPTIONS = (
    *("learners", "until_ready", "deadline_s", "total_s", "finish_by", "start", "aggregation"),
    "show",
)


class OrchestratorScreen(OrchestrationObserver):
    """Prints lines until the run begins; then the live view, in a terminal, or further lines.

    With `as_json`, lines go to standard error, which leaves standard output to the report.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(self._print, self._on_step)
        self._as_json = as_json
        self._is_terminal = not as_json and has_live_terminal()
        self._watcher, self._lock = RunWatcher(), Lock()
        self._live: Live | None = None
        self._printed: dict[int, int] = {}  # the latest cycle of each task of a service
        self._open_question = ""

    @contextmanager
    def open(self) -> Iterator[None]:
        """End the live view at the end of a ``with``."""
        try:
            yield
        finally:
            self._stop_live()

    def catch_up(self, steps: Iterable[Step]) -> None:
        """Apply the steps of earlier processes, which have printed their lines already."""
        self._watcher.catch_up(steps)

    def on_invitation(self, invitation: Invitation) -> None:
        """Print the command for devices, a QR code of it in a terminal, and the addresses."""
        command, details = invitation_lines(invitation)
        self._print(command)
        if self._is_terminal and (code := qr_code(invitation.command, sys.stdout.encoding)):
            self._print(code)
        for line in details:
            self._print(line)

    def decide(self, name: str, fingerprint: str, host: str | None) -> bool:
        """Ask the owner about a device; without an answer it may not join."""
        question = f"let {name} join? it calls from {host}, with the identity {fingerprint[:23]}"
        with self._lock:
            self._stop_live()
            self._open_question = question
            try:
                return click.confirm(question, default=False, err=True)
            except click.Abort:
                return False
            finally:
                self._open_question = ""
                if self._watcher.began:
                    self._start_live()

    def _print(self, line: str) -> None:
        question = self._open_question
        if question:
            click.echo(err=True)
        self._print_line(line)
        if question:
            # The line would hide what the terminal waits for.
            click.echo(f"{question} [y/N]: ", nl=False, err=True)

    def _print_line(self, line: str) -> None:
        if self._as_json:
            click.echo(line, err=True)
        elif self._live is not None:
            self._live.console.print(line)
        else:
            write(f"{line}\n")

    def _on_step(self, step: Step) -> None:
        if self._as_json:
            return
        self._watcher.apply_and_print(step, self._print)
        if self._is_terminal and self._live is None and self._lock.acquire(blocking=False):
            try:
                self._start_live()
            finally:
                self._lock.release()

    def watch_task(self, number: int, progress: RunProgress, step: Step) -> None:
        """Print a line for each cycle of each task."""
        cycle = progress.evaluated_cycle
        if cycle is not None and progress.evaluated_number > self._printed.get(number, 0):
            self._printed[number] = progress.evaluated_number
            self._print(f"{progress.task.name}, {cycle_line(cycle)}")

    def _start_live(self) -> None:
        if self._is_terminal and self._live is None:
            self._live = live_view(self._watcher)
            self._live.start()

    def on_fetch(self, learner: int) -> None:
        """Show that a learner is fetching."""
        self._watcher.on_fetch(learner)

    def _stop_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


def _read_until_ready(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> float | str | None:
    """Return a duration in seconds, and a time as it is."""
    if value is None or ":" in value:
        return value
    return DURATION.convert(value, parameter, context)


def _serve(
    out: Path | None,
    scheme: str | None,
    budget: float | None,
    settings: OrchestratorSettings,
    screen: OrchestratorScreen,
    *,
    as_json: bool,
) -> NoReturn:
    """Serve tasks until Ctrl-C, print their report and exit."""
    _check_no_task_options()
    if out is not None and is_service_folder(out):
        folder = ServiceFolder.open(out, scheme, budget)
        if _is_default("port"):
            settings = replace(settings, port=folder.setup.port)
        screen.say(f"the service goes on in {folder.path}")
    else:
        folder = ServiceFolder.create(out, scheme, budget)
    report = serve_tasks(folder, settings, screen)
    if as_json:
        write_json(report.as_dict())
    else:
        write(service_summary_view(report))
    sys.exit(0)


def _is_default(option: str) -> bool:
    """Return whether an option was not given."""
    source = click.get_current_context().get_parameter_source(option)
    return source is not click.core.ParameterSource.COMMANDLINE


def _check_no_task_options() -> None:
    """Raise `SettingError` for options that say when the run of one task begins, or how."""
    context, given = click.get_current_context(), click.core.ParameterSource.COMMANDLINE
    for option in context.command.params:
        if option.name in TASK_OPTIONS and context.get_parameter_source(option.name) is given:
            raise SettingError(
                f"{option.opts[-1]} is for one task: name its file, or leave the option out and "
                "use melisma submit"
            )


@click.command("orchestrate", short_help="Train a task on devices that join over the network.")
@default_task_argument
@click.option("--learners", type=COUNT, metavar="N", help="Begin when N learners are ready.")
@click.option(
    "--until-ready",
    callback=_read_until_ready,
    metavar="DURATION|TIME",
    help="Begin after this time, or at a time such as 23:00, with the learners that are ready, at "
    f"least one; default without --learners: {DEFAULT_UNTIL_READY_S:g}.",
)
@click.option("--host", default="", metavar="ADDRESS", help="Listen on this address only.")
@click.option("--port", default=DEFAULT_PORT, show_default=True, type=PORT, help="TCP port.")
@click.option("--approve", is_flag=True, help="Ask in the terminal about each new device.")
@click.option("--once", is_flag=True, help="The join string is valid for one new device only.")
@click.option(
    "--max-learners", default=MAX_LEARNERS, show_default=True, type=COUNT, help="Refuse more."
)
@tasks_scheme_option
@run_options
@click.option(
    "--out",
    type=FILE,
    help="New folder for results, or that of an earlier run, which goes on; default: one in runs/.",
)
@click.option("--name", default="", help="Name in the network; default: that of this machine.")
@click.option("--no-discovery", is_flag=True, help="Do not announce this machine in the network.")
@show_option
@click.option(
    "--budget", type=float, help="Most that a round of all tasks may cost; without TASK.toml only."
)
@json_option
def command(  # noqa: PLR0913 - one argument per option
    *,
    task: Path | None,
    budget: float | None,
    learners: int | None,
    until_ready: float | str | None,
    host: str,
    port: int,
    approve: bool,
    once: bool,
    max_learners: int,
    scheme: str | None,
    run_settings: RunSettings,
    out: Path | None,
    name: str,
    no_discovery: bool,
    show: int,
    as_json: bool,
) -> None:
    """Train TASK.toml on devices that join over the network, by its deadline.

    Prints the command with which devices join; they may also join and leave during the run. Without
    a file, it is a service for the tasks that `melisma submit` adds, until Ctrl-C; with the folder
    of an earlier service, that one goes on.
    """
    screen = OrchestratorScreen(as_json=as_json)
    settings = OrchestratorSettings(
        start=StartCondition(learners, until_ready),
        host=host,
        port=port,
        approve=screen.decide if approve else None,
        once=once,
        max_learners=max_learners,
        name=name,
        discovery=not no_discovery,
    )
    if task is None:
        _serve(out, scheme, budget, settings, screen, as_json=as_json)
    if budget is not None:
        raise SettingError("--budget is for a service: set budget in the task's file")
    screen.say(loading_line(task))
    # Output of the user's modules must not mix with the report.
    with redirect_stdout(sys.stderr):
        prepared = prepare_or_resume(task, scheme, out, run_settings)
    screen.catch_up(prepared.earlier_steps)
    with screen.open():
        report = run_orchestrator(prepared, settings, screen)
    if as_json:
        write_json(report.as_dict())
    else:
        write(run_summary_view(report, show))
    exit_with(report.outcome)
