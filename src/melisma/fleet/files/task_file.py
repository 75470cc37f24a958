"""Reading of a TASK.toml."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from melisma.errors import SettingError
from melisma.fleet.arguments import describe
from melisma.fleet.files.toml_file import read_toml
from melisma.fleet.tables import Table
from melisma.fleet.task import Task


class TaskFile(Table, frozen=True, kw_only=True):
    """TASK.toml."""

    task: Task


def read_task(path: str | Path) -> Task:
    """Read a TASK.toml; a `SettingError` names file and key.

    Sizes of custom models and data may be missing: they are measured once both are loaded.
    """
    task = read_toml(path, TaskFile).task
    with naming_task_file(path):
        task.check_names()
    return task


def resolve_task(task: Task | str | Path) -> Task:
    """Return a task, or that of a file; it may lack a model or data, which may be objects."""
    if isinstance(task, str | Path):
        return read_toml(task, TaskFile).task
    if not isinstance(task, Task):
        raise SettingError(
            f"task is {describe(task)}; expected a melisma.Task or the path of a TASK.toml"
        )
    return task


@contextmanager
def naming_task_file(file: str | Path | None) -> Iterator[None]:
    """Name the file of a task in each `SettingError` of the context that does not name it."""
    try:
        yield
    except SettingError as error:
        if file is None or str(file) in str(error):
            raise
        raise SettingError(f"{file}: task: {error}") from error


def read_sized_task(task: Task | str | Path) -> Task:
    """Return a task, or that of a file, whose sizes are known without loading model or data.

    Raises SettingError for any other one.
    """
    file = task if isinstance(task, str | Path) else None
    task = resolve_task(task)
    with naming_task_file(file):
        task.check_names()
        task.check_optimizer()
        task.check_sizes()
    return task
