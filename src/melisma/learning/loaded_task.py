"""What a task is trained with: its data, and a trainer whose model fits it."""

import sys
from dataclasses import dataclass
from pathlib import Path

from melisma.errors import DataError, SettingError
from melisma.fleet.task import Task
from melisma.learning.data.datasets import DataSet, load
from melisma.learning.imports import is_own
from melisma.learning.parameters import Layout
from melisma.learning.task_sizes import limit_samples, sized
from melisma.learning.trainer import Trainer
from melisma.learning.trainers import fits, trainer_for


@dataclass(frozen=True)
class Material:
    """The task with the sizes that its data and its model have; its data, limited to `samples`.

    `path` are folders where modules of one's own are looked for.
    """

    task: Task
    trainer: Trainer
    data: DataSet
    path: tuple[str, ...]


def gathered(task: Task, file: str | Path | None = None) -> Material:
    """Load and build what the task names; its file tells where modules of one's own may lie."""
    path = module_path(task, file)
    data = limit_samples(task, _loaded(task))
    trainer = trainer_for(task)
    fits(trainer, data)
    return Material(sized(task, data, Layout.of(trainer.initial())), trainer, data, path)


def module_path(task: Task, file: str | Path | None) -> tuple[str, ...]:
    """Where modules of one's own are looked for, from here on: nowhere, if the task names none."""
    if not is_own(task.model) and not is_own(task.data):
        return ()
    places = [Path(file).resolve().parent] if file is not None else []
    path = tuple(dict.fromkeys(map(str, [*places, Path.cwd()])))
    sys.path += [place for place in path if place not in sys.path]
    return path


def _loaded(task: Task) -> DataSet:
    """The data; what is wrong with one's own is a mistake that one can mend."""
    try:
        data = load(task.data, task.data_args)
    except DataError as error:
        if is_own(task.data):
            raise SettingError(str(error)) from error
        raise
    if not len(data.test) and task.mode != "federated":
        raise SettingError(f"data {task.data} has no test samples to score a model with")
    return data
