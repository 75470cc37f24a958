"""`compare`: schemes side by side in virtual time, each on the same seeds.

A figure of a scheme is its mean over seeds with the half width of its 95 % confidence interval, by
Student's t; schemes are compared seed by seed, so that what a seed does to all of them cancels out.
A run that failed or never reached the accuracy is counted as such, and averaged into nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import isclose, isfinite, nan, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import numpy as np

from melisma.allocation.schemes import SCHEMES
from melisma.errors import SettingError, suggest
from melisma.fleet.fleet import Fleet
from melisma.fleet.t_distribution import student_t
from melisma.fleet.task import Task, read_task
from melisma.runs.report import Report
from melisma.simulation.faults import format_faults
from melisma.simulation.simulation import (
    NO_OVERRIDES,
    ComputeLevel,
    SimulationOptions,
    prepare,
    simulate,
)

Origin = Literal["asked", "task", "lowest", "none"]

WELL = ("done", "stopped")
SURE = 0.975  # 2.5 % on either side
# Instants are sums that do not come out even.
SAME = 1e-9
FIGURES = (
    *("accuracy_s", "training_s", "run_s", "deadline_misses", "max_staleness"),
    *("average_staleness", "samples_trained", "samples_dropped", "bytes", "joules", "cost"),
    *("accuracy", "loss"),
)


@dataclass(frozen=True)
class ComparedRun:
    """One run of a scheme; `curve` is (seconds, accuracy) after each cycle, as far as known."""

    scheme: str
    seed: int
    outcome: str
    reason: str = ""
    curve: tuple[tuple[float, float], ...] = ()
    accuracy_s: float = nan
    training_s: float = nan
    run_s: float = nan
    deadline_misses: float = nan
    max_staleness: float = nan
    average_staleness: float = nan
    samples_trained: float = nan
    samples_dropped: float = nan
    bytes: float = nan
    joules: float = nan
    cost: float = nan
    accuracy: float = nan
    loss: float = nan

    @classmethod
    def from_report(cls, report: Report) -> "ComparedRun":
        """The figures of a report; when it reached an accuracy, `timed` tells."""
        known = [each for each in report.cycles if isfinite(each.accuracy)]
        told = [name for name in FIGURES if name not in ("accuracy_s", "run_s")]
        return cls(
            scheme=report.task.scheme,
            seed=report.task.seed,
            outcome=report.outcome,
            reason=report.reason,
            curve=tuple((each.evaluated_s - report.began_s, each.accuracy) for each in known),
            run_s=report.ended_s - report.began_s,
            **{name: float(getattr(report, name)) for name in told},
        )

    @property
    def ended_well(self) -> bool:
        """Whether it was not broken off."""
        return self.outcome in WELL

    def with_target(self, accuracy: float) -> "ComparedRun":
        """With the seconds until it was that accurate, NaN if it never was."""
        reached = (seconds for seconds, found in self.curve if found >= accuracy)
        return replace(self, accuracy_s=next(reached, nan))


@dataclass(frozen=True)
class Interval:
    """A mean, and what may be added or taken away, from values known of so many.

    The half width of a single value is NaN, and so is the mean of none.
    """

    mean: float
    half_width: float
    known: int
    count: int

    @classmethod
    def from_values(cls, values: Iterable[float]) -> "Interval":
        """Of those that are known; `known` tells how many they are."""
        every = list(values)
        known = [each for each in every if isfinite(each)]
        middle = mean(known) if known else nan
        return cls(float(middle), _half(known), len(known), len(every))

    @property
    def beyond_chance(self) -> bool:
        """Whether 0 is outside of it; never for a single value."""
        return abs(self.mean) > self.half_width


@dataclass(frozen=True)
class Target:
    """The accuracy whose time is taken, and who says so; NaN where nothing is trained."""

    accuracy: float = nan
    origin: Origin = "none"

    def __bool__(self) -> bool:
        return self.origin != "none"


@dataclass(frozen=True)
class Lead:
    """Which scheme was first, by which figure, and how much longer the next took, seed by seed.

    First is who came there on most seeds, and then soonest on average.
    """

    figure: str
    first: str
    second: str | None
    difference: Interval


@dataclass(frozen=True)
class Comparison:
    """Runs of schemes on seeds, and what they come to; the first scheme is compared with."""

    task: Task
    level: ComputeLevel
    schemes: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[ComparedRun, ...]
    target: Target = Target()
    faults: str = ""  # of every run, in words

    def runs_of(self, scheme: str) -> tuple[ComparedRun, ...]:
        """The runs of a scheme, in the order of seeds."""
        return tuple(each for each in self.runs if each.scheme == scheme)

    def failed_runs(self, scheme: str) -> tuple[ComparedRun, ...]:
        """Its runs that were broken off."""
        return tuple(each for each in self.runs_of(scheme) if not each.ended_well)

    def interval(self, scheme: str, figure: str) -> Interval:
        """A figure of a scheme, over its runs that ended well."""
        return Interval.from_values(self._values(scheme, figure))

    def difference(self, scheme: str, figure: str, to: str | None = None) -> Interval:
        """How much more it is than that of another, or of the first, on the same seeds."""
        pairs = zip(
            self._values(scheme, figure), self._values(to or self.schemes[0], figure), strict=True
        )
        return Interval.from_values(_less(one, other) for one, other in pairs)

    def has_values(self, figure: str) -> bool:
        """Whether any run that ended well has it."""
        return any(self.interval(scheme, figure).known for scheme in self.schemes)

    @cached_property
    def lead(self) -> Lead | None:
        """By time to the accuracy, or of the run where there is none; None if nobody came."""
        figure = "accuracy_s" if self.target else "run_s"
        found = [(self.interval(scheme, figure), scheme) for scheme in self.schemes]
        came = [each for each in found if each[0].known]
        ranked = [scheme for _, scheme in sorted(came, key=lambda e: (-e[0].known, e[0].mean))]
        if not ranked:
            return None
        second = ranked[1] if len(ranked) > 1 else None
        return Lead(figure, ranked[0], second, self._behind(ranked, figure))

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON; numbers that are not known are None."""
        whole: dict[str, Any] = _plain(
            {
                "task": self.task.name,
                "work": self.level,
                "cycles": self.task.cycles,
                "deadline_s": self.task.deadline_s,
                "seeds": self.seeds,
                "faults": self.faults,
                "accuracy": self.target.accuracy,
                "accuracy_from": self.target.origin,
                "schemes": [self._told(scheme) for scheme in self.schemes],
                "lead": vars(self.lead) if self.lead else None,
            }
        )
        return whole

    def _told(self, scheme: str) -> dict[str, Any]:
        return {
            "scheme": scheme,
            "failed": len(self.failed_runs(scheme)),
            "figures": {name: self.interval(scheme, name) for name in FIGURES},
            "differences": {name: self.difference(scheme, name) for name in FIGURES},
            "runs": self.runs_of(scheme),
        }

    def _behind(self, ranked: list[str], figure: str) -> Interval:
        if len(ranked) == 1:
            return Interval.from_values([nan] * len(self.seeds))
        return self.difference(ranked[1], figure, ranked[0])

    def _values(self, scheme: str, figure: str) -> list[float]:
        return [getattr(e, figure) if e.ended_well else nan for e in self.runs_of(scheme)]


