"""`resume`: goes on with a run whose process ended or was killed, or beyond its end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from melisma.errors import SettingError
from melisma.fleet.arguments import check_arguments, describe
from melisma.fleet.tables import PositiveInt
from melisma.learning.given_objects import GivenObjects
from melisma.live.invitation import OrchestrationObserver
from melisma.live.orchestration import run_orchestrator
from melisma.live.orchestrator_settings import Decide
from melisma.live.resume_preparation import prepare_resumption
from melisma.live.run_resumption import NewGoal
from melisma.live.training import run
from melisma.runs.cycle_result import OnCycle, check_callback
from melisma.runs.report import Report

ARGUMENT_TYPES = {
    "folder": str,
    "cycles": PositiveInt | None,
    "total_s": float | None,
    "start": str | None,
}


def resume(  # noqa: PLR0913 - each is a setting of its own
    folder: str | Path,
    *,
    cycles: int | None = None,
    total_s: float | None = None,
    start: str | Path | None = None,
    model: Any = None,
    data: Any = None,
    approve: Decide | None = None,
    say: Callable[[str], None] = print,
    on_cycle: OnCycle | None = None,
) -> Report:
    """Go on with the run in `folder`, in the cycle in which its process ended or was killed.

    Devices that joined the run reconnect by themselves; emulated ones are started again. A run that
    had ended goes on to `cycles` in all, or for `total_s` from now; `start` is the file of a model
    to go on from instead of the last one. Objects that were given as `model` or `data` are given
    again. `say` receives lines for the owner, and `approve` decides about devices as in
    `orchestrate`. Ctrl-C ends the run again and keeps its results.
    """
    check_arguments("resume", ARGUMENT_TYPES, locals())
    check_callback(on_cycle)
    for name, function in (("say", say), ("approve", approve)):
        if function is not None and not callable(function):
            raise SettingError(f"resume: {name} is {describe(function)}; expected a function")
    goal = NewGoal(cycles, total_s)
    prepared, setup = prepare_resumption(folder, goal, start, GivenObjects(model, data))
    if setup.fleet is not None:
        report = run(prepared, on_cycle=on_cycle, on_note=say)
    else:
        assert setup.reachability is not None
        if setup.reachability.approves and approve is None:
            prepared.close()
            raise SettingError(
                "the owner of this run decides about each device that joins: pass approve=FUNCTION"
            )
        settings = setup.reachability.settings(approve)
        report = run_orchestrator(prepared, settings, OrchestrationObserver(say), on_cycle=on_cycle)
    return report.require_success()
