"""`evaluate`: the score of a model in a file on the test samples of a task."""

from pathlib import Path

from melisma.errors import SettingError
from melisma.fleet.arguments import check_arguments
from melisma.fleet.task import Task, naming_task_file, resolve_task
from melisma.learning.loaded_task import load_task
from melisma.learning.parameters import Layout
from melisma.learning.saved_model import read_model
from melisma.learning.trainer import Score


def evaluate(model: str | Path, task: Task | str | Path) -> Score:
    """Return the score of a model, such as `report.model`, on the test samples of its task."""
    file = task if isinstance(task, str | Path) else None
    check_arguments("evaluate", {"model": str}, {"model": model})
    loaded = load_task(resolve_task(task), file)
    if not len(loaded.data.test):
        with naming_task_file(file):
            raise SettingError(f"data {loaded.task.data} has no test samples to evaluate on")
    layout = Layout.from_arrays(loaded.trainer.initial())
    return loaded.trainer.score(read_model(model, layout), loaded.data.test)
