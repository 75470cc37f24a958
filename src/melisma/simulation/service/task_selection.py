"""The tasks of a run that share a fleet: their files, their scheme, settings that do not fit."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from melisma.allocation.schemes import get_scheme
from melisma.errors import SettingError
from melisma.fleet.files.task_file import naming_task_file, resolve_task
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import SimulationSettings, Task
from melisma.service.accounts import check_budget
from melisma.service.shared_settings import check_names, check_settings, select_scheme
from melisma.simulation.faults import Fault
from melisma.simulation.simulation import AnyTask, SimulationOptions


def select_tasks(tasks: Sequence[AnyTask], options: SimulationOptions) -> list[Task]:
    """Read the tasks, with one scheme for all: that of `options`, their common one, or `med`."""
    check_settings(options.settings)
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
    check_names(selected)
    return [msgspec.structs.replace(task, **changes) for task in selected]


def file_of(task: AnyTask) -> str | Path | None:
    """Return the file of a task, if it has one."""
    return None if isinstance(task, Task) else task


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
