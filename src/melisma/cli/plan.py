"""`melisma plan`: who would get how much, when each would end, and whether the deadline holds.

Nothing is trained and nobody is called: costs are what the files say of task and devices.
It ends with 0 if a plan keeps deadlines and budget, and with 1 if none does.
"""

import json
from math import inf

import click

from melisma.allocation.schemes import SCHEMES, Scheme, get_scheme
from melisma.cli import output
from melisma.cli.views import plan_data, plan_view
from melisma.errors import SettingError, suggest
from melisma.fleet.files.fleet_builder import read_fleet
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task, read_sized_task


@click.command("plan")
@click.argument("tasks", nargs=-1, required=True, metavar="TASK.toml...")
@click.option("--fleet", "fleet_path", required=True, metavar="FLEET.toml", help="The devices.")
@click.option("--scheme", help="Instead of the task's own; `med` for several tasks.")
@click.option("--all", "every", is_flag=True, help="Compare all schemes of this kind.")
@click.option(
    "--time-limit",
    "time_limit_s",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds for med to search; it then gives its best plan and the gap.",
)
@click.option("--show", type=int, default=20, show_default=True, help="Learners to list at most.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def command(  # noqa: PLR0913 - one argument an option
    *,
    tasks: tuple[str, ...],
    fleet_path: str,
    scheme: str | None,
    every: bool,
    time_limit_s: float,
    show: int,
    as_json: bool,
) -> None:
    """Say who would get how much by when, and whether the deadline can be met."""
    if scheme is not None and every:
        raise SettingError("--scheme and --all exclude each other")
    if show < 0:
        raise SettingError(f"--show is {show}; expected at least 0")
    if not 0 < time_limit_s < inf:
        raise SettingError(f"--time-limit is {time_limit_s:g}; expected seconds, more than 0")
    read = [read_sized_task(path) for path in tasks]
    _check(tasks, read, own=scheme is None and not every)
    first = _scheme_of(read, scheme)
    fleet = read_fleet(fleet_path)
    rows = _alike(first) if every else [first]
    _check_rows(tasks, read, rows)
    _check_own(tasks, read, fleet)
    if every:
        reports = [_compared(row, read, fleet, time_limit_s) for row in rows]
    else:
        reports = [plan_data.report(first, read, fleet, time_limit_s)]
    if as_json:
        whole = {"plans": reports} if every else reports[0]
        output.write(json.dumps(whole, default=list, allow_nan=False) + "\n")
    else:
        view = plan_view.comparison(reports) if every else plan_view.plan(reports[0], show)
        output.write(view)
    if not any(map(plan_data.holds, reports)):
        raise click.exceptions.Exit(1)


def _check(paths: tuple[str, ...], tasks: list[Task], *, own: bool) -> None:
    """What a task says of its scheme must fit if that is to be used; no two may have one name."""
    for path, task in zip(paths, tasks, strict=True):
        if task.scheme not in SCHEMES:
            expected = suggest(task.scheme, SCHEMES)
            raise SettingError(f"{path}: task.scheme: {task.scheme!r}; {expected}")
        if own and SCHEMES[task.scheme].passes == "chosen" and task.passes is not None:
            raise SettingError(
                f"{path}: task.passes: scheme {task.scheme} chooses passes by itself; leave it out"
            )
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise SettingError(f"two tasks have one name: {', '.join(paths)}")


def _scheme_of(tasks: list[Task], asked: str | None) -> Scheme:
    """The scheme asked for, or the one that all tasks name; several share by `med` unless told."""
    if asked is None and len(tasks) > 1:
        named = {SCHEMES[task.scheme] for task in tasks}
        row = named.pop() if len(named) == 1 else SCHEMES["med"]
        return row if row.problem == "shared" else SCHEMES["med"]
    row = get_scheme(tasks[0].scheme if asked is None else asked)
    if len(tasks) > 1 and row.problem != "shared":
        shared = " or ".join(each.name for each in SCHEMES.values() if each.problem == "shared")
        raise SettingError(f"scheme {row.name} plans one task; several need --scheme {shared}")
    return row


def _check_rows(paths: tuple[str, ...], tasks: list[Task], rows: list[Scheme]) -> None:
    """What none of these schemes can do without, or with."""
    name = rows[0].name
    for path, task in zip(paths, tasks, strict=True):
        if task.passes is None and all(row.passes == "fixed" for row in rows):
            raise SettingError(
                f"{path}: task: passes is missing; scheme {name} needs it, such as passes = 1"
            )
        if task.max_shards is not None and rows[0].problem == "shared":
            raise SettingError(
                f"{path}: task.max_shards: scheme {name} knows no largest share; leave it out"
            )


def _check_own(paths: tuple[str, ...], tasks: list[Task], fleet: Fleet) -> None:
    """Data that stays on devices must be enough for all of them."""
    for path, task in zip(paths, tasks, strict=True):
        try:
            fleet.own_shards(task)
        except SettingError as error:
            raise SettingError(f"{path}: {error}") from None


def _alike(first: Scheme) -> list[Scheme]:
    return [row for row in SCHEMES.values() if row.problem == first.problem]


def _compared(
    row: Scheme, tasks: list[Task], fleet: Fleet, time_limit_s: float
) -> plan_data.Report:
    """A comparison goes on without the schemes that cannot take part."""
    if row.max_learners is not None and fleet.learners > row.max_learners:
        return plan_data.skipped(row, tasks, f"left out beyond {row.max_learners} learners")
    try:
        return plan_data.report(row, tasks, fleet, time_limit_s)
    except SettingError as error:
        return plan_data.skipped(row, tasks, str(error))
