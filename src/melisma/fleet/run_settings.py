"""`RunSettings`: what a caller sets instead of the task file, besides the time of the run."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from melisma.fleet.arguments import check_arguments
from melisma.fleet.run_time import RunTime
from melisma.fleet.task import Task


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
            changes["start"] = str(Path(self.start).resolve())
        if self.aggregation is not None:
            changes["aggregation"] = self.aggregation
        return msgspec.structs.replace(super().apply(task), **changes)
