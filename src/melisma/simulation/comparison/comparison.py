"""`compare`: run schemes in virtual time, each on the same seeds.

A figure of a scheme is its mean over seeds with a 95 % confidence interval. Schemes are compared
seed by seed, so that effects of a seed on all of them cancel out. A run that failed or never
reached the accuracy is counted as such, and left out of the means.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import isclose, isfinite, nan
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from melisma.allocation.schemes import OWN_SCHEME, SCHEMES, get_scheme
from melisma.errors import SettingError, suggest
from melisma.fleet.arguments import check_arguments, describe
from melisma.fleet.fleet import Fleet
from melisma.fleet.tables import Seed
from melisma.fleet.task import Task, resolve_task
from melisma.learning.given_objects import GivenObjects
from melisma.runs.report import Report
from melisma.simulation.comparison.interval import Interval
from melisma.simulation.fault_sources import FaultSource, function_name
from melisma.simulation.fault_targets import FaultTargets
from melisma.simulation.faults import format_faults
from melisma.simulation.scenario import Scenario
from melisma.simulation.simulation import (
    NO_OVERRIDES,
    ComputeLevel,
    SimulationOptions,
    prepare,
    run,
)
from melisma.user_code import is_import_path

if TYPE_CHECKING:
    from melisma.runs.svg import Picture
    from melisma.simulation.comparison.comparison_table import ComparisonTable

TargetOrigin = Literal["asked", "task", "lowest", "none"]

COMPLETED = ("finished", "reached goal")
# Times are sums with rounding errors: relative differences up to this do not count.
SAME_TIME = 1e-9
FIGURES = (
    *("accuracy_s", "training_s", "run_s", "deadline_misses", "max_staleness"),
    *("capacity_used", "outside_share"),
    *("average_staleness", "visits_per_s", "visits_counted", "visits_dropped"),
    *("bytes", "joules", "cost", "accuracy", "loss"),
)
MAX_LISTED_LEARNERS = 100
# Figures of which the largest is first; of others it is the smallest.
LARGEST_FIRST = ("visits_per_s",)


@dataclass(frozen=True)
class ComparedRun:
    """One run of a scheme; `curve` is (seconds, accuracy) after each cycle where it is known.

    `capacity_lost` has the fractions of capacity that were not used, by cause. Capacity used is
    also listed by cycle and, for up to `MAX_LISTED_LEARNERS`, by learner.
    """

    scheme: str
    seed: int
    outcome: str
    reason: str = ""
    curve: tuple[tuple[float, float], ...] = ()
    accuracy_s: float = nan
    training_s: float = nan
    run_s: float = nan
    deadline_misses: float = nan
    capacity_used: float = nan
    outside_share: float = nan
    max_staleness: float = nan
    average_staleness: float = nan
    visits_per_s: float = nan
    visits_counted: float = nan
    visits_dropped: float = nan
    bytes: float = nan
    joules: float = nan
    cost: float = nan
    accuracy: float = nan
    loss: float = nan
    capacity_lost: dict[str, float] = field(default_factory=dict)
    capacity_by_cycle: tuple[float, ...] = ()
    capacity_by_learner: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_report(cls, report: Report) -> "ComparedRun":
        """Return the figures of a report; `with_target` adds `accuracy_s`."""
        scored = [cycle for cycle in report.cycles if isfinite(cycle.accuracy)]
        names = [name for name in FIGURES if name not in ("accuracy_s", "run_s", "visits_per_s")]
        run_s = report.ended_s - report.began_s
        return cls(
            scheme=report.task.scheme,
            seed=report.task.seed,
            outcome=report.outcome,
            reason=report.reason,
            curve=tuple((cycle.evaluated_s - report.began_s, cycle.accuracy) for cycle in scored),
            run_s=run_s,
            visits_per_s=report.visits_counted / run_s if run_s > 0 else nan,
            capacity_lost=report.capacity_lost,
            capacity_by_cycle=tuple(cycle.capacity_used for cycle in report.ended_cycles),
            capacity_by_learner=_capacity_by_learner(report),
            **{name: float(getattr(report, name)) for name in names},
        )

    @property
    def completed(self) -> bool:
        """Whether the run neither failed nor was cancelled."""
        return self.outcome in COMPLETED

    def with_target(self, accuracy: float) -> "ComparedRun":
        """Return the run with the seconds until it reached an accuracy, NaN if it never did."""
        reached = (seconds for seconds, value in self.curve if value >= accuracy)
        return replace(self, accuracy_s=next(reached, nan))


def _capacity_by_learner(report: Report) -> dict[str, float]:
    if len(report.names) > MAX_LISTED_LEARNERS:
        return {}
    return dict(zip(report.names, report.learners.capacity_used.tolist(), strict=True))


@dataclass(frozen=True)
class Target:
    """The accuracy to which time is measured, and its origin; NaN where nothing is trained."""

    accuracy: float = nan
    origin: TargetOrigin = "none"

    def __bool__(self) -> bool:
        return self.origin != "none"


@dataclass(frozen=True)
class Lead:
    """The first and second scheme by a figure, and their difference seed by seed.

    First is the scheme with a value on most seeds; among equals, with the best mean.
    `is_clear` is whether it has values on more seeds than the second, or the difference is
    significant.
    """

    figure: str
    first: str
    second: str | None
    difference: Interval
    is_clear: bool = True


@dataclass(frozen=True)
class Comparison:
    """Runs of schemes on seeds, and their figures; the first scheme is the baseline."""

    task: Task
    level: ComputeLevel
    schemes: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[ComparedRun, ...]
    target: Target = Target()
    faults: str = ""  # of every run, as text
    has_prices: bool = True  # whether the fleet sets prices or a budget
    planned_runs: int = 0  # more than there are if the comparison was interrupted

    @property
    def interrupted(self) -> bool:
        """Whether runs are missing, because the comparison was interrupted."""
        return len(self.runs) < self.planned_runs

    def runs_of(self, scheme: str) -> tuple[ComparedRun, ...]:
        """Return the runs of a scheme, in the order of seeds."""
        return tuple(run for run in self.runs if run.scheme == scheme)

    def failures(self, scheme: str) -> tuple[ComparedRun, ...]:
        """Return the runs of a scheme that did not complete."""
        return tuple(run for run in self.runs_of(scheme) if not run.completed)

    def capacity_lost(self, scheme: str) -> dict[str, float]:
        """Return the mean fraction of capacity that a scheme lost to each cause."""
        runs = [run for run in self.runs_of(scheme) if run.completed]
        causes = runs[0].capacity_lost if runs else {}
        return {cause: fmean(run.capacity_lost[cause] for run in runs) for cause in causes}

    def interval(self, scheme: str, figure: str) -> Interval:
        """Return a figure of a scheme, over its completed runs."""
        return Interval.from_values(self._values(scheme, figure))

    def difference(self, scheme: str, figure: str, to: str | None = None) -> Interval:
        """Return how much larger a figure is than that of another scheme, on the same seeds.

        The other scheme is the first one by default.
        """
        values, others = self._values(scheme, figure), self._values(to or self.schemes[0], figure)
        pairs = zip(values, others, strict=True)
        return Interval.from_values(_subtract(value, other) for value, other in pairs)

    @cached_property
    def lead(self) -> Lead | None:
        """The lead by time to the target; without a target by visits per second or time in cycles.

        With extension all cycles last until the deadline, so that their time says nothing. It is
        None without values. After an interruption, only seeds count that all schemes have run on.
        """
        if self.interrupted:
            return self._without_open_seeds().lead
        figure = "visits_per_s" if self.task.extension else "training_s"
        figure = "accuracy_s" if self.target else figure
        sign = -1.0 if figure in LARGEST_FIRST else 1.0
        intervals = {scheme: self.interval(scheme, figure) for scheme in self.schemes}
        known = [scheme for scheme in self.schemes if intervals[scheme].known]
        ranked = sorted(
            known, key=lambda name: (-intervals[name].known, sign * intervals[name].mean)
        )
        if not ranked:
            return None
        if len(ranked) == 1:
            unknown = Interval.from_values([nan] * len(self.seeds))
            return Lead(figure, ranked[0], None, unknown)
        first, second = ranked[:2]
        difference = self.difference(second, figure, first)
        is_clear = intervals[first].known > intervals[second].known or difference.excludes_zero
        return Lead(figure, first, second, difference, is_clear)

    def _without_open_seeds(self) -> "Comparison":
        """Return the runs on seeds that all schemes have run on."""
        counts = Counter(run.seed for run in self.runs)
        seeds = tuple(seed for seed in self.seeds if counts[seed] == len(self.schemes))
        runs = tuple(run for run in self.runs if run.seed in seeds)
        return replace(self, seeds=seeds, runs=runs, planned_runs=len(runs))

    def table(self) -> "ComparisonTable":
        """Return the figures of all schemes as a table."""
        from melisma.simulation.comparison.comparison_table import build_table

        return build_table(self)

    def plot(self) -> "Picture":
        """Draw accuracy over time and the figures of all schemes."""
        from melisma.simulation.comparison.comparison_picture import draw_comparison

        return draw_comparison(self)

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON; unknown numbers are None."""
        encoded: dict[str, Any] = _encode(
            {
                "task": self.task.name,
                "work": self.level,
                "cycles": self.task.cycles,
                "total_s": self.task.total_s,
                "deadline_s": self.task.deadline_s,
                "seeds": self.seeds,
                "faults": self.faults,
                "interrupted": self.interrupted,
                "accuracy": self.target.accuracy,
                "accuracy_from": self.target.origin,
                "schemes": [self._scheme_dict(scheme) for scheme in self.schemes],
                "lead": vars(self.lead) if self.lead else None,
            }
        )
        return encoded

    def _scheme_dict(self, scheme: str) -> dict[str, Any]:
        return {
            "scheme": scheme,
            "failed": len(self.failures(scheme)),
            "figures": {name: self.interval(scheme, name) for name in FIGURES},
            "differences": {name: self.difference(scheme, name) for name in FIGURES},
            "capacity_lost": self.capacity_lost(scheme),
            "runs": self.runs_of(scheme),
        }

    def _values(self, scheme: str, figure: str) -> list[float]:
        completed = {run.seed: run for run in self.runs_of(scheme) if run.completed}
        return [getattr(completed.get(seed), figure, nan) for seed in self.seeds]


