"""`evaluate`: the score of a model in a file on the test samples of a task."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from melisma.errors import SettingError
from melisma.fleet.arguments import check_arguments
from melisma.fleet.files.task_file import naming_task_file, resolve_task
from melisma.fleet.task import Task
from melisma.learning.given_objects import GivenObjects
from melisma.learning.loaded_task import load_task
from melisma.learning.parameters import Layout
from melisma.learning.saved_model import read_model
from melisma.learning.trainer import Score


def evaluate(
    file: str | Path, task: Task | str | Path, *, model: Any = None, data: Any = None
) -> Score:
    """Return the score of the model in a file, such as `report.model`, on a task's test samples.

    `model` and `data` are objects instead of those that the task names, as in `melisma.train`.
    """
    task_file = task if isinstance(task, str | Path) else None
    check_arguments("evaluate", {"file": str}, {"file": file})
    # The parameters are those of `file`, whatever a run would start from.
    task = replace(resolve_task(task), start=None)
    loaded = load_task(task, task_file, GivenObjects(model, data))
    if not len(loaded.data.test):
        with naming_task_file(task_file):
            raise SettingError(f"data {loaded.task.data} has no test samples to evaluate on")
    layout = Layout.from_arrays(loaded.trainer.initial())
    return loaded.trainer.score(read_model(file, layout), loaded.data.test)
