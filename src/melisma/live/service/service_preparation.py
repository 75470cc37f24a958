"""Loads tasks that share an emulated fleet, before a process is started."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path

import msgspec

from melisma.cycle.sharing import check_shared
from melisma.errors import SettingError
from melisma.fleet.arguments import describe
from melisma.fleet.array_types import Floats
from melisma.fleet.files.fleet_builder import scale_fleet
from melisma.fleet.files.task_file import naming_task_file, resolve_task
from melisma.fleet.fleet import Fleet
from melisma.fleet.run_settings import RunSettings
from melisma.fleet.task import Task
from melisma.learning.loaded_task import LoadedTask, load_task
from melisma.live.preparation import PreparedRun, PreparedTask, new_run, prepare_loaded
from melisma.live.resume_preparation import prepare_resumption
from melisma.live.run_resumption import NewGoal
from melisma.live.training import AnyTask
from melisma.runs.folder import check_run_folder, create_run_folder, task_folder
from melisma.runs.service_journal import SETUP, ServiceJournal
from melisma.runs.service_recovery import RecoveredService
from melisma.service.accounts import check_budget
from melisma.service.shared_settings import check_names, check_settings, select_scheme


@dataclass(frozen=True)
class EarlierService:
    """The service of a process that was killed: its journal, and what is recovered from it."""

    journal: ServiceJournal
    recovered: RecoveredService


@dataclass(frozen=True, eq=False)
class PreparedTasks:
    """Tasks that share an emulated fleet, by number; each has a run folder of its own in `folder`.

    `price` is that of a shard of each learner, and `budget` that of each round. `notes` are the
    limits of emulating this fleet on this machine, and settings that are ignored.
    """

    tasks: dict[int, PreparedTask]
    scheme: str
    folder: Path
    price: Floats
    budget: float | None
    notes: tuple[str, ...] = ()
    earlier: EarlierService | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the learners."""
        return next(iter(self.tasks.values())).emulated.names

    @property
    def task_names(self) -> dict[int, str]:
        """The names of the tasks that have not ended, by number."""
        return {number: each.task.name for number, each in self.tasks.items()}


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
    prepared: list[PreparedRun] = []
    for number, each in enumerate(loaded):
        own = create_run_folder(path / task_folder(number, each.task.name))
        one = prepare_loaded(each, shared, own, f"{run}-{number + 1}")
        prepared.append(replace(one, spec=replace(one.spec, shared=True)))
    return PreparedTasks(
        tasks=dict(enumerate(prepared)),
        scheme=row.name,
        folder=path,
        price=shared.price,
        budget=shared.budget if isfinite(shared.budget) else None,
        notes=tuple(dict.fromkeys(note for each in prepared for note in each.notes)),
    )


def recover_service(folder: Path) -> PreparedTasks:
    """Recover tasks on emulated devices from their folder; `DataError` if it is damaged."""
    folder = folder.resolve()
    journal = ServiceJournal.open(folder)
    prepared: dict[int, PreparedTask] = {}
    try:
        recovered = RecoveredService.from_journal(journal)
        _require_open_tasks(recovered, journal, folder)
        for record in recovered.machine.state.live:
            own = folder / task_folder(record.number, record.task.name)
            one, _ = prepare_resumption(own, NewGoal(if_ended=True))
            prepared[record.number] = replace(one, spec=replace(one.spec, shared=True))
    except BaseException:
        for each in prepared.values():
            each.close()
        journal.close()
        raise
    state = recovered.machine.state
    return PreparedTasks(
        tasks=prepared,
        scheme=state.scheme.name,
        folder=folder,
        price=state.price,
        budget=state.budget,
        earlier=EarlierService(journal, recovered),
    )


def _require_open_tasks(recovered: RecoveredService, journal: ServiceJournal, folder: Path) -> None:
    if journal.get(SETUP) is not None:
        raise SettingError(
            f"{folder} is the folder of a service on devices that join: use melisma orchestrate "
            f"--out {folder}"
        )
    if not journal.last or not recovered.machine.state.live:
        raise SettingError(f"all tasks in {folder} have ended: start new ones in another folder")


def load_shared(given: AnyTask, task: Task) -> LoadedTask:
    """Load the data and model of a task that shares its learners; errors name its file."""
    file = given if isinstance(given, str | Path) else None
    with naming_task_file(file):
        check_shared(task, select_scheme([task], task.scheme))
        loaded = load_task(task, file, shipped=True)
        loaded.task.check_shard_samples()
    return loaded
