"""Loads tasks that share an emulated fleet, before a process is started."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path

import msgspec

from melisma.cycle.sharing import check_shared
from melisma.errors import SettingError
from melisma.fleet.arguments import describe
from melisma.fleet.files.fleet_builder import scale_fleet
from melisma.fleet.files.task_file import naming_task_file, resolve_task
from melisma.fleet.fleet import Fleet
from melisma.fleet.run_settings import RunSettings
from melisma.fleet.task import Task
from melisma.learning.loaded_task import LoadedTask, load_task
from melisma.live.preparation import PreparedRun, new_run, prepare_loaded
from melisma.live.training import AnyTask
from melisma.runs.folder import check_run_folder, create_run_folder, task_folder
from melisma.service.accounts import check_budget
from melisma.service.shared_settings import check_names, check_settings, select_scheme


@dataclass(frozen=True)
class PreparedTasks:
    """Tasks that share an emulated fleet; each has a run folder of its own in `folder`."""

    tasks: tuple[PreparedRun, ...]
    scheme: str
    folder: Path

    @property
    def fleet(self) -> Fleet:
        """The fleet of all tasks."""
        return self.tasks[0].fleet

    @property
    def notes(self) -> list[str]:
        """The limits of emulating this fleet on this machine, and settings that are ignored."""
        return list(dict.fromkeys(note for each in self.tasks for note in each.notes))


@dataclass(frozen=True)
class ServiceOptions:
    """Settings for all tasks: scheme, folder, number of learners, and those of a run."""

    scheme: str | None = None
    folder: str | Path | None = None
    learners: int | None = None
    settings: RunSettings = field(default_factory=RunSettings)


def prepare_service(
    tasks: Sequence[AnyTask], fleet: Fleet | str | Path, options: ServiceOptions
) -> PreparedTasks:
    """Load tasks and fleet and create the folders; raise an error if they do not fit."""
    if not isinstance(tasks, list | tuple) or not tasks:
        raise SettingError(f"tasks are {describe(tasks)}; expected a list of tasks, at least one")
    if options.folder is not None:
        check_run_folder(options.folder)
    check_settings(options.settings)
    selected = [options.settings.apply(resolve_task(each)) for each in tasks]
    row = select_scheme(selected, options.scheme)
    check_names(selected)
    shared = scale_fleet(fleet, options.learners)
    loaded = [
        load_shared(each, msgspec.structs.replace(task, scheme=row.name))
        for each, task in zip(tasks, selected, strict=True)
    ]
    for each in loaded:
        check_budget(each.task, shared.budget if isfinite(shared.budget) else None)
    run = new_run()
    path = create_run_folder(options.folder or Path("runs") / f"tasks-{run}")
    prepared = []
    for number, each in enumerate(loaded):
        own = create_run_folder(path / task_folder(number, each.task.name))
        one = prepare_loaded(each, shared, own, f"{run}-{number + 1}")
        prepared.append(replace(one, spec=replace(one.spec, shared=True)))
    return PreparedTasks(tuple(prepared), row.name, path)


def load_shared(given: AnyTask, task: Task) -> LoadedTask:
    """Load the data and model of a task that shares its learners; errors name its file."""
    file = given if isinstance(given, str | Path) else None
    with naming_task_file(file):
        check_shared(task, select_scheme([task], task.scheme))
        loaded = load_task(task, file, shipped=True)
        loaded.task.check_shard_samples()
    return loaded
