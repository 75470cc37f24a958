"""`melisma simulate`: a task on a fleet in virtual time, with faults or without.

It ends with 0 if the run went well, with 1 if it failed or if anything broke that must hold.
"""

import sys
import time
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, get_args

import click
import msgspec
import numpy as np

from melisma.cli.files import FILE, FIRST
from melisma.cli.output import write
from melisma.cli.suggestions import SuggestingChoice
from melisma.cli.views.run_summary_view import screen
from melisma.cli.views.run_view import cycle_line
from melisma.cycle.events import Evaluated
from melisma.errors import SettingError
from melisma.runs.progress import RunProgress
from melisma.runs.report import Report
from melisma.runs.trace import Step
from melisma.simulation import fault_search
from melisma.simulation.compute.memory import keep_freed_memory
from melisma.simulation.fault_search import Failure, replay_command
from melisma.simulation.faults import format_faults
from melisma.simulation.invariants import Invariants
from melisma.simulation.scenario import Scenario
from melisma.simulation.simulation import (
    ComputeLevel,
    PreparedSimulation,
    SimulationOptions,
    prepare,
    run,
)

EXIT = {"done": 0, "stopped": 0, "cancelled": 130}
SEED = click.IntRange(0)


@click.command("simulate")
@click.argument("task", metavar="[TASK.toml]", type=FILE, required=False)
@click.option("--fleet", type=FILE, help="FLEET.toml; else two Pis, a phone and a Jetson.")
@click.option("--scheme", help="Allocate by this scheme, whatever the task says.")
@click.option("--learners", type=click.IntRange(1), help="So many, in the fleet's proportions.")
@click.option("--seed", type=SEED, help="Instead of those of task and fleet.")
@click.option("--deadline", "deadline_s", type=float, help="Of a cycle, instead of the task's.")
@click.option(
    "--work", type=SuggestingChoice(get_args(ComputeLevel)), help="Instead of what the task says."
)
@click.option("--faults", default="", help="What goes wrong, in words; a number draws some.")
@click.option("--search-faults", type=click.IntRange(1), help="Check N random fault schedules.")
@click.option("--out", type=FILE, help="Empty or new folder for model, picture and trace.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def command(  # noqa: PLR0913 - one argument an option
    *,
    task: Path | None,
    fleet: Path | None,
    scheme: str | None,
    learners: int | None,
    seed: int | None,
    deadline_s: float | None,
    work: ComputeLevel | None,
    faults: str,
    search_faults: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Run TASK.toml on a fleet in virtual time: the same decisions, without the devices.

    Without a file: handwritten digits, on four unlike devices.
    """
    if search_faults and (faults or out):
        raise SettingError(
            "--search-faults draws faults by itself, and keeps nothing: no --faults, no --out"
        )
    if search_faults and work not in (None, "timing"):
        raise SettingError(f"--search-faults passes time and trains nothing: no --work {work}")
    keep_freed_memory()
    files = task or FIRST / "task.toml", fleet or FIRST / "fleet.toml"
    options = SimulationOptions(
        scheme, learners, seed, "timing" if search_faults else work, faults, deadline_s
    )
    # What modules of one's own print is not the report.
    with redirect_stdout(sys.stderr):
        staged = prepare(*files, options)
    if search_faults is None:
        _run(staged, out, as_json)
    first = staged.scenario.task.seed
    failures = _search_faults(
        files, options, range(first, first + (search_faults or 0)), quiet=as_json
    )
    if as_json:
        found = [
            {"violation": each.violation, "command": replay_command(files, options, each)}
            for each in failures
        ]
        write(
            msgspec.json.encode({"schedules": search_faults, "violations": found}).decode() + "\n"
        )
    else:
        write(f"{search_faults} fault schedules, {len(failures)} violations\n")
    sys.exit(1 if failures else 0)


def _run(staged: PreparedSimulation, out: Path | None, as_json: bool) -> NoReturn:
    books, story, began = Invariants(), RunProgress(), time.monotonic()
    faults = format_faults(staged.scenario.faults)
    if not as_json:
        write(f"{_heading(staged)}\n")

    def watch(step: Step) -> None:
        if faults:
            books.check(step)
        if isinstance(step.event, Evaluated) and not as_json and (ended := story.evaluated_cycle):
            write(f"{cycle_line(ended)}\n")

    # What modules of one's own print is not the report.
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        report = run(staged, out, watch, story)
    if faults:
        books.check_end()
    if as_json:
        write(msgspec.json.encode({**report.as_dict(), "faults": faults}).decode() + "\n")
    else:
        write(screen(report))
        write(f"{_spent(report)}\n")
        took_s = time.monotonic() - began
        write(f"{report.ended_s:.1f} s simulated in {took_s:.1f} s\n")
        write(f"with faults ({faults}); all that must hold, holds\n" if faults else "")
    sys.exit(EXIT.get(report.outcome, 1))


def _heading(staged: PreparedSimulation) -> str:
    task, fleet = staged.scenario.task, staged.scenario.fleet
    return (
        f"{task.name}: {task.scheme}, {fleet.learners:,} learners, {task.cycles} cycles of "
        f"{task.deadline_s:g} s, {staged.level}, seed {task.seed}"
    )


def _spent(report: Report) -> str:
    """What it took beside training."""
    between_s = report.ended_s - report.began_s - float(np.nansum([report.training_s]))
    between_s = max(between_s, 0.0)  # but for rounding it is
    said = [
        f"{between_s:.1f} s of measuring, asking and waiting",
        f"{_bytes(report.bytes)} carried",
    ]
    said += [f"{report.joules:,.1f} J"] if report.joules > 0 else []
    said += [f"cost {report.cost:,.0f}"] if report.cost > 0 else []
    return ", ".join(said)


def _bytes(count: float) -> str:
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
