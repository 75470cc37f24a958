"""The settings of several tasks that share a fleet: one scheme, names, none of one task."""

from collections.abc import Sequence
from typing import Final

from melisma.allocation.schemes import Scheme, get_scheme
from melisma.errors import SettingError
from melisma.fleet.run_settings import RunSettings
from melisma.fleet.task import Task

DEFAULT_SCHEME: Final = "med"


def select_scheme(tasks: Sequence[Task], name: str | None) -> Scheme:
    """Return the scheme with this name, or that of the tasks."""
    if name is None:
        common = get_scheme(DEFAULT_SCHEME)
        if len(names := {task.scheme for task in tasks}) == 1:
            common = get_scheme(names.pop())
        return common if common.problem == "shared" else get_scheme(DEFAULT_SCHEME)
    scheme = get_scheme(name)
    scheme.check_shared()
    return scheme


def check_names(tasks: Sequence[Task]) -> None:
    """Raise `SettingError` if two tasks have the same name."""
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"two tasks have the same name, {name}; rename one")


def check_settings(settings: RunSettings) -> None:
    """Raise `SettingError` for settings that are those of one task."""
    refused = {
        "deadline_s": settings.deadline_s,
        "total_s": settings.total_s,
        "finish_by": settings.finish_by,
        "start": settings.start,
    }
    for name, value in refused.items():
        if value is not None:
            raise SettingError(
                f"{name} = {value} is for one task, and there are several; set deadline_s and "
                "start in their files (tasks that share a fleet have no total time)"
            )
