"""Loads what is needed to resume a run, from its folder."""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from melisma.allocation.schemes import with_scheme
from melisma.errors import DataError, SettingError
from melisma.fleet.array_types import NO_FLOATS
from melisma.fleet.files.task_file import resolve_task
from melisma.fleet.run_settings import RunSettings
from melisma.fleet.task import Task, TaskSizes
from melisma.learning.given_objects import NO_OBJECTS, GivenObjects
from melisma.learning.loaded_task import LoadedTask, load_task
from melisma.learning.task_sizes import limit_samples
from melisma.live.code_bundle import collect_bundle
from melisma.live.orchestrator.run_spec import RunSpec
from melisma.live.preparation import PreparedTask, prepare_task
from melisma.live.run_resumption import NewGoal, RunResumption, has_ended
from melisma.live.run_setup import RunSetup
from melisma.runs.folder import (
    DEVICES_FOLDER,
    JOURNAL_FILE,
    MODEL_FILE,
    PICTURE_FILE,
    SHARDS_FOLDER,
    UPDATES_FOLDER,
    naming_kept_files,
)
from melisma.runs.journal import Journal
from melisma.runs.recovery import RecoveredRun
from melisma.runs.report import Report
from melisma.runs.svg import save_picture
from melisma.user_code import add_module_path

COMPLETED_KEYS = ("sizes", "cycles", "total_s", "finish_by")
"""Keys of a task that a run completes, or that may change when it is resumed."""


def is_run_folder(folder: str | Path) -> bool:
    """Return whether a folder is that of a run with a journal."""
    return (Path(folder) / JOURNAL_FILE).is_file()


def prepare_or_resume(
    task: Task | str | Path,
    scheme: str | None,
    folder: str | Path | None,
    run_settings: RunSettings,
    objects: GivenObjects = NO_OBJECTS,
) -> PreparedTask:
    """Prepare a run on devices that join; one whose folder exists goes on."""
    if folder is None or not is_run_folder(folder):
        return prepare_task(task, scheme, folder, run_settings, objects)
    file = task if isinstance(task, str | Path) else None
    task = with_scheme(run_settings.apply(resolve_task(task)), scheme, file)
    return _recover(folder, task, objects)


def _recover(folder: str | Path, task: Task, objects: GivenObjects) -> PreparedTask:
    """Recover the run of a task; if it has ended, more `cycles` of the task continue it."""
    with closing(_open(Path(folder).resolve())) as journal:
        setup = RunSetup.read(journal)
    if setup.reachability is None:
        raise SettingError(
            f"{folder} is the folder of a run on emulated devices: use melisma resume {folder}"
        )
    given = {key for key in ("model", "data") if getattr(objects, key) is not None}
    if setup.task.total_s is not None:
        given.add("deadline_s")  # that of its first cycle follows from the time that was left
    for key in sorted(set(task.__struct_fields__) - {*COMPLETED_KEYS, *given}):
        value, known = getattr(task, key), getattr(setup.task, key)
        if value != known:
            raise SettingError(
                f"{folder} is the folder of a run with {key} = {known!r}, and the task has "
                f"{value!r}: use another folder for a new run, or melisma resume {folder}"
            )
    prepared, _ = prepare_resumption(folder, NewGoal(task.cycles, if_ended=True), None, objects)
    return prepared


def _open(folder: Path) -> Journal:
    with naming_kept_files(folder), _naming_model(folder):
        return Journal.open(folder)


@contextmanager
def _naming_model(folder: Path) -> Iterator[None]:
    """Add to the error of a journal that cannot be used how its last model can be."""
    try:
        yield
    except DataError as error:
        model = folder / MODEL_FILE
        if not model.is_file():
            raise
        raise DataError(
            f"{error}; or begin a new run from the last model with melisma run TASK.toml "
            f"--start {model}"
        ) from error


def prepare_resumption(
    folder: str | Path,
    goal: NewGoal,
    start: str | Path | None = None,
    objects: GivenObjects = NO_OBJECTS,
) -> tuple[PreparedTask, RunSetup]:
    """Recover a run from its folder; `DataError` if it is damaged, and nothing is changed then."""
    folder = Path(folder).resolve()
    if start is not None and not Path(start).is_file():
        raise SettingError(
            f"cannot go on from {start}: there is no such file; use a model.safetensors"
        )
    journal = _open(folder)
    with naming_kept_files(folder):
        try:
            return _prepare(journal, goal, None if start is None else Path(start), objects)
        except BaseException:
            journal.close()
            raise


