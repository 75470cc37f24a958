"""`melisma simulate`: run a task on a fleet in virtual time, with or without faults.

The exit code is 0 if the run succeeded, and 1 if it failed or violated an invariant.
"""

import dataclasses
import gc
import sys
import time
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, get_args

import click
import msgspec

from melisma.cli.options import (
    DEFAULT_FLEET,
    DEFAULT_TASK,
    FILE,
    default_fleet_option,
    default_tasks_argument,
    faults_option,
    json_option,
    learners_option,
    run_options,
    search_faults_option,
    show_option,
)
from melisma.cli.output import exit_with, write
from melisma.cli.scheme_option import tasks_scheme_option
from melisma.cli.service_run import simulate_tasks
from melisma.cli.status_line import status_line
from melisma.cli.suggestions import SuggestingChoice
from melisma.cli.views.run_summary_view import run_summary_view
from melisma.cli.views.run_view import cycle_line
from melisma.cli.views.table_view import format_count
from melisma.errors import SettingError
from melisma.fleet.run_settings import RunSettings
from melisma.runs.folder import check_run_folder
from melisma.runs.progress import RunProgress
from melisma.runs.report import Report
from melisma.runs.trace import Step
from melisma.simulation import fault_search
from melisma.simulation.compute.memory import keep_freed_memory, return_freed_memory
from melisma.simulation.fault_search import Failure, replay_command
from melisma.simulation.fault_targets import FaultTargets
from melisma.simulation.faults import format_faults
from melisma.simulation.invariants.invariants import Invariants
from melisma.simulation.scenario import Scenario
from melisma.simulation.simulation import (
    ComputeLevel,
    PreparedSimulation,
    SimulationOptions,
    prepare,
    run,
)

SEED = click.IntRange(0)
# Of computing, after which the status line names the way without training.
LONG_CYCLE_S = 10.0


@click.command("simulate", short_help="Run a task on a fleet in virtual time.")
@default_tasks_argument
@default_fleet_option
@tasks_scheme_option
@learners_option
@click.option("--seed", type=SEED, help="Seed, instead of those of task and fleet.")
@run_options
@click.option(
    "--work",
    type=SuggestingChoice(get_args(ComputeLevel)),
    help="What learners compute, instead of the task's simulation.work.",
)
@faults_option
@search_faults_option
@click.option("--out", type=FILE, help="Empty or new folder for model, picture and trace.")
@show_option
@json_option
def command(  # noqa: PLR0913 - one argument per option
    *,
    tasks: tuple[Path, ...],
    fleet: Path | None,
    scheme: str | None,
    learners: int | None,
    seed: int | None,
    run_settings: RunSettings,
    work: ComputeLevel | None,
    faults: str,
    search_faults: int | None,
    out: Path | None,
    show: int,
    as_json: bool,
) -> None:
    """Run TASK.toml on a fleet in virtual time: the same decisions, without the devices.

    Several tasks share the fleet. Without a file: handwritten digits, on four devices of unequal
    speed.
    """
    if search_faults and (faults or out):
        raise SettingError(
            "--search-faults draws its faults and saves nothing; remove --faults and --out"
        )
    if search_faults and work not in (None, "timing"):
        raise SettingError(f"--search-faults trains nothing; remove --work {work}")
    if out is not None:
        check_run_folder(out)
    keep_freed_memory()
    if search_faults and len(tasks) > 1:
        raise SettingError(f"--search-faults is for one task, found {len(tasks)}; name one")
    files = tasks[0] if tasks else DEFAULT_TASK, fleet or DEFAULT_FLEET
    options = SimulationOptions(
        scheme,
        learners,
        seed,
        "timing" if search_faults else work,
        faults,
        **dataclasses.asdict(run_settings),
    )
    if len(tasks) > 1:
        simulate_tasks(tasks, files[1], options, out, as_json=as_json)
    # Output of the user's modules must not mix with the report.
    with redirect_stdout(sys.stderr):
        prepared = prepare(*files, options)
    if search_faults is None:
        _simulate(prepared, out, show, as_json=as_json)
    first = prepared.scenario.task.seed
    failures = _search_faults(
        files, options, range(first, first + (search_faults or 0)), quiet=as_json
    )
    if as_json:
        violations = [
            {
                "violation": failure.violation,
                "command": replay_command(files, options, failure),
            }
            for failure in failures
        ]
        write(
            msgspec.json.encode({"schedules": search_faults, "violations": violations}).decode()
            + "\n"
        )
    else:
        write(f"{search_faults} fault schedules, {len(failures)} violations\n")
    sys.exit(1 if failures else 0)


