"""The tasks of a run that share a fleet: their files, their scheme, settings that do not fit."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from melisma.allocation.schemes import Scheme, get_scheme
from melisma.errors import SettingError
from melisma.fleet.files.task_file import naming_task_file, resolve_task
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import SimulationSettings, Task
from melisma.service.accounts import check_budget
from melisma.simulation.faults import Fault
from melisma.simulation.simulation import AnyTask, SimulationOptions

DEFAULT_SCHEME = "med"


def select_tasks(tasks: Sequence[AnyTask], options: SimulationOptions) -> list[Task]:
    """Read the tasks, with one scheme for all: that of `options`, their common one, or `med`."""
    check_options(options)
    read = [resolve_task(each) for each in tasks]
    if options.scheme is None:
        for each, task in zip(tasks, read, strict=True):
            with naming_task_file(file_of(each)):
                get_scheme(task.scheme)
    scheme = select_scheme(read, options.scheme)
    for each, task in zip(tasks, read, strict=True):
        with naming_task_file(file_of(each)):
            scheme.check_passes(task.passes)
    work = None if options.work is None else SimulationSettings(work=options.work)
    settings = {"scheme": scheme.name, "seed": options.seed, "simulation": work}
    changes = {name: value for name, value in settings.items() if value is not None}
    selected = [options.settings.apply(task) for task in read]
    names = [task.name for task in selected]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"two tasks have the same name, {name}; rename one")
    return [msgspec.structs.replace(task, **changes) for task in selected]


def select_scheme(tasks: Sequence[Task], name: str | None) -> Scheme:
    """Return the scheme with this name, or that of the tasks."""
    if name is None:
        names = {task.scheme for task in tasks}
        common = get_scheme(names.pop()) if len(names) == 1 else get_scheme(DEFAULT_SCHEME)
        return common if common.problem == "shared" else get_scheme(DEFAULT_SCHEME)
    scheme = get_scheme(name)
    scheme.check_shared()
    return scheme


def file_of(task: AnyTask) -> str | Path | None:
    """Return the file of a task, if it has one."""
    return None if isinstance(task, Task) else task


def check_options(options: SimulationOptions) -> None:
    """Raise `SettingError` for options that are those of one task."""
    refused = {
        "deadline_s": options.deadline_s,
        "total_s": options.total_s,
        "finish_by": options.finish_by,
        "start": options.start,
    }
    for name, value in refused.items():
        if value is not None:
            raise SettingError(
                f"{name} = {value} is for one task, and there are several; set deadline_s and "
                "start in their files (tasks that share a fleet have no total time)"
            )


def check_fleet(fleet: Fleet, tasks: Sequence[Task], faults: Sequence[Fault]) -> None:
    """Raise `SettingError` for what runs of several tasks do not support."""
    refused = {
        "a link of the orchestrator": fleet.orchestrator.is_limited,
        "batteries": fleet.availability.battery.is_limited,
    }
    for setting, is_set in refused.items():
        if is_set:
            raise SettingError(
                f"the fleet has {setting}, which runs of several tasks do not simulate; remove "
                "it, or simulate the tasks one by one"
            )
    for fault in faults:
        if fault.of_orchestrator and fault.kind not in ("crash orchestrator", "cut power"):
            raise SettingError(
                f"fault {fault.kind}: runs of several tasks do not simulate a failing disk of the "
                "orchestrator; use cut power, or simulate the tasks one by one"
            )
    for task in tasks:
        check_budget(task, fleet.budget if np.isfinite(fleet.budget) else None)