def _prepare(
    journal: Journal, goal: NewGoal, start: Path | None, objects: GivenObjects
) -> tuple[PreparedTask, RunSetup]:
    setup = RunSetup.read(journal)
    add_module_path(None, setup.module_path)
    loaded = _load_as_begun(setup.task, objects)
    resumption = _resumption(journal, goal, start, setup)
    task = setup.task
    if resumption is not None:
        task = msgspec.structs.replace(task, cycles=resumption.cycles)
    spec = RunSpec(
        run=setup.run,
        task=task,
        trainer=loaded.trainer,
        initial=loaded.initial,
        test=loaded.data.test,
        rates=NO_FLOATS if setup.fleet is None else setup.fleet.rate_table,
        bundle=collect_bundle(task.model, setup.module_path),
    )
    prepared = PreparedTask(
        spec=spec,
        train=loaded.data.train,
        folder=journal.path.parent,
        module_path=setup.module_path,
        journal=journal,
        resumption=resumption,
        start_from=start,
        resumed_fleet=setup.fleet,
    )
    return prepared, setup


def _load_as_begun(task: Task, objects: GivenObjects) -> LoadedTask:
    """Load the data and the model of a run; `SettingError` if their sizes have changed."""
    # The parameters that the run began with are in its folder, and its task has measured sizes.
    unsized = msgspec.structs.replace(task, start=None, sizes=TaskSizes())
    loaded = load_task(unsized, None, objects, shipped=True)
    sizes, known = loaded.task.sizes, task.sizes
    data, model = f"data {loaded.task.data}", f"model {loaded.task.model}"
    # `samples` of the task may have limited the data.
    samples = sizes.samples if len(loaded.data.train) < task.samples else known.samples
    _check_size(data, "training samples", samples, known.samples)
    _check_size(data, "bytes per sample", sizes.sample_bytes, known.sample_bytes)
    _check_size(model, "bytes of parameters", sizes.model_bytes, known.model_bytes)
    return replace(loaded, data=limit_samples(task, loaded.data))


def _check_size(what: str, unit: str, found: int | None, known: int | None) -> None:
    if known not in (None, found):
        raise SettingError(
            f"{what} is not that of the run: it has {found} {unit} instead of {known}; resume the "
            f"run with the {what.split(maxsplit=1)[0]} that it began with"
        )


def _resumption(
    journal: Journal, goal: NewGoal, start: Path | None, setup: RunSetup
) -> RunResumption | None:
    """Return how the run goes on; None if it had not begun."""
    if not journal.last:
        if start is not None:
            raise SettingError("this run has not begun yet: start it with --start MODEL instead")
        return None
    with _naming_model(journal.path.parent):
        recovered = RecoveredRun.from_journal(journal)
    if not has_ended(recovered) and start is None:
        _check_goal(goal, recovered)
        # The clock of an emulated run stands still while nobody trains.
        stands_still = setup.fleet is not None and setup.task.total_s is None
        return RunResumption(recovered, stands_still)
    if has_ended(recovered):
        _end(journal)
    model = None if start is None else recovered.models.latest + 1
    resumption = RunResumption(recovered, goal=goal, model=model)
    resumption.continued(1)  # raises an error if it cannot go on
    return resumption


def _check_goal(goal: NewGoal, run: RecoveredRun) -> None:
    """Raise `SettingError` for a new goal of a run that has not ended: its cycle would be lost."""
    if goal.if_ended or (goal.cycles is None and goal.total_s is None):
        return
    cycle = max(1, run.machine.state.cycle)
    raise SettingError(
        f"the run has not ended yet, it is in cycle {cycle}: resume it without --cycles and "
        "--total, and continue it when it has ended"
    )


def _end(journal: Journal) -> None:
    """Save the results of a run that had ended, and delete what it needs no more.

    Its process may have been killed before.
    """
    folder = journal.path.parent
    for name in (DEVICES_FOLDER, SHARDS_FOLDER, UPDATES_FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
    journal.export_trace()
    save_picture(Report.from_trace(journal.steps()).plot, folder / PICTURE_FILE)
