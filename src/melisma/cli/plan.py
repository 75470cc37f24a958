"""`melisma plan`: print how much each learner would train, and whether the deadline can be met.

Nothing is trained and no device is contacted: costs come from the task and fleet files.
The exit code is 0 if a plan keeps deadlines and budget, and 1 if none does.
"""

import json
from math import inf
from pathlib import Path

import click

from melisma.allocation.schemes import SCHEMES, Scheme, get_scheme, load_scheme
from melisma.cli import output
from melisma.cli.options import (
    DEFAULT_FLEET,
    DEFAULT_TASK,
    default_fleet_option,
    json_option,
    learners_option,
    show_option,
    time_options,
)
from melisma.cli.plan_report import PlanReport, build_plan_report, is_met, skip_report
from melisma.cli.scheme_option import plan_scheme_option
from melisma.cli.views.plan_view import plan_comparison_view, plan_view
from melisma.errors import SettingError
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.fleet import Fleet
from melisma.fleet.run_time import RunTime
from melisma.fleet.task import Task, naming_task_file
from melisma.learning.loaded_task import load_sized_task


@click.command("plan", short_help="Print the plan of a cycle and check the deadline.")
@click.argument("tasks", nargs=-1, metavar="[TASK.toml]...")
@default_fleet_option
@plan_scheme_option
@learners_option
@time_options
@click.option(
    "--all", "compare_all", is_flag=True, help="Compare all schemes for this kind of problem."
)
@click.option(
    "--time-limit",
    "time_limit_s",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds that med may search; then it returns its best plan and the gap.",
)
@show_option
@json_option
def command(  # noqa: PLR0913 - one argument per option
    *,
    tasks: tuple[str, ...],
    fleet: Path | None,
    scheme: str | None,
    learners: int | None,
    run_time: RunTime,
    compare_all: bool,
    time_limit_s: float,
    show: int,
    as_json: bool,
) -> None:
    """Print how much each learner would train, and whether the deadline can be met.

    Without a file: handwritten digits, on four devices of unequal speed.
    """
    tasks = tasks or (str(DEFAULT_TASK),)
    if scheme is not None and compare_all:
        raise SettingError("--scheme and --all exclude each other; use one of them")
    if not 0 < time_limit_s < inf:
        raise SettingError(f"--time-limit is {time_limit_s:g}; expected seconds, more than 0")
    loaded = [run_time.apply(load_sized_task(path)).with_total() for path in tasks]
    _check_tasks(tasks, loaded, use_own_scheme=scheme is None and not compare_all)
    selected = _select_scheme(loaded, scheme, tasks[0])
    devices = read_fleet(fleet or DEFAULT_FLEET, learners)
    schemes = _schemes_like(selected) if compare_all else [selected]
    _check_schemes(tasks, loaded, schemes)
    _check_local_shards(tasks, loaded, devices)
    if compare_all:
        reports = [_plan_or_skip(row, loaded, devices, time_limit_s) for row in schemes]
    else:
        reports = [build_plan_report(selected, loaded, devices, time_limit_s)]
    if as_json:
        result = {"plans": reports} if compare_all else reports[0]
        output.write(json.dumps(result, default=list, allow_nan=False) + "\n")
    else:
        output.write(plan_comparison_view(reports) if compare_all else plan_view(reports[0], show))
    if not any(map(is_met, reports)):
        raise click.exceptions.Exit(1)


def _check_tasks(paths: tuple[str, ...], tasks: list[Task], *, use_own_scheme: bool) -> None:
    """Raise SettingError for unknown schemes, passes that a scheme chooses, and equal names."""
    for path, task in zip(paths, tasks, strict=True):
        with naming_task_file(path):
            scheme = load_scheme(task.scheme, path)
        if use_own_scheme and scheme.passes == "chosen" and task.passes is not None:
            raise SettingError(
                f"{path}: task.passes: scheme {task.scheme} chooses the passes; remove it"
            )
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise SettingError(f"two tasks have the same name in {', '.join(paths)}; rename one")


def _select_scheme(tasks: list[Task], name: str | None, path: str) -> Scheme:
    """Return the scheme called `name`, or that of the tasks; several tasks default to med.

    `path` is the file of the first task.
    """
    if name is None and len(tasks) > 1:
        names = {task.scheme for task in tasks}
        scheme = get_scheme(names.pop()) if len(names) == 1 else SCHEMES["med"]
        return scheme if scheme.problem == "shared" else SCHEMES["med"]
    scheme = load_scheme(tasks[0].scheme if name is None else name, path)
    if len(tasks) > 1 and scheme.problem != "shared":
        shared = " or ".join(row.name for row in SCHEMES.values() if row.problem == "shared")
        raise SettingError(
            f"scheme {scheme.name} plans one task, found {len(tasks)}; use --scheme {shared}"
        )
    return scheme


def _check_schemes(paths: tuple[str, ...], tasks: list[Task], schemes: list[Scheme]) -> None:
    """Raise SettingError for settings that every scheme needs, or that none supports."""
    name = schemes[0].name
    for path, task in zip(paths, tasks, strict=True):
        if task.passes is None and all(row.passes == "fixed" for row in schemes):
            raise SettingError(
                f"{path}: task: passes is missing; scheme {name} needs it, such as passes = 1"
            )
        if task.max_shards is not None and schemes[0].problem == "shared":
            raise SettingError(
                f"{path}: task.max_shards: scheme {name} does not support it; remove it"
            )
        if task.sample is not None and schemes[0].problem != "cycle":
            raise SettingError(f"{path}: task.sample: scheme {name} does not support it; remove it")
        if task.total_s is not None and schemes[0].problem != "cycle":
            raise SettingError(
                f"{path}: task: scheme {name} plans for a deadline; use deadline_s instead of a "
                "total time"
            )


def _check_local_shards(paths: tuple[str, ...], tasks: list[Task], fleet: Fleet) -> None:
    """Raise SettingError if there are fewer shards than devices that hold data."""
    for path, task in zip(paths, tasks, strict=True):
        try:
            fleet.local_shards(task)
        except SettingError as error:
            raise SettingError(f"{path}: {error}") from None


def _schemes_like(scheme: Scheme) -> list[Scheme]:
    """Return all schemes for the same kind of problem."""
    return [row for row in SCHEMES.values() if row.problem == scheme.problem]


def _plan_or_skip(
    scheme: Scheme, tasks: list[Task], fleet: Fleet, time_limit_s: float
) -> PlanReport:
    """Plan by one scheme of a comparison, or report why it is skipped."""
    if scheme.max_learners is not None and fleet.learners > scheme.max_learners:
        return skip_report(scheme, tasks, f"skipped: more than {scheme.max_learners} learners")
    try:
        return build_plan_report(scheme, tasks, fleet, time_limit_s)
    except SettingError as error:
        return skip_report(scheme, tasks, str(error))
