"""The data of a task, and a trainer whose model fits it."""

from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from melisma.errors import DataError, SettingError
from melisma.fleet.files.task_file import naming_task_file, read_sized_task, resolve_task
from melisma.fleet.task import Task
from melisma.learning.data.datasets import DataSet, load_dataset
from melisma.learning.data.memory_data import IN_MEMORY, to_memory_data
from melisma.learning.given_objects import NO_OBJECTS, GivenObjects, NamedModel, name_model
from melisma.learning.own_aggregation import find_aggregation
from melisma.learning.parameters import Arrays, Layout
from melisma.learning.saved_model import read_model
from melisma.learning.task_sizes import limit_samples, with_actual_sizes
from melisma.learning.trainer import Trainer
from melisma.learning.trainer_factory import check_model_fits, measure_sample_ops, trainer_for
from melisma.learning.verification.update_check import require_repeatable
from melisma.user_code import add_module_path, is_import_path

DATA_KEYS = ("samples", "sample_bytes")
SIZE_KEYS = (*DATA_KEYS, "model_bytes", "sample_ops")


@dataclass(frozen=True)
class LoadedTask:
    """A task with the measured sizes of its data and model, its trainer, and its limited data.

    `path` lists the folders that are searched for modules of the user. Training starts from
    `initial`: the parameters of the trainer, of the task's `start`, or of an instance.
    """

    task: Task
    trainer: Trainer
    data: DataSet
    path: tuple[str, ...]
    initial: Arrays


def load_task(
    task: Task,
    file: str | Path | None = None,
    objects: GivenObjects = NO_OBJECTS,
    *,
    shipped: bool = False,
) -> LoadedTask:
    """Load the data and build the trainer; modules are also searched beside the task's file.

    A model among the `objects` that is `shipped` gets a name that learner processes can import.
    A `SettingError` names the file.
    """
    with naming_task_file(file):
        model = None if objects.model is None else name_model(objects.model, shipped=shipped)
        given = None
        if objects.data is not None and not isinstance(objects.data, str):
            given = to_memory_data(objects.data)
        names = {"model": model and model.name, "data": objects.data if not given else IN_MEMORY}
        task = replace(task, **{key: name for key, name in names.items() if name is not None})
        task.check_names()
        path = add_task_path(task, file, () if model is None else model.folders)
        data = limit_samples(task, _check_test(task, given or _load_data(task)))
        trainer = _build_trainer(task, model)
        check_model_fits(trainer, data)
        if task.verify == "audit":
            require_repeatable(task, trainer)
        find_aggregation(task.aggregation)
        layout = Layout.from_arrays(trainer.initial())
        initial = _initial(task, file, trainer, model)
        ops = measure_sample_ops(task, trainer, data.train)
        sized = with_actual_sizes(task, data, layout, ops)
    return LoadedTask(sized, trainer, data, path, initial)


def load_sized_task(task: Task | str | Path, objects: GivenObjects = NO_OBJECTS) -> Task:
    """Return a task, or that of a file, with all sizes; those of own models and data are measured.

    Model and data are loaded only if a size is missing, or if they are given as `objects`.
    """
    file = task if isinstance(task, str | Path) else None
    read = resolve_task(task)
    missing = [key for key in SIZE_KEYS if getattr(read.sizes, key) is None]
    names = [read.data if key in DATA_KEYS else read.model for key in missing]
    if not objects and not any(map(is_import_path, names)):
        return read_sized_task(task)
    with naming_task_file(file):
        read = load_task(read, file, objects).task
        read.check_shard_samples()
    return read


def _build_trainer(task: Task, model: NamedModel | None) -> Trainer:
    try:
        return trainer_for(task)
    except SettingError as error:
        if model is None or model.instance is None:
            raise
        raise SettingError(f"{error}; {model.rebuild_hint}") from error


def _initial(
    task: Task, file: str | Path | None, trainer: Trainer, model: NamedModel | None
) -> Arrays:
    """Return the parameters of the task's `start`, of a given instance, or of the trainer."""
    given = None if model is None else model.start(trainer)
    initial: Arrays = trainer.initial()
    if task.start is None:
        return initial if given is None else given
    if given is not None:
        raise SettingError(
            f"start = {task.start!r} and an instance as model both give the parameters to start "
            "from: pass the class of the model, or remove start"
        )
    return read_model(_beside(file, task.start), Layout.from_arrays(initial))


def _beside(file: str | Path | None, path: str) -> Path:
    """Return a path that is relative to the folder of the task file, or to the current one."""
    return Path("." if file is None else Path(file).parent) / path


def add_task_path(
    task: Task, file: str | Path | None, others: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Add the folders of the user's modules to `sys.path`; empty if the task names none.

    `others` are further folders.
    """
    partition = task.partition.kind if task.partition else ""
    names = (task.model, task.data, task.scheme, partition, task.aggregation)
    return add_module_path(file, others) if any(map(is_import_path, names)) else ()


def _load_data(task: Task) -> DataSet:
    """Load the data; an error in data of the user is a `SettingError`."""
    if task.data == IN_MEMORY:
        raise SettingError(
            "data is that of an earlier run, which had it in memory: pass it again as data=..."
        )
    try:
        data = load_dataset(task.data, task.data_args)
    except DataError as error:
        if is_import_path(task.data):
            raise SettingError(str(error)) from error
        raise
    return data


def _check_test(task: Task, data: DataSet) -> DataSet:
    if not len(data.test) and task.mode != "federated":
        raise SettingError(
            f"data {task.data} has no test samples; add some or use mode = 'federated'"
        )
    return data