def compare(  # noqa: PLR0913 - task, fleet, schemes, seeds, options, accuracy and watcher
    task: Task | str | Path,
    fleet: Fleet | str | Path,
    schemes: Sequence[str],
    seeds: Sequence[int],
    options: SimulationOptions = NO_OVERRIDES,
    *,
    model: Any = None,
    data: Any = None,
    accuracy: float | None = None,
    watch: Callable[[ComparedRun], object] = lambda _: None,
) -> Comparison:
    """Run a task by each scheme on each seed in virtual time; `watch` is called after each run.

    `model` and `data` are objects instead of those that the task names, as in `melisma.train`.

    Time is measured to `accuracy`, or to the accuracy at which the task stops, or else to the
    lowest final accuracy of any run. Ctrl-C ends the comparison and keeps the runs that have
    finished, at least one.
    """
    _check_options(schemes, seeds, options)
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


def summarize_runs(
    task: Task,
    level: ComputeLevel,
    schemes: tuple[str, ...],
    runs: tuple[ComparedRun, ...],
    target: Target,
) -> Comparison:
    """Return the comparison of runs; each scheme has at most one run on each seed."""
    target = target or _lowest_accuracy(runs)
    timed = tuple(run.with_target(target.accuracy) for run in runs)
    seeds = tuple(dict.fromkeys(run.seed for run in runs))
    return Comparison(task, level, schemes, seeds, timed, target)


def _lowest_accuracy(runs: tuple[ComparedRun, ...]) -> Target:
    """Return the accuracy that all completed runs reached."""
    final = [run.accuracy for run in runs if run.completed and isfinite(run.accuracy)]
    return Target(min(final), "lowest") if final else Target()


def _subtract(value: float, other: float) -> float:
    return 0.0 if isclose(value, other, rel_tol=SAME_TIME) else value - other


def _encode(value: Any) -> Any:
    """Convert to the types of JSON, with NaN as None."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {name: _encode(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    return _encode(vars(value)) if isinstance(value, ComparedRun | Interval) else value
