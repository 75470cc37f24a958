"""`simulate`: run a task on a fleet in virtual time, from files and options to a report."""

import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, overload

import msgspec
from safetensors.numpy import save

from melisma.allocation.schemes import with_scheme
from melisma.atomic import write_atomic
from melisma.cycle import events
from melisma.cycle.machine import check_submission
from melisma.cycle.ragged import RaggedArray
from melisma.errors import DataError, MelismaWarning, SettingError, suggest
from melisma.fleet.arguments import check_arguments, describe
from melisma.fleet.files.fleet_builder import scale_fleet
from melisma.fleet.files.task_file import naming_task_file, resolve_task
from melisma.fleet.fleet import Fleet
from melisma.fleet.run_settings import RunSettings
from melisma.fleet.tables import PositiveInt
from melisma.fleet.task import SimulationSettings, Task
from melisma.learning.given_objects import NO_OBJECTS, GivenObjects
from melisma.learning.loaded_task import load_task
from melisma.runs.checkpoints import Checkpoints
from melisma.runs.cycle_result import CycleFollower, OnCycle, check_callback
from melisma.runs.folder import (
    MODEL_FILE,
    PICTURE_FILE,
    check_run_folder,
    create_run_folder,
    naming_kept_files,
)
from melisma.runs.interruption import Cancellation, describe_callback_error
from melisma.runs.progress import RunProgress
from melisma.runs.report import Report
from melisma.runs.service_report import ServiceReport
from melisma.runs.svg import save_picture
from melisma.runs.trace import Step, TraceFile
from melisma.simulation.compute.compute import ComputeBackend, TimingOnly
from melisma.simulation.compute.memory import check_memory
from melisma.simulation.compute.real_training import RealTraining
from melisma.simulation.compute.sample_index import SampleIndex
from melisma.simulation.driver import Driver
from melisma.simulation.fault_sources import FaultSource, find_faults
from melisma.simulation.scenario import Scenario, even_local_shard_samples

ComputeLevel = Literal["timing", "train", "batched"]
AnyTask = Task | str | Path
TaskList = list[Task] | list[str] | list[Path] | list[AnyTask] | tuple[AnyTask, ...]


