"""Runs of several tasks by several schemes on the same seeds, and the five metrics of each scheme.

A figure of a scheme is its mean over seeds with a 95 % confidence interval. A run that failed is
counted as such, and left out of the means.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from math import nan
from pathlib import Path
from typing import Any

from melisma.allocation.schemes import SCHEMES
from melisma.errors import SettingError, suggest
from melisma.fleet.fleet import Fleet
from melisma.runs.service_report import METRICS, ServiceReport
from melisma.simulation.comparison.compared_run import COMPLETED
from melisma.simulation.comparison.comparison import encode, mean_by_cause, subtract
from melisma.simulation.comparison.comparison_table import ComparisonTable
from melisma.simulation.comparison.figures import format_interval
from melisma.simulation.comparison.interval import Interval
from melisma.simulation.service.service_simulation import prepare_tasks, run_tasks
from melisma.simulation.simulation import NO_OVERRIDES, AnyTask, SimulationOptions

FIGURES = (*METRICS, "capacity_used", "expected_s", "largest_cost", "ended_s")
COLUMNS = {
    "mean_cycle_s": ("training", "s"),
    "satisfaction": ("satisfaction", "%"),
    "fulfilment": ("fulfilment", "%"),
    "drop_rate": ("dropped", "%"),
    "occupancy": ("occupancy", "%"),
    "capacity_used": ("capacity", "%"),
    "largest_cost": ("cost", ""),
    "ended_s": ("run", "s"),
}


@dataclass(frozen=True)
class ServiceRun:
    """The figures of one run of all tasks; `reason` says why the first one failed.

    `capacity_lost` has the fractions of capacity that were not used, by cause.
    """

    scheme: str
    seed: int
    outcome: str
    reason: str
    figures: dict[str, float]
    capacity_lost: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_report(cls, report: ServiceReport, seed: int) -> "ServiceRun":
        """Return the figures of a report."""
        failed = [each.reason for each in report.tasks if each.outcome == "failed"]
        figures = {name: float(getattr(report, name)) for name in FIGURES}
        reason = "".join(failed[:1])
        lost = report.capacity_lost
        return cls(report.scheme, seed, report.outcome, reason, figures, lost)

    @property
    def completed(self) -> bool:
        """Whether no task failed or was cancelled."""
        return self.outcome in COMPLETED


@dataclass(frozen=True)
class ServiceComparison:
    """Runs of schemes on seeds, and their figures; the first scheme is the baseline."""

    tasks: tuple[str, ...]
    schemes: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[ServiceRun, ...]
    planned_runs: int
    has_prices: bool
    faults: str = ""

    @property
    def interrupted(self) -> bool:
        """Whether runs are missing, because the comparison was interrupted."""
        return len(self.runs) < self.planned_runs

    def failures(self, scheme: str) -> tuple[ServiceRun, ...]:
        """Return the runs of a scheme that did not complete."""
        return tuple(run for run in self.runs if run.scheme == scheme and not run.completed)

    def interval(self, scheme: str, figure: str) -> Interval:
        """Return a figure of a scheme, over its completed runs."""
        return Interval.from_values(self._values(scheme, figure))

    def difference(self, scheme: str, figure: str, to: str | None = None) -> Interval:
        """Return how much larger a figure is than that of another scheme, on the same seeds."""
        values, others = self._values(scheme, figure), self._values(to or self.schemes[0], figure)
        pairs = zip(values, others, strict=True)
        return Interval.from_values(subtract(value, other) for value, other in pairs)

    def capacity_lost(self, scheme: str) -> dict[str, float]:
        """Return the mean fraction of capacity that a scheme lost to each cause."""
        return mean_by_cause(
            run.capacity_lost for run in self.runs if run.scheme == scheme and run.completed
        )

    def table(self) -> ComparisonTable:
        """Return the figures of all schemes as a table."""
        shown = [name for name in COLUMNS if self.has_prices or name != "largest_cost"]
        rows = []
        for scheme in self.schemes:
            cells = [
                format_interval(self.interval(scheme, name), COLUMNS[name][1]) for name in shown
            ]
            rows.append((scheme, *cells))
        return ComparisonTable(("scheme", *(COLUMNS[name][0] for name in shown)), tuple(rows))

    def as_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON; unknown numbers are None."""
        schemes = [
            {
                "scheme": scheme,
                "failed": len(self.failures(scheme)),
                "figures": {name: vars(self.interval(scheme, name)) for name in FIGURES},
                "capacity_lost": self.capacity_lost(scheme),
                "differences": {name: vars(self.difference(scheme, name)) for name in FIGURES},
                "runs": [vars(run) for run in self.runs if run.scheme == scheme],
            }
            for scheme in self.schemes
        ]
        encoded: dict[str, Any] = encode(
            {
                "tasks": self.tasks,
                "seeds": self.seeds,
                "faults": self.faults,
                "interrupted": self.interrupted,
                "schemes": schemes,
            }
        )
        return encoded

    def _values(self, scheme: str, figure: str) -> list[float]:
        done = {run.seed: run for run in self.runs if run.scheme == scheme and run.completed}
        return [done[seed].figures[figure] if seed in done else nan for seed in self.seeds]


def compare_tasks(
    tasks: Sequence[AnyTask],
    fleet: Fleet | str | Path,
    schemes: Sequence[str],
    seeds: Sequence[int],
    options: SimulationOptions = NO_OVERRIDES,
    *,
    watch: Callable[[ServiceRun], object] = lambda _: None,
) -> ServiceComparison:
    """Run tasks that share a fleet by each scheme on each seed; see `melisma.compare`."""
    check_schemes(schemes)
    for scheme in schemes:
        # Find invalid settings of every scheme before the first run.
        prepared = prepare_tasks(tasks, fleet, replace(options, scheme=scheme, seed=seeds[0]))
    runs: list[ServiceRun] = []
    with suppress(KeyboardInterrupt):
        for seed, scheme in product(seeds, schemes):
            changed = replace(options, scheme=scheme, seed=seed)
            report = run_tasks(prepare_tasks(tasks, fleet, changed))
            if report.outcome == "cancelled":
                break
            runs.append(ServiceRun.from_report(report, seed))
            watch(runs[-1])
    if not runs:
        raise KeyboardInterrupt
    return ServiceComparison(
        tasks=tuple(each.scenario.task.name for each in prepared.tasks),
        schemes=tuple(schemes),
        seeds=tuple(dict.fromkeys(run.seed for run in runs)),
        runs=tuple(runs),
        planned_runs=len(schemes) * len(seeds),
        has_prices=prepared.fleet.has_prices,
        faults=options.faults if isinstance(options.faults, str) else "",
    )


def check_schemes(schemes: Sequence[str]) -> None:
    """Raise `SettingError` unless these are schemes for tasks that share learners, each once."""
    fit = [row.name for row in SCHEMES.values() if row.problem == "shared"]
    if not schemes:
        raise SettingError(f"no scheme to compare; expected some of {', '.join(fit)}")
    for name in schemes:
        if name not in fit:
            problem = "plans one task at a time" if name in SCHEMES else "is unknown"
            raise SettingError(f"scheme {name!r} {problem}; {suggest(name, fit)}")
        if schemes.count(name) > 1:
            raise SettingError(f"scheme {name} is named twice; expected each scheme once")
