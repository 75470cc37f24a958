"""Runs of several schemes on the same seeds, and the figures of each scheme.

A figure of a scheme is its mean over seeds with a 95 % confidence interval. Schemes are compared
seed by seed, so that effects of a seed on all of them cancel out. A run that failed or never
reached the accuracy is counted as such, and left out of the means.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from math import isclose, isfinite, nan
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from melisma.fleet.task import Task
from melisma.simulation.comparison.compared_run import FIGURES, ComparedRun
from melisma.simulation.comparison.interval import Interval
from melisma.simulation.simulation import ComputeLevel

if TYPE_CHECKING:
    from melisma.runs.svg import Picture
    from melisma.simulation.comparison.comparison_table import ComparisonTable

TargetOrigin = Literal["asked", "task", "lowest", "none"]

# Times are sums with rounding errors: relative differences up to this do not count.
SAME_TIME = 1e-9
# Figures of which the largest is first; of others it is the smallest.
LARGEST_FIRST = ("visits_per_s",)


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
        return mean_by_cause(run.capacity_lost for run in self.runs_of(scheme) if run.completed)

    def interval(self, scheme: str, figure: str) -> Interval:
        """Return a figure of a scheme, over its completed runs."""
        return Interval.from_values(self._values(scheme, figure))

    def difference(self, scheme: str, figure: str, to: str | None = None) -> Interval:
        """Return how much larger a figure is than that of another scheme, on the same seeds.

        The other scheme is the first one by default.
        """
        values, others = self._values(scheme, figure), self._values(to or self.schemes[0], figure)
        pairs = zip(values, others, strict=True)
        return Interval.from_values(subtract(value, other) for value, other in pairs)

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
        encoded: dict[str, Any] = encode(
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


def mean_by_cause(losses: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return the mean fraction of capacity lost to each cause, over runs."""
    runs = list(losses)
    return {cause: fmean(run[cause] for run in runs) for cause in (runs[0] if runs else {})}


def subtract(value: float, other: float) -> float:
    """Return a difference, 0 within the rounding of sums of times."""
    return 0.0 if isclose(value, other, rel_tol=SAME_TIME) else value - other


def encode(value: Any) -> Any:
    """Convert to the types of JSON, with NaN as None."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {name: encode(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return encode(vars(value)) if isinstance(value, ComparedRun | Interval) else value
