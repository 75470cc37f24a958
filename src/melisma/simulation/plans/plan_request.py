"""`plan`: how much each learner would train, and whether the deadline holds, without training.

No device is contacted: costs come from the task and the fleet.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from melisma.allocation.schemes import (
    SCHEMES,
    Scheme,
    check_no_budget,
    get_scheme,
    load_scheme,
)
from melisma.errors import SettingError
from melisma.fleet.arguments import check_arguments, describe
from melisma.fleet.files.fleet_builder import scale_fleet
from melisma.fleet.files.task_file import naming_task_file, resolve_task
from melisma.fleet.fleet import Fleet
from melisma.fleet.run_time import TIME_OF_TASK, RunTime
from melisma.fleet.tables import PositiveInt
from melisma.fleet.task import Task
from melisma.learning.given_objects import NO_OBJECTS, GivenObjects
from melisma.learning.loaded_task import load_sized_task
from melisma.simulation.plans.plan_report import PlanReport, build_plan_report, skip_report
from melisma.simulation.plans.plan_result import Plan

AnyTask = Task | str | Path
DEFAULT_TIME_LIMIT_S = 60.0


def plan(  # noqa: PLR0913 - each is a setting of its own
    task: AnyTask | Sequence[AnyTask],
    fleet: Fleet | str | Path,
    *,
    model: Any = None,
    data: Any = None,
    scheme: str | None = None,
    deadline_s: float | None = None,
    total_s: float | None = None,
    finish_by: str | None = None,
    learners: int | None = None,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S,
) -> Plan:
    """Return how much each learner would train in a cycle, and whether the deadline holds.

    Nothing is trained. Several tasks share the fleet, by the scheme `med` or `mmtt`. `learners`
    scales the fleet of a file, and `med` may search for `time_limit_s`. The rest is as in `train`.
    A plan that cannot be found is no error: the result has the reason.
    """
    if not isinstance(task, AnyTask | list | tuple):
        raise SettingError(
            f"task is {describe(task)}; expected a melisma.Task, the path of a TASK.toml, or a list"
        )
    check_arguments(
        "plan",
        {"scheme": str | None, "learners": PositiveInt | None, "time_limit_s": float},
        locals(),
    )
    if not 0 < time_limit_s < inf:
        raise SettingError(f"time_limit_s is {time_limit_s:g}; expected seconds, more than 0")
    request = prepare_plans(
        [task] if isinstance(task, AnyTask) else list(task),
        fleet,
        scheme,
        RunTime(deadline_s, total_s, finish_by),
        learners,
        objects=GivenObjects(model, data),
    )
    (report,) = request.reports(time_limit_s)
    return Plan(report)


@dataclass(frozen=True, eq=False)
class PlanRequest:
    """Tasks and a fleet, and the schemes to plan with; several schemes are compared."""

    schemes: Sequence[Scheme]
    tasks: Sequence[Task]
    fleet: Fleet

    def reports(self, time_limit_s: float) -> list[PlanReport]:
        """Return the plan of each scheme, or why it has none."""
        if len(self.schemes) == 1:
            return [build_plan_report(self.schemes[0], self.tasks, self.fleet, time_limit_s)]
        return [self._plan_or_skip(scheme, time_limit_s) for scheme in self.schemes]

    def _plan_or_skip(self, scheme: Scheme, time_limit_s: float) -> PlanReport:
        """Plan by one scheme of a comparison, or report why it is skipped."""
        if scheme.max_learners is not None and self.fleet.learners > scheme.max_learners:
            reason = f"skipped: more than {scheme.max_learners} learners"
            return skip_report(scheme, self.tasks, reason)
        try:
            return build_plan_report(scheme, self.tasks, self.fleet, time_limit_s)
        except SettingError as error:
            return skip_report(scheme, self.tasks, str(error))


def prepare_plans(  # noqa: PLR0913 - each is a setting of its own
    tasks: Sequence[AnyTask],
    fleet: Fleet | str | Path,
    scheme: str | None = None,
    run_time: RunTime = TIME_OF_TASK,
    learners: int | None = None,
    *,
    compare_all: bool = False,
    objects: GivenObjects = NO_OBJECTS,
) -> PlanRequest:
    """Load and check all settings; `SettingError` names the file.

    `scheme` takes the place of that of the tasks; with `compare_all` it is one row of a table.
    """
    _check_count(tasks, objects)
    # Model and data may take long to load.
    read = [run_time.apply(resolve_task(each)).with_total() for each in tasks]
    _check_tasks(tasks, read, use_own_scheme=scheme is None and not compare_all)
    schemes = [_select_scheme(read, scheme, tasks[0])]
    if compare_all:
        schemes = [row for row in SCHEMES.values() if row.problem == schemes[0].problem]
    _check_schemes(tasks, read, schemes)
    loaded = [run_time.apply(load_sized_task(each, objects)).with_total() for each in tasks]
    devices = scale_fleet(fleet, learners)
    for each, task in zip(tasks, loaded, strict=True):
        _check_local_shards(_file_of(each), task, devices)
    return PlanRequest(schemes, loaded, devices)


def _check_count(tasks: Sequence[AnyTask], objects: GivenObjects) -> None:
    if len(tasks) > 1 and objects:
        raise SettingError(
            f"model and data are those of one task, found {len(tasks)} tasks; name them in each"
        )
    if not tasks:
        raise SettingError("task is an empty list; expected a task, or several")


def _file_of(task: AnyTask) -> str | None:
    return None if isinstance(task, Task) else str(task)


def _where(task: AnyTask) -> str:
    """Return the file and the table of a task, for messages."""
    file = _file_of(task)
    return "task" if file is None else f"{file}: task"


def _check_tasks(given: Sequence[AnyTask], tasks: Sequence[Task], *, use_own_scheme: bool) -> None:
    """Raise SettingError for unknown schemes, passes that a scheme chooses, and equal names."""
    for each, task in zip(given, tasks, strict=True):
        with naming_task_file(_file_of(each)):
            scheme = load_scheme(task.scheme, _file_of(each))
        if use_own_scheme and scheme.passes == "chosen" and task.passes is not None:
            raise SettingError(
                f"{_where(each)}.passes: scheme {task.scheme} chooses the passes; remove it"
            )
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        files = ", ".join(filter(None, map(_file_of, given)))
        raise SettingError(f"two tasks have the same name in {files or names}; rename one")


def _select_scheme(tasks: Sequence[Task], name: str | None, first: AnyTask) -> Scheme:
    """Return the scheme called `name`, or that of the tasks; several tasks default to med."""
    if name is None and len(tasks) > 1:
        names = {task.scheme for task in tasks}
        scheme = get_scheme(names.pop()) if len(names) == 1 else SCHEMES["med"]
        return scheme if scheme.problem == "shared" else SCHEMES["med"]
    scheme = load_scheme(tasks[0].scheme if name is None else name, _file_of(first))
    if len(tasks) > 1 and scheme.problem != "shared":
        shared = " or ".join(row.name for row in SCHEMES.values() if row.problem == "shared")
        raise SettingError(
            f"scheme {scheme.name} plans one task, found {len(tasks)}; use --scheme {shared}"
        )
    return scheme


def _check_schemes(
    given: Sequence[AnyTask], tasks: Sequence[Task], schemes: Sequence[Scheme]
) -> None:
    """Raise SettingError for settings that every scheme needs, or that none supports."""
    name, problem = schemes[0].name, schemes[0].problem
    for where, task in zip(map(_where, given), tasks, strict=True):
        if task.passes is None and all(row.passes == "fixed" for row in schemes):
            raise SettingError(
                f"{where}: passes is missing; scheme {name} needs it, such as passes = 1"
            )
        if task.max_shards is not None and problem == "shared":
            raise SettingError(f"{where}.max_shards: scheme {name} does not support it; remove it")
        if problem != "shared":
            check_no_budget(task)
        if task.sample is not None and problem != "cycle":
            raise SettingError(f"{where}.sample: scheme {name} does not support it; remove it")
        if task.total_s is not None and problem != "cycle":
            raise SettingError(
                f"{where}: scheme {name} plans for a deadline; use deadline_s instead of a total "
                "time"
            )


def _check_local_shards(file: str | None, task: Task, fleet: Fleet) -> None:
    """Raise SettingError if there are fewer shards than devices that hold data."""
    try:
        fleet.local_shards(task)
    except SettingError as error:
        raise SettingError(f"{file}: {error}" if file else str(error)) from None
