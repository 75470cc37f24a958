"""`RunSettings`: what a caller sets instead of the task file, besides the time of the run."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from melisma.errors import SettingError, suggest
from melisma.fleet.arguments import check_arguments
from melisma.fleet.run_time import RunTime
from melisma.fleet.task import Task
from melisma.user_code import is_import_path

AGGREGATIONS = ("mean", "median", "trimmed_mean")


@dataclass(frozen=True)
class RunSettings(RunTime):
    """The time of a run, the model it starts from and its aggregation; None as in the task.

    `start` is relative to the current folder; that of a task file is relative to the file.
    """

    start: str | Path | None = None
    aggregation: str | None = None

    def __post_init__(self) -> None:
        """Raise `SettingError` for values of a wrong type, or times that contradict each other."""
        super().__post_init__()
        types = {"start": str | None, "aggregation": str | None}
        check_arguments("", types, vars(self))

    def apply(self, task: Task) -> Task:
        """Return the task with these settings; `SettingError` if they are invalid."""
        changes: dict[str, object] = {}
        if self.start is not None:
            changes["start"] = str(self._existing_start(Path(self.start)))
        if self.aggregation is not None:
            check_aggregation_name(self.aggregation)
            changes["aggregation"] = self.aggregation
        return msgspec.structs.replace(super().apply(task), **changes)

    @staticmethod
    def _existing_start(path: Path) -> Path:
        if not path.is_file():
            raise SettingError(
                f"start is {path}: there is no such file; use a model.safetensors of an earlier run"
            )
        return path.resolve()


def check_aggregation_name(name: str) -> None:
    """Raise `SettingError` unless a name is that of an aggregation or of a function."""
    if name not in AGGREGATIONS and not is_import_path(name):
        raise SettingError(
            f"aggregation is {name!r}; {suggest(name, AGGREGATIONS, 'package.module:name')}"
        )
