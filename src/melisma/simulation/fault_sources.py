"""The faults of a scenario from their text, from a seed, or from a function of the user.

The function is called with the fleet, the seconds that the run takes about, and a random generator;
it returns faults or their text.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from melisma.errors import SettingError
from melisma.fleet.arguments import describe
from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator
from melisma.fleet.task import Task
from melisma.simulation.fault_targets import FaultTargets
from melisma.simulation.faults import Fault, parse_faults, random_faults, random_orchestrator_faults
from melisma.user_code import IMPORT_PATH, add_module_path, describe_error, import_function

FaultFunction: TypeAlias = Callable[[Fleet, float, np.random.Generator], str | Iterable[Fault]]
FaultSource: TypeAlias = str | int | tuple[Fault, ...] | FaultFunction
KEY = "faults"
# Faults are drawn from this many times the expected length of the run.
DRAWN_LENGTHS = 1.2
STEPS_PER_CYCLE = 12  # about
# Of the schedules of a search, these have faults of learners only.
WITHOUT_STOPS = 0.2


def find_faults(
    source: FaultSource, task: Task, fleet: Fleet, file: str | Path | None = None
) -> tuple[Fault, ...]:
    """Return the faults of a run; raise `SettingError` if they are invalid.

    Modules are also searched beside the task's file.
    """
    targets, faults = FaultTargets.of_fleet(fleet), list[Fault]()
    if isinstance(source, tuple):
        return _check_given(source, targets)
    if callable(source):
        return _call(source, function_name(source), task, fleet)
    if str(source).isdecimal():
        return draw_faults(int(source), task, fleet)
    for part in map(str.strip, str(source).split(";")):
        if IMPORT_PATH.fullmatch(part):
            add_module_path(file)
            faults += _call(import_function(KEY, part), part, task, fleet)
        else:
            faults += parse_faults(part, targets)
    return tuple(faults)


def function_name(function: FaultFunction) -> str:
    """Return the name of a function, or of the class of an object; the same in each process."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def draw_faults(seed: int, task: Task, fleet: Fleet) -> tuple[Fault, ...]:
    """Draw the faults of a run from a seed."""
    until_s = DRAWN_LENGTHS * task.expected_s
    return random_faults(generator(seed, "faults"), fleet.learners, until_s)


def draw_orchestrator_faults(
    seed: int, task: Task, fleet: Fleet, *, disk: bool
) -> tuple[Fault, ...]:
    """Draw stops of the orchestrator and, with `disk`, faults of its disk; for some seeds none."""
    rng, until_s = generator(seed, "faults of the orchestrator"), DRAWN_LENGTHS * task.expected_s
    if rng.random() < WITHOUT_STOPS:
        return ()
    steps = STEPS_PER_CYCLE * round(until_s / task.deadline_s + 1)
    return random_orchestrator_faults(rng, fleet.learners, until_s, steps, disk=disk)


def _call(function: FaultFunction, name: str, task: Task, fleet: Fleet) -> tuple[Fault, ...]:
    """Return the checked faults of a function of the user."""
    rng = generator(task.seed, f"{KEY} {name}")
    try:
        returned = function(fleet, DRAWN_LENGTHS * task.expected_s, rng)
        faults = returned if isinstance(returned, str) else tuple(returned)
    except Exception as error:  # The function is the user's.
        raise SettingError(f"{KEY} {name}: {describe_error(error)}") from error
    targets = FaultTargets.of_fleet(fleet)
    try:
        if isinstance(faults, str):
            return parse_faults(faults, targets)
        for fault in faults:
            _check(fault, targets)
    except SettingError as error:
        raise SettingError(f"{KEY} {name}: {error}") from None
    return faults


def _check_given(faults: tuple[Fault, ...], targets: FaultTargets) -> tuple[Fault, ...]:
    for fault in faults:
        if not isinstance(fault, Fault):
            raise SettingError(
                f"{KEY}: a tuple contains {describe(fault)}; expected Fault(...), or instead of "
                "the tuple one text such as 'crash 1 at 9; crash 2 at 9'"
            )
        _check(fault, targets)
    return faults


def _check(fault: object, targets: FaultTargets) -> None:
    """Raise `SettingError` unless the text of a fault can be parsed."""
    if not isinstance(fault, Fault):
        raise SettingError(f"returned a {type(fault).__name__}; expected Fault(...) or text")
    parse_faults(str(fault), targets)