@dataclass(frozen=True)
class SimulationOptions:
    """Overrides for settings in the task and fleet files.

    `learners` scales the fleet of a file in its proportions. `seed` replaces the seeds of task and
    fleet. `faults` are faults, their text, a seed from which to draw them, or a function that
    returns them for a fleet.
    """

    scheme: str | None = None
    learners: int | None = None
    seed: int | None = None
    work: ComputeLevel | None = None
    faults: FaultSource = ()
    deadline_s: float | None = None
    total_s: float | None = None
    finish_by: str | None = None
    start: str | Path | None = None
    aggregation: str | None = None

    def __post_init__(self) -> None:
        """Raise `SettingError` for an unknown level or a number out of range."""
        types = {"scheme": str | None, "learners": PositiveInt | None, "seed": int | None}
        check_arguments("SimulationOptions", types, vars(self))
        if not isinstance(self.faults, str | int | tuple) and not callable(self.faults):
            raise SettingError(
                f"SimulationOptions: faults: {describe(self.faults)}; expected text such as "
                "'crash 1 at 9', a seed, or a function"
            )
        if self.work not in (None, *get_args(ComputeLevel)):
            expected = suggest(str(self.work), get_args(ComputeLevel))
            raise SettingError(f"work is {self.work!r}; {expected}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise SettingError(f"seed is {self.seed}; expected 0 to {2**63 - 1}")
        _ = self.settings

    @property
    def settings(self) -> RunSettings:
        """The time of a cycle or of the whole run, the start and the aggregation."""
        times = self.deadline_s, self.total_s, self.finish_by
        return RunSettings(*times, self.start, self.aggregation)


NO_OVERRIDES = SimulationOptions()


@dataclass(frozen=True, eq=False)
class PreparedSimulation:
    """A checked scenario, and a factory for what its learners compute."""

    scenario: Scenario
    level: ComputeLevel
    make_compute: Callable[[], ComputeBackend]

    def notes(self, folder: str | Path | None) -> list[str]:
        """Return settings that a run is going to ignore with this folder for its results."""
        rule, cause = self.scenario.task.checkpoints, ""
        if self.level == "timing":
            cause = 'work = "timing" trains no model'
        elif folder is None:
            cause = "models are kept in a folder for results: use --out, or folder in Python"
        return [f'checkpoints = "{rule}": ignored, as {cause}'] if cause and rule != "none" else []


@overload
def simulate(
    task: Task | str | Path,
    fleet: Fleet | str | Path,
    options: SimulationOptions = ...,
    *,
    model: Any = ...,
    data: Any = ...,
    folder: str | Path | None = ...,
    on_cycle: OnCycle | None = ...,
) -> Report: ...


@overload
def simulate(
    task: TaskList,
    fleet: Fleet | str | Path,
    options: SimulationOptions = ...,
    *,
    folder: str | Path | None = ...,
) -> ServiceReport: ...


def simulate(  # noqa: PLR0913 - each is a setting of its own
    task: AnyTask | TaskList,
    fleet: Fleet | str | Path,
    options: SimulationOptions = NO_OVERRIDES,
    *,
    model: Any = None,
    data: Any = None,
    folder: str | Path | None = None,
    on_cycle: OnCycle | None = None,
) -> Report | ServiceReport:
    """Run a task on a fleet in virtual time, or several tasks that share it.

    Several tasks are a list; their report has one for each of them. Model, picture and trace are
    saved in `folder`, if given. `model`, `data` and `on_cycle` are as in `melisma.train`, and for
    one task only; a model may also be a lambda or a local class. A run that fails raises
    `RunFailedError`.
    """
    if not isinstance(options, SimulationOptions):
        raise SettingError(
            f"options are {describe(options)}; expected melisma.SimulationOptions(...)"
        )
    check_callback(on_cycle)
    if isinstance(task, list | tuple):
        # Imported here, as that module uses this one.
        from melisma.simulation.service.service_simulation import simulate_tasks

        given = {"model": model, "data": data, "on_cycle": on_cycle}
        if named := [name for name, value in given.items() if value is not None]:
            raise SettingError(f"{named[0]} is for one task, found a list of tasks; leave it out")
        return simulate_tasks(task, fleet, options, folder=folder)
    if folder is not None:
        check_run_folder(folder)
    prepared = prepare(task, fleet, options, GivenObjects(model, data))
    for note in prepared.notes(folder):
        warnings.warn(note, MelismaWarning, stacklevel=2)
    return run(prepared, folder, on_cycle=on_cycle).require_success()


def prepare(
    task: Task | str | Path,
    fleet: Fleet | str | Path,
    options: SimulationOptions = NO_OVERRIDES,
    objects: GivenObjects = NO_OBJECTS,
) -> PreparedSimulation:
    """Read the files and check all settings; `SettingError` names the file."""
    file = task if isinstance(task, str | Path) else None
    fleet = load_fleet(fleet, options)
    task = _override(resolve_task(task), options, file)
    faults = find_faults(options.faults, task, fleet, file)
    with naming_task_file(file):
        prepared = prepare_task(task, file, fleet, objects)
    return replace(prepared, scenario=replace(prepared.scenario, faults=faults))


def load_fleet(fleet: Fleet | str | Path, options: SimulationOptions) -> Fleet:
    """Return the fleet; `SettingError` if it cannot start a run."""
    loaded = scale_fleet(fleet, options.learners, options.seed)
    if not loaded.present_at_start.any():
        where = f"{fleet}: fleet: " if isinstance(fleet, str | Path) else ""
        raise SettingError(
            f"{where}no learner is present at the start; give at least one learner or group "
            "availability.joins_s = 0, or change the trace, or hours and starts_at"
        )
    return loaded


def _override(task: Task, options: SimulationOptions, file: str | Path | None) -> Task:
    """Return the task with the settings of `options`; errors about these do not name the file."""
    task = options.settings.apply(task)
    with naming_task_file(file):
        task = task.with_total()
    task = with_scheme(task, options.scheme, file)
    work = None if options.work is None else SimulationSettings(work=options.work)
    changes = {"seed": options.seed, "simulation": work}
    return msgspec.structs.replace(task, **{k: v for k, v in changes.items() if v is not None})


def prepare_task(
    task: Task,
    file: str | Path | None,
    fleet: Fleet,
    objects: GivenObjects = NO_OBJECTS,
    *,
    shared: bool = False,
) -> PreparedSimulation:
    """Load what a task needs and check it; a `shared` task shares the fleet with others."""
    level = task.simulation.work
    if level == "timing" and not objects and _sizes_are_known(task):
        task.check_shard_samples()
        check_memory(task, fleet)
        local_shard_samples = even_local_shard_samples(task, fleet)
        scenario = _make_scenario(task, fleet, local_shard_samples, shared=shared)
        return PreparedSimulation(scenario, level, TimingOnly)
    loaded = load_task(task, file, objects)
    loaded.task.check_shard_samples()
    check_memory(loaded.task, fleet)
    index = SampleIndex.from_task(loaded, fleet)
    scenario = _make_scenario(loaded.task, fleet, index.local_shard_samples, shared=shared)
    if level == "timing":
        return PreparedSimulation(scenario, level, TimingOnly)
    # Those that are verified are trained one by one.
    one_by_one = level == "train" or task.verify != "off"
    return PreparedSimulation(
        scenario, level, lambda: RealTraining(loaded, index, fleet.names, one_by_one=one_by_one)
    )


def _sizes_are_known(task: Task) -> bool:
    """Return whether all sizes follow from the task, so that no data has to be read."""
    task.check_names()
    try:
        _ = task.shards, task.shard_bytes, task.model_bytes, task.sample_ops
    except SettingError:
        return False
    return True


def _make_scenario(
    task: Task, fleet: Fleet, local_shard_samples: RaggedArray, *, shared: bool
) -> Scenario:
    """Return a scenario that the cycle machine accepts."""
    name = f"{task.name}-{task.scheme}-{task.seed}"
    scenario = Scenario(name, task, fleet, local_shard_samples, shared=shared)
    check_submission(scenario.submission())
    return scenario


def run(
    prepared: PreparedSimulation,
    folder: str | Path | None = None,
    watch: Callable[[Step], object] = lambda _: None,
    progress: RunProgress | None = None,
    on_cycle: OnCycle | None = None,
) -> Report:
    """Run a prepared simulation; a caller that passes `progress` can read it during the run."""
    cancellation, callback_errors = Cancellation(), list[Exception]()

    def deliver(call: Callable[[], object]) -> None:
        """Call a function of the user; if it fails, interrupt the run."""
        try:
            call()
        except Exception as error:
            callback_errors.append(error)
            cancellation.reason = describe_callback_error(error)
            raise KeyboardInterrupt from error

    follower = CycleFollower(on_cycle, deliver)
    path = create_run_folder(folder) if folder is not None else None
    trace = TraceFile(path) if path is not None else None
    progress, compute = progress or RunProgress(), prepared.make_compute()
    keep = keep_checkpoints(path, prepared.scenario.task, compute)

    def record(step: Step) -> None:
        if trace is not None:
            trace.write(step)
        progress.apply(step)
        keep(step)
        watch(step)
        if follower.is_needed and not callback_errors:
            follower.follow(progress)

    try:
        with closing(Driver(prepared.scenario, compute, record)) as driver:
            failure = _drive(driver, cancellation)
    finally:
        compute.close()
        if trace is not None:
            trace.close()
    report = _save_all(progress.report(), path, compute, failure)
    if callback_errors:
        raise callback_errors[0]
    return report


def _save_all(
    report: Report, path: Path | None, compute: ComputeBackend, failure: Exception | None
) -> Report:
    """Save the results in the folder of the run, if it has one, then raise its failure."""
    if path is not None:
        with naming_kept_files(path):
            report = save_results(report, path, compute)
            if isinstance(failure, OSError):
                raise failure
    return report if failure is None else report.require_success(failure)


def keep_checkpoints(
    folder: Path | None, task: Task, compute: ComputeBackend
) -> Callable[[Step], None]:
    """Return a function that keeps the model of each step that evaluates one."""
    if folder is None or not isinstance(compute, RealTraining):
        return lambda _: None
    checkpoints = Checkpoints(folder, task.checkpoints)

    def keep(step: Step) -> None:
        event = step.event
        if isinstance(event, events.Evaluated) and event.finite:
            checkpoints.keep(event.cycle, compute.parameters, event.accuracy, event.loss)

    return keep


def _drive(driver: Driver, cancellation: Cancellation) -> DataError | OSError | None:
    """Run to the end; an interruption, an error of the user's code or a full disk cancels the run.

    As in live runs, the caller can then save partial results.
    """
    try:
        driver.run()
    except KeyboardInterrupt:
        driver.cancel(cancellation.reason)
    except (DataError, OSError) as error:
        driver.cancel(str(error))
        return error
    return None


def save_results(report: Report, folder: Path, compute: ComputeBackend) -> Report:
    """Save the model, if one was trained, and the picture."""
    report = replace(report, folder=folder)
    if isinstance(compute, RealTraining):
        model = write_atomic(folder / MODEL_FILE, save(dict(compute.parameters)), mode=0o600)
        report = replace(report, model=model)
    save_picture(report.plot, folder / PICTURE_FILE)
    return report