def _simulate(
    prepared: PreparedSimulation, out: Path | None, show: int, *, as_json: bool
) -> NoReturn:
    invariants, progress, began = Invariants(), RunProgress(), time.monotonic()
    clock, scenario = CycleClock(prepared), prepared.scenario
    faults = format_faults(scenario.faults, FaultTargets.of_fleet(scenario.fleet))
    for note in prepared.notes(out):
        click.echo(f"note: {note}", err=True)
    if not as_json:
        write(f"{_heading(prepared)}\n")

    def watch(step: Step) -> None:
        if faults:
            invariants.check(step)
        if progress.evaluated_number <= clock.finished:
            return
        clock.finish(progress.evaluated_number)
        erase()
        if not as_json and (cycle := progress.evaluated_cycle):
            write(f"{cycle_line(cycle)}\n")

    # Output of the user's modules must not mix with the report.
    with (
        redirect_stdout(sys.stderr) if as_json else nullcontext(),
        status_line(clock.text) as erase,
    ):
        report = run(prepared, out, watch, progress)
    # The parts of the driver refer to each other: without this, the arrays of all learners would
    # stay while the figures of the report need as much memory again.
    gc.collect()
    return_freed_memory()
    if faults:
        invariants.check_end()
    if as_json:
        write(msgspec.json.encode({**report.as_dict(), "faults": faults}).decode() + "\n")
    else:
        write(run_summary_view(report, show, scenario.fleet.groups))
        write(f"{_usage_line(report)}\n")
        took_s = time.monotonic() - began
        write(f"{report.ended_s:.1f} s simulated in {took_s:.1f} s\n")
        write(f"with faults ({faults}); all invariants held\n" if faults else "")
    exit_with(report.outcome)


class CycleClock:
    """The number of finished cycles, and the time that computing a cycle takes."""

    def __init__(self, prepared: PreparedSimulation) -> None:
        self.finished = 0
        self._task = prepared.scenario.task
        self._trains = prepared.level != "timing"
        self._began = time.monotonic()
        self._took_s = 0.0

    def finish(self, cycle: int) -> None:
        """Record that a cycle has finished now."""
        now = time.monotonic()
        self.finished, self._took_s, self._began = cycle, now - self._began, now

    def text(self) -> str:
        """Return the cycle that is computed and its time so far."""
        elapsed_s, number = time.monotonic() - self._began, self.finished + 1
        if self._task.cycles is not None:
            number = min(number, self._task.cycles)
        before = f"; cycle {self.finished} took {self._took_s:.0f} s" if self.finished else ""
        hint = ""
        if self._trains and max(elapsed_s, self._took_s) > LONG_CYCLE_S:
            hint = "; --work timing simulates without training"
        return f"computing {self._task.describe_cycle(number)}: {elapsed_s:.0f} s{before}{hint}"


def _heading(prepared: PreparedSimulation) -> str:
    task, fleet = prepared.scenario.task, prepared.scenario.fleet
    return (
        f"{task.name}: {task.scheme}, {format_count(fleet.learners, 'learner')}, "
        f"{task.describe_cycles()}, {prepared.level}, seed {task.seed}"
    )


def _usage_line(report: Report) -> str:
    """Return the time without training, and the bytes of the run, in one line."""
    usage = [
        f"{report.outside_s:.1f} s of measuring and waiting",
        f"{_format_bytes(report.bytes)} transferred",
    ]
    return ", ".join(usage)


def _format_bytes(count: float) -> str:
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if count >= size:
            return f"{count / size:,.1f} {name}"
    return f"{count / 1e3:,.1f} kB"


def _search_faults(
    files: tuple[Path, Path], options: SimulationOptions, seeds: range, *, quiet: bool
) -> list[Failure]:
    failures = []

    def scenario(seed: int) -> Scenario:
        return prepare(*files, replace(options, seed=seed)).scenario

    for failure in fault_search.search_faults(scenario, seeds):
        if failure is None:
            continue
        failures.append(failure)
        if not quiet:
            write(f"{failure.violation}:\n  {replay_command(files, options, failure)}\n")
    return failures
