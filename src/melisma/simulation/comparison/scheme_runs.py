"""`compare`: runs of several schemes in virtual time, each on the same seeds."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, overload

from melisma.allocation.schemes import OWN_SCHEME, SCHEMES, get_scheme
from melisma.errors import SettingError, suggest
from melisma.fleet.arguments import check_arguments, describe
from melisma.fleet.files.task_file import resolve_task
from melisma.fleet.fleet import Fleet
from melisma.fleet.tables import Seed
from melisma.fleet.task import Task
from melisma.learning.given_objects import GivenObjects
from melisma.runs.report import Report
from melisma.simulation.comparison.compared_run import ComparedRun
from melisma.simulation.comparison.comparison import Comparison, Target, summarize_runs
from melisma.simulation.comparison.service_comparison import (
    ServiceComparison,
    ServiceRun,
    compare_tasks,
)
from melisma.simulation.fault_sources import FaultSource, function_name
from melisma.simulation.fault_targets import FaultTargets
from melisma.simulation.faults import format_faults
from melisma.simulation.scenario import Scenario
from melisma.simulation.simulation import (
    NO_OVERRIDES,
    AnyTask,
    ComputeLevel,
    SimulationOptions,
    TaskList,
    prepare,
    run,
)
from melisma.user_code import is_import_path


@overload
def compare(
    task: AnyTask,
    fleet: Fleet | str | Path,
    schemes: Sequence[str],
    seeds: Sequence[int],
    options: SimulationOptions = ...,
    *,
    model: Any = ...,
    data: Any = ...,
    accuracy: float | None = ...,
    watch: Callable[[ComparedRun], object] = ...,
) -> Comparison: ...


@overload
def compare(
    task: TaskList,
    fleet: Fleet | str | Path,
    schemes: Sequence[str],
    seeds: Sequence[int],
    options: SimulationOptions = ...,
    *,
    watch: Callable[[ServiceRun], object] = ...,
) -> ServiceComparison: ...


def compare(  # noqa: PLR0913 - task, fleet, schemes, seeds, options, accuracy and watcher
    task: AnyTask | TaskList,
    fleet: Fleet | str | Path,
    schemes: Sequence[str],
    seeds: Sequence[int],
    options: SimulationOptions = NO_OVERRIDES,
    *,
    model: Any = None,
    data: Any = None,
    accuracy: float | None = None,
    watch: Callable[[Any], object] = lambda _: None,
) -> Comparison | ServiceComparison:
    """Run a task by each scheme on each seed in virtual time; `watch` is called after each run.

    A list of tasks shares the fleet. `model` and `data` are objects instead of those that a single
    task names, as in `melisma.train`.

    Time is measured to `accuracy`, or to the accuracy at which the task stops, or else to the
    lowest final accuracy of any run. Ctrl-C ends the comparison and keeps the runs that have
    finished, at least one.
    """
    _check_options(schemes, seeds, options)
    if isinstance(task, list | tuple):
        given = {"model": model, "data": data, "accuracy": accuracy}
        if named := [name for name, value in given.items() if value is not None]:
            raise SettingError(f"{named[0]} is for one task, found a list of tasks; leave it out")
        return compare_tasks(task, fleet, schemes, seeds, options, watch=watch)
    _check_schemes(schemes)
    read, objects = resolve_task(task), GivenObjects(model, data)
    level = options.work or read.simulation.work
    _check_passes(read, schemes, f"{task}: " if read is not task else "")
    target = _choose_target(read, level, accuracy)
    for scheme in schemes:
        # Find invalid settings of every scheme before the first run.
        prepared = prepare(task, fleet, replace(options, scheme=scheme, seed=seeds[0]), objects)
    settings = [
        replace(options, scheme=scheme, seed=seed) for seed, scheme in product(seeds, schemes)
    ]
    runs = _run_all(lambda options: run(prepare(task, fleet, options, objects)), settings, watch)
    comparison = summarize_runs(read, level, tuple(schemes), runs, target)
    scenario = prepared.scenario
    return replace(
        comparison,
        planned_runs=len(settings),
        faults=_describe_faults(options.faults, scenario),
        has_prices=scenario.fleet.has_prices,
    )


def _run_all(
    simulate_with: Callable[[SimulationOptions], Report],
    settings: Sequence[SimulationOptions],
    watch: Callable[[ComparedRun], object],
) -> tuple[ComparedRun, ...]:
    """Run all settings in turn; if interrupted, return the finished runs, if there are any."""
    runs: list[ComparedRun] = []
    with suppress(KeyboardInterrupt):
        for options in settings:
            report = simulate_with(options)
            if report.outcome == "cancelled":
                break
            runs.append(ComparedRun.from_report(report))
            watch(runs[-1])
    if not runs:
        raise KeyboardInterrupt
    return tuple(runs)


def _describe_faults(source: FaultSource, scenario: Scenario) -> str:
    """Return the faults of all runs as text: that of the caller, as a choice differs by seed."""
    if isinstance(source, str) and not source.isdecimal():
        return source
    if callable(source):
        return f"by {function_name(source)}"
    return format_faults(scenario.faults, FaultTargets.of_fleet(scenario.fleet))


def _check_options(
    schemes: Sequence[str], seeds: Sequence[int], options: SimulationOptions
) -> None:
    check_arguments("compare", {"schemes": list[str], "seeds": list[Seed]}, locals())
    if not isinstance(options, SimulationOptions):
        raise SettingError(
            f"options are {describe(options)}; expected melisma.SimulationOptions(...)"
        )
    if options.scheme is not None or options.seed is not None:
        raise SettingError(
            "options set a scheme or a seed; use the arguments schemes and seeds instead"
        )
    if not seeds or len(set(seeds)) < len(seeds):
        raise SettingError(f"seeds are {list(seeds)}; expected at least one, each once")


def _check_schemes(schemes: Sequence[str]) -> None:
    fit = [row.name for row in SCHEMES.values() if row.problem == "cycle"]
    if not schemes:
        raise SettingError(f"no scheme to compare; expected some of {', '.join(fit)}")
    for name in schemes:
        if name not in fit and not is_import_path(name):
            problem = "cannot run a cycle of one task" if name in SCHEMES else "is unknown"
            expected = suggest(name, fit, OWN_SCHEME)
            raise SettingError(f"scheme {name!r} {problem}; {expected}")
        if schemes.count(name) > 1:
            raise SettingError(f"scheme {name} is named twice; expected each scheme once")


def _check_passes(task: Task, schemes: Sequence[str], where: str) -> None:
    for name in schemes:
        if get_scheme(name).passes == "fixed" and task.passes is None:
            raise SettingError(
                f"{where}task: passes is missing; scheme {name} needs it, such as passes = 1"
            )


def _choose_target(task: Task, level: ComputeLevel, accuracy: float | None) -> Target:
    """Return the target that is known before any run."""
    stop = task.stop.accuracy
    if accuracy is None:
        return Target(stop, "task") if stop is not None and level != "timing" else Target()
    if level == "timing":
        raise SettingError(
            f"accuracy is {accuracy:g}, but work = timing trains nothing; use work = train"
        )
    if not isinstance(accuracy, int | float):
        raise SettingError(f"accuracy is {describe(accuracy)}; expected a number from 0 to 1")
    if not 0 < accuracy <= 1:
        raise SettingError(f"accuracy is {accuracy:g}; expected more than 0, and at most 1")
    if stop is not None and accuracy > stop:
        raise SettingError(
            f"accuracy is {accuracy:g}, but the task stops at {stop:g}; "
            "raise task.stop.accuracy or leave it out"
        )
    return Target(accuracy, "asked")
