"""The data of a task, and a trainer whose model fits it."""

from dataclasses import dataclass
from pathlib import Path

from melisma.errors import DataError, SettingError
from melisma.fleet.task import Task, naming_task_file
from melisma.learning.data.datasets import DataSet, load_dataset
from melisma.learning.own_aggregation import find_aggregation
from melisma.learning.parameters import Arrays, Layout
from melisma.learning.saved_model import read_model
from melisma.learning.task_sizes import limit_samples, with_actual_sizes
from melisma.learning.trainer import Trainer
from melisma.learning.trainer_factory import check_model_fits, trainer_for
from melisma.user_code import add_module_path, is_import_path


@dataclass(frozen=True)
class LoadedTask:
    """A task with the measured sizes of its data and model, its trainer, and its limited data.

    `path` lists the folders that are searched for modules of the user. Training starts from
    `initial`: the parameters of the trainer, or those of the task's `start`.
    """

    task: Task
    trainer: Trainer
    data: DataSet
    path: tuple[str, ...]
    initial: Arrays


def load_task(task: Task, file: str | Path | None = None) -> LoadedTask:
    """Load the data and build the trainer; modules are also searched beside the task's file.

    A `SettingError` names the file.
    """
    path = add_task_path(task, file)
    with naming_task_file(file):
        data = limit_samples(task, _load_data(task))
        trainer = trainer_for(task)
        check_model_fits(trainer, data)
        find_aggregation(task.aggregation)
        initial: Arrays = trainer.initial()
        layout = Layout.from_arrays(initial)
        if task.start is not None:
            initial = read_model(_beside(file, task.start), layout)
        sized = with_actual_sizes(task, data, layout)
    return LoadedTask(sized, trainer, data, path, initial)


def _beside(file: str | Path | None, path: str) -> Path:
    """Return a path that is relative to the folder of the task file, or to the current one."""
    return Path("." if file is None else Path(file).parent) / path


def add_task_path(task: Task, file: str | Path | None) -> tuple[str, ...]:
    """Add the folders of the user's modules to `sys.path`; empty if the task names none."""
    partition = task.partition.kind if task.partition else ""
    names = (task.model, task.data, task.scheme, partition, task.aggregation)
    return add_module_path(file) if any(map(is_import_path, names)) else ()


def _load_data(task: Task) -> DataSet:
    """Load the data; an error in data of the user is a `SettingError`."""
    try:
        data = load_dataset(task.data, task.data_args)
    except DataError as error:
        if is_import_path(task.data):
            raise SettingError(str(error)) from error
        raise
    if not len(data.test) and task.mode != "federated":
        raise SettingError(
            f"data {task.data} has no test samples; add some or use mode = 'federated'"
        )
    return data
