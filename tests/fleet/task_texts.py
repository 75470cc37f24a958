"""TASK.toml files with a few keys, and the errors that they lead to."""

from collections.abc import Callable
from pathlib import Path

import pytest

from melisma.errors import SettingError
from melisma.fleet.files.task_file import read_task
from melisma.fleet.task import Task

NEEDED = {"name": '"digits"', "model": '"twonn"', "data": '"mnist"', "deadline_s": "15.0"}


def write_task(tmp_path: Path, **keys: str | None) -> Path:
    """Write a task with the required keys and these; None leaves a key out."""
    lines = [f"{key} = {value}" for key, value in (NEEDED | keys).items() if value is not None]
    path = tmp_path / "TASK.toml"
    path.write_text("\n".join(["[task]", *lines]))
    return path


def read_error(path: Path, read: Callable[[Path], Task] = read_task) -> str:
    with pytest.raises(SettingError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")