def compare(  # noqa: PLR0913 - what, where, by which schemes, how often, and how
    task: Task | str | Path,
    fleet: Fleet | str | Path,
    schemes: Sequence[str],
    seeds: Sequence[int],
    options: SimulationOptions = NO_OVERRIDES,
    *,
    accuracy: float | None = None,
    watch: Callable[[ComparedRun], object] = lambda _: None,
) -> Comparison:
    """Run a task by each scheme on each seed, in virtual time; `watch` sees each run that is over.

    The time is taken to `accuracy`, or to the one at which the task stops, or else to the lowest
    that any run ended with.
    """
    read = read_task(task) if isinstance(task, str | Path) else task
    level = options.work or read.simulation.work
    _check_options(seeds, options)
    _check_schemes(schemes)
    _check_passes(read, schemes, f"{task}: " if read is not task else "")
    asked = _asked(read, level, accuracy)
    for scheme in schemes:
        # What cannot run at all is said before anything has.
        staged = prepare(task, fleet, replace(options, scheme=scheme, seed=seeds[0]))
    runs = []
    for seed, scheme in product(seeds, schemes):
        report = simulate(task, fleet, replace(options, scheme=scheme, seed=seed))
        if report.outcome == "cancelled":
            raise KeyboardInterrupt
        runs.append(ComparedRun.from_report(report))
        watch(runs[-1])
    found = summarize_runs(read, level, tuple(schemes), tuple(runs), asked)
    return replace(found, faults=format_faults(staged.scenario.faults))


