"""The folder of a service: its journal, and a run folder for each of its tasks."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import msgspec

from melisma.errors import SettingError
from melisma.fleet.files.task_file import naming_task_file, resolve_task
from melisma.fleet.task import Task
from melisma.live.orchestrator_settings import DEFAULT_PORT
from melisma.live.preparation import PreparedTask, new_run, prepare_loaded_task
from melisma.live.resume_preparation import prepare_resumption
from melisma.live.run_resumption import NewGoal
from melisma.live.service.service_preparation import load_shared
from melisma.runs.folder import (
    MODEL_FILE,
    SERVICE_JOURNAL,
    create_run_folder,
    task_folder,
)
from melisma.runs.journal import read_steps
from melisma.runs.report import Report
from melisma.runs.service_journal import SETUP, ServiceJournal
from melisma.runs.service_recovery import RecoveredService
from melisma.service.accounts import check_budget
from melisma.service.shared_settings import check_names, select_scheme

TASK_FOLDER = re.compile(r"(\d+)-")


class ServiceSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a service was started with."""

    run: str
    scheme: str
    budget: float | None
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = DEFAULT_PORT

    def check_budget(self, budget: float | None) -> None:
        """Raise `SettingError` for another budget than that of the service."""
        if budget not in (None, self.budget):
            known = "no budget" if self.budget is None else f"budget {self.budget:g}"
            raise SettingError(
                f"this service has {known}, not {budget:g}: leave out --budget, or start a new "
                "service in another folder"
            )

    def check_scheme(self, scheme: str | None) -> None:
        """Raise `SettingError` for another scheme than that of the service."""
        if scheme not in (None, self.scheme):
            raise SettingError(
                f"this service plans by scheme {self.scheme}, not {scheme}: leave out --scheme, or "
                "start a new service in another folder"
            )

    @classmethod
    def read(cls, journal: ServiceJournal) -> "ServiceSetup":
        """Return the setup of a service; `SettingError` if its devices are emulated."""
        content = journal.get(SETUP)
        if content is None:
            raise SettingError(
                f"{journal.path.parent} is the folder of tasks on emulated devices: use melisma "
                f"resume {journal.path.parent}"
            )
        return msgspec.json.decode(content, type=cls)


@dataclass
class ServiceFolder:
    """The folder of a service on devices that join; `recovered` is that of an earlier process."""

    path: Path
    journal: ServiceJournal
    setup: ServiceSetup
    recovered: RecoveredService | None = None
    _next: int = field(default=0)

    def __post_init__(self) -> None:
        known = () if self.recovered is None else self.recovered.machine.state.tasks
        self._next = max([0, *task_folders(self.path), *(number + 1 for number in known)])

    @classmethod
    def create(cls, path: Path | None, scheme: str | None, budget: float | None) -> "ServiceFolder":
        """Create the folder of a new service, by default a new one in ``runs``."""
        row, run = select_scheme([], scheme), new_run()
        if budget is not None and not budget >= 0:
            raise SettingError(f"budget = {budget:g}; expected a number, 0 or more")
        folder = create_run_folder(path or Path("runs") / f"service-{run}")
        journal = ServiceJournal.create(folder)
        setup = ServiceSetup(run=run, scheme=row.name, budget=budget)
        journal.put(SETUP, msgspec.json.encode(setup))
        journal.write()
        journal.sync()
        return cls(folder, journal, setup)

    @classmethod
    def open(
        cls, path: Path, scheme: str | None = None, budget: float | None = None
    ) -> "ServiceFolder":
        """Open the folder of an earlier process, which has ended; `DataError` if it is damaged."""
        journal = ServiceJournal.open(path.resolve())
        try:
            setup = ServiceSetup.read(journal)
            setup.check_scheme(scheme)
            setup.check_budget(budget)
            recovered = RecoveredService.from_journal(journal) if journal.last else None
        except BaseException:
            journal.close()
            raise
        tasks = {} if recovered is None else recovered.machine.state.tasks
        for number, left in task_folders(path.resolve()).items():
            # Of a task that its owner had not confirmed.
            if number - 1 not in tasks:
                shutil.rmtree(left, ignore_errors=True)
        return cls(path.resolve(), journal, setup, recovered)

    @property
    def run(self) -> str:
        """The name of the service."""
        return self.setup.run

    @property
    def scheme(self) -> str:
        """The scheme that plans all tasks."""
        return self.setup.scheme

    @property
    def budget(self) -> float | None:
        """The budget of each round."""
        return self.setup.budget

    def save_port(self, port: int) -> None:
        """Save the port at which devices expect the service after a restart."""
        self.setup = msgspec.structs.replace(self.setup, port=port)
        self.journal.put(SETUP, msgspec.json.encode(self.setup))
        self.journal.write()

    def reserve_number(self) -> int:
        """Return the number of the next task."""
        self._next += 1
        return self._next - 1

    def prepare_task(self, number: int, file: Path, live: Sequence[Task]) -> PreparedTask:
        """Load the task of a file, and create its run folder."""
        task = msgspec.structs.replace(resolve_task(file), scheme=self.scheme)
        check_names([*live, task])
        loaded = load_shared(file, task)
        with naming_task_file(file):
            check_budget(loaded.task, self.budget)
        folder = create_run_folder(self.path / task_folder(number, task.name))
        prepared = prepare_loaded_task(loaded, folder, f"{self.run}-{number + 1}")
        return replace(prepared, spec=replace(prepared.spec, shared=True))

    def resume_task(self, number: int) -> PreparedTask:
        """Prepare a task of an earlier process."""
        prepared, _ = prepare_resumption(self.folder_of(number), NewGoal(if_ended=True))
        return replace(prepared, spec=replace(prepared.spec, shared=True))

    def folder_of(self, number: int) -> Path:
        """Return the folder of a task."""
        return task_folders(self.path).get(number + 1, self.path / f"{number + 1}-deleted")

    def report(self, number: int) -> Report | None:
        """Return the report of a task so far; None before its first step."""
        return read_report(self.folder_of(number))


def read_report(folder: Path) -> Report | None:
    """Return the report of a task so far, also while it runs; None before its first step."""
    steps = read_steps(folder)
    if not steps:
        return None
    model = folder / MODEL_FILE
    report = Report.from_trace(steps)
    return replace(report, folder=folder, model=model if model.is_file() else None)


def find_report(folder: Path, name: str) -> Report:
    """Return the report of the latest task of this name; the service may run meanwhile."""
    if not folder.is_dir():
        raise SettingError(f"{folder}: no such folder; use that of a service")
    known = []
    for _, path in sorted(task_folders(folder).items(), reverse=True):
        report = read_report(path)
        if report is not None and report.task.name == name:
            return report
        known += [report.task.name] if report is not None else []
    tasks = ", ".join(dict.fromkeys(reversed(known))) or "none"
    raise SettingError(f"no task called {name!r} has begun in {folder}; tasks: {tasks}")


def task_folders(folder: Path) -> dict[int, Path]:
    """Return the folders of the tasks of a service, by number from 1."""
    found = {path: TASK_FOLDER.match(path.name) for path in folder.iterdir() if path.is_dir()}
    return {int(match[1]): path for path, match in found.items() if match is not None}


def is_service_folder(path: Path) -> bool:
    """Return whether a folder is that of a service."""
    return (path / SERVICE_JOURNAL).is_file()
