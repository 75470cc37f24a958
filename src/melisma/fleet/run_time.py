"""`RunTime`: the deadline of cycles or of a whole run, instead of what the task file says."""

from dataclasses import dataclass
from math import isfinite

import msgspec

from melisma.errors import SettingError
from melisma.fleet.arguments import check_arguments
from melisma.fleet.task import Task


@dataclass(frozen=True)
class RunTime:
    """The deadline of a cycle, or the total time of a run; None keeps the setting of the task."""

    deadline_s: float | None = None
    total_s: float | None = None
    finish_by: str | None = None

    def __post_init__(self) -> None:
        """Raise `SettingError` for times that contradict each other or are out of range."""
        types = {"deadline_s": float | None, "total_s": float | None, "finish_by": str | None}
        check_arguments("", types, vars(self))
        for name in ("deadline_s", "total_s"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and isfinite(value)):
                raise SettingError(f"{name} is {value:g}; expected seconds, more than 0")
        if self.deadline_s is not None and self.has_total:
            raise SettingError(
                "deadline_s is that of a cycle, and total_s or finish_by that of the whole run, "
                "which chooses the length of its cycles: use one of them"
            )

    @property
    def has_total(self) -> bool:
        """Whether the time of the whole run is given."""
        return self.total_s is not None or self.finish_by is not None

    def apply(self, task: Task) -> Task:
        """Return the task with this time; `SettingError` if it is too short or cannot be read."""
        changes: dict[str, object] = {}
        if self.deadline_s is not None:
            changes = {"deadline_s": self.deadline_s, "total_s": None, "finish_by": None}
        elif self.has_total:
            # Length and number of cycles follow from the total time.
            changes = {"total_s": self.total_s, "finish_by": self.finish_by}
            changes |= {"deadline_s": 0.0, "cycles": None}
        try:
            task = msgspec.structs.replace(task, **changes)
        except ValueError as error:
            raise SettingError(str(error)) from None
        return task if self.finish_by is None else task.with_total()


TIME_OF_TASK = RunTime()
