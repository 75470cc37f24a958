"""Simulate several tasks that share a fleet, from files and options to a report of all of them."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from melisma.errors import DataError, MelismaWarning, SettingError
from melisma.fleet.arguments import describe
from melisma.fleet.files.task_file import naming_task_file
from melisma.fleet.fleet import Fleet
from melisma.private_files import open_private
from melisma.runs.folder import (
    SERVICE_TRACE,
    check_run_folder,
    create_run_folder,
    naming_kept_files,
)
from melisma.runs.interruption import Cancellation
from melisma.runs.progress import RunProgress
from melisma.runs.service_progress import SERVICE_STEPS, ServiceProgress, ServiceStep
from melisma.runs.service_report import ServiceReport
from melisma.runs.trace import Step
from melisma.simulation.fault_sources import find_faults
from melisma.simulation.service.service_driver import ServiceDriver
from melisma.simulation.service.task_run import TaskRun
from melisma.simulation.service.task_selection import check_fleet, file_of, select_tasks
from melisma.simulation.simulation import (
    NO_OVERRIDES,
    AnyTask,
    PreparedSimulation,
    SimulationOptions,
    load_fleet,
    prepare_task,
)

WatchTask = Callable[[int, RunProgress, Step], object]


@dataclass(frozen=True, eq=False)
class PreparedService:
    """Checked tasks that share a fleet; task i is submitted at `submits_s[i]`."""

    tasks: tuple[PreparedSimulation, ...]
    submits_s: tuple[float, ...]

    @property
    def fleet(self) -> Fleet:
        """The fleet of all tasks."""
        return self.tasks[0].scenario.fleet

    @property
    def scheme(self) -> str:
        """The scheme that plans all tasks."""
        return self.tasks[0].scenario.task.scheme

    def notes(self, folder: str | Path | None) -> list[str]:
        """Return settings that a run is going to ignore with this folder for its results."""
        return list(dict.fromkeys(note for each in self.tasks for note in each.notes(folder)))


def simulate_tasks(
    tasks: Sequence[AnyTask],
    fleet: Fleet | str | Path,
    options: SimulationOptions = NO_OVERRIDES,
    *,
    folder: str | Path | None = None,
) -> ServiceReport:
    """Run tasks that share a fleet in virtual time; see `melisma.simulate`."""
    if not isinstance(tasks, list | tuple) or not tasks:
        raise SettingError(f"tasks are {describe(tasks)}; expected a list of tasks, at least one")
    if folder is not None:
        check_run_folder(folder)
    prepared = prepare_tasks(tasks, fleet, options)
    for note in prepared.notes(folder):
        warnings.warn(note, MelismaWarning, stacklevel=3)
    return run_tasks(prepared, folder).require_success()


def prepare_tasks(
    tasks: Sequence[AnyTask],
    fleet: Fleet | str | Path,
    options: SimulationOptions = NO_OVERRIDES,
    submits_s: Sequence[float] = (),
) -> PreparedService:
    """Read the files and check all settings; `SettingError` names the file."""
    selected = select_tasks(tasks, options)
    loaded = load_fleet(fleet, options)
    longest = max(selected, key=lambda task: task.expected_s)
    faults = find_faults(options.faults, longest, loaded, file_of(tasks[0]))
    check_fleet(loaded, selected, faults)
    prepared = []
    for each, task in zip(tasks, selected, strict=True):
        with naming_task_file(file_of(each)):
            one = prepare_task(task, file_of(each), loaded, shared=True)
        prepared.append(replace(one, scenario=replace(one.scenario, faults=faults)))
    return PreparedService(tuple(prepared), tuple(submits_s) or (0.0,) * len(prepared))


def run_tasks(
    prepared: PreparedService,
    folder: str | Path | None = None,
    watch: WatchTask = lambda *_: None,
    watch_service: Callable[[ServiceStep], object] = lambda _: None,
) -> ServiceReport:
    """Run prepared tasks; `watch` is called with the number, progress and step of a task."""
    path = create_run_folder(folder) if folder is not None else None
    runs = [TaskRun(number, each, path) for number, each in enumerate(prepared.tasks)]
    progress, lines = ServiceProgress(), list[bytes]()

    def record_task(number: int, step: Step) -> None:
        runs[number].record(step)
        watch(number, runs[number].progress, step)

    def record(step: ServiceStep) -> None:
        progress.apply(step)
        watch_service(step)
        if path is not None:
            lines.append(SERVICE_STEPS.encode(step))

    driver = ServiceDriver(
        [each.scenario for each in prepared.tasks],
        [each.compute for each in runs],
        prepared.submits_s,
        record_task,
        record,
    )
    try:
        failure = _drive(driver)
    finally:
        driver.close()
        for each in runs:
            each.close()
    if path is None:
        reports = tuple(each.report() for each in runs)
    else:
        with naming_kept_files(path):
            reports = tuple(each.report() for each in runs)
            with open_private(path / SERVICE_TRACE, "xb") as file:
                file.writelines(lines)
    paid = tuple(progress.paid.get(number, 0.0) for number in range(len(reports)))
    report = ServiceReport(
        progress.scheme, reports, progress.rounds, progress.budget, path, paid=paid
    )
    return report if failure is None else report.require_success(failure)


def _drive(driver: ServiceDriver) -> DataError | OSError | None:
    """Run to the end; an interruption, an error of user code or a full disk cancels all tasks."""
    try:
        driver.run()
    except KeyboardInterrupt:
        driver.cancel(Cancellation().reason)
    except (DataError, OSError) as error:
        driver.cancel(str(error))
        return error
    return None