def summarize_runs(
    task: Task,
    level: ComputeLevel,
    schemes: tuple[str, ...],
    runs: tuple[ComparedRun, ...],
    asked: Target,
) -> Comparison:
    """What these runs come to; each scheme has one on each seed."""
    target = asked or _lowest(runs)
    timed = tuple(each.with_target(target.accuracy) for each in runs)
    seeds = tuple(each.seed for each in runs if each.scheme == schemes[0])
    return Comparison(task, level, schemes, seeds, timed, target)


def _check_options(seeds: Sequence[int], options: SimulationOptions) -> None:
    if options.scheme is not None or options.seed is not None:
        raise SettingError("options name a scheme or a seed; expected schemes and seeds to do so")
    if not seeds or len(set(seeds)) < len(seeds):
        raise SettingError(f"seeds are {list(seeds)}; expected at least one, each once")


def _check_schemes(schemes: Sequence[str]) -> None:
    fit = [row.name for row in SCHEMES.values() if row.problem == "cycle"]
    if not schemes:
        raise SettingError(f"no scheme to compare; expected some of {', '.join(fit)}")
    for name in schemes:
        if name not in fit:
            what = "plans no cycle of one task" if name in SCHEMES else "is unknown"
            raise SettingError(f"scheme {name!r} {what}; {suggest(name, fit)}")
        if schemes.count(name) > 1:
            raise SettingError(f"scheme {name} is named twice; expected each of them once")


def _check_passes(task: Task, schemes: Sequence[str], where: str) -> None:
    for name in schemes:
        if SCHEMES[name].passes == "fixed" and task.passes is None:
            raise SettingError(
                f"{where}task: passes is missing; scheme {name} needs it, such as passes = 1"
            )


def _asked(task: Task, level: ComputeLevel, accuracy: float | None) -> Target:
    """The accuracy as it is known before any run."""
    stop = task.stop.accuracy
    if accuracy is None:
        return Target(stop, "task") if stop is not None and level != "timing" else Target()
    if level == "timing":
        raise SettingError("no accuracy is known where nothing is trained (work = timing)")
    if not 0 < accuracy <= 1:
        raise SettingError(f"accuracy is {accuracy:g}; expected more than 0, and at most 1")
    if stop is not None and accuracy > stop:
        raise SettingError(
            f"accuracy is {accuracy:g}, but the task stops at {stop:g}; "
            "raise task.stop.accuracy or leave it out"
        )
    return Target(accuracy, "asked")


def _lowest(runs: tuple[ComparedRun, ...]) -> Target:
    """What all runs that ended well came to."""
    ends = [each.accuracy for each in runs if each.ended_well and isfinite(each.accuracy)]
    return Target(min(ends), "lowest") if ends else Target()


def _half(values: list[float]) -> float:
    if len(values) < 2:
        return nan
    t = float(student_t(SURE, np.array([len(values) - 1.0]))[0])
    return t * stdev(values) / sqrt(len(values))


def _less(one: float, other: float) -> float:
    return 0.0 if isclose(one, other, rel_tol=SAME) else one - other


def _plain(value: Any) -> Any:
    """Down to what JSON knows."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return _plain(vars(value)) if isinstance(value, ComparedRun | Interval) else value
