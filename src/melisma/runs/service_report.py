"""The report of several tasks that shared a fleet: a report of each, and figures over all.

The five metrics of chapter 4 of Mays are means over all cycles of all tasks. Those of one cycle are
in the report of its task. A cycle without a new model has no time and no occupancy, and did not end
by its deadline.
"""

from dataclasses import dataclass, field, replace
from math import isfinite, nan
from pathlib import Path
from typing import Any

from melisma.cycle import commands
from melisma.errors import RunFailedError
from melisma.learning import metrics
from melisma.runs import capacity
from melisma.runs.cycle_figures import Cycle, capacity_lost, used_and_allowed_visits
from melisma.runs.report import Report
from melisma.runs.service_progress import Round

METRICS = ("mean_cycle_s", "satisfaction", "fulfilment", "drop_rate", "occupancy")
OUTCOMES: tuple[commands.Outcome, ...] = ("failed", "cancelled", "reached goal", "finished")


@dataclass(frozen=True)
class ServiceReport:
    """A run of several tasks; `rounds` say what was planned, and which tasks had to wait.

    `budget` is that of each round, None without one, and `paid` is what each task has paid.
    """

    scheme: str
    tasks: tuple[Report, ...]
    rounds: tuple[Round, ...] = field(default=(), repr=False)
    budget: float | None = None
    folder: Path | None = None
    paid: tuple[float, ...] = ()

    def __str__(self) -> str:
        lines = [str(report) for report in self.tasks]
        return "\n".join([*lines, f"scheme {self.scheme}, {len(self.rounds)} rounds"])

    @property
    def outcome(self) -> commands.Outcome:
        """The worst outcome of a task."""
        outcomes = {report.outcome for report in self.tasks}
        return next((outcome for outcome in OUTCOMES if outcome in outcomes), "cancelled")

    @property
    def ended_s(self) -> float:
        """When the last task ended."""
        return max((report.ended_s for report in self.tasks), default=0.0)

    @property
    def ended_cycles(self) -> tuple[Cycle, ...]:
        """The cycles of all tasks that ended."""
        return tuple(cycle for report in self.tasks for cycle in report.ended_cycles)

    @property
    def mean_cycle_s(self) -> float:
        """The training time: mean seconds of a cycle."""
        return metrics.mean_known([cycle.cycle_s for cycle in self.ended_cycles])

    @property
    def satisfaction(self) -> float:
        """The fraction of cycles that ended by their deadline."""
        ended = self.ended_cycles
        return sum(cycle.met_deadline for cycle in ended) / len(ended) if ended else nan

    @property
    def fulfilment(self) -> float:
        """Visits done divided by visits planned, on average over cycles."""
        return metrics.mean_known([cycle.fulfilment for cycle in self.ended_cycles])

    @property
    def drop_rate(self) -> float:
        """The fraction of planned visits that were not done."""
        return 1.0 - self.fulfilment

    @property
    def occupancy(self) -> float:
        """The fraction of a cycle that its learners were busy, on average over cycles."""
        return metrics.mean_known([cycle.occupancy for cycle in self.ended_cycles])

    @property
    def capacity_used(self) -> float:
        """Visits that count divided by the visits that learners had time for, over all tasks."""
        return float(capacity.fraction(*used_and_allowed_visits(self.ended_cycles)))

    @property
    def capacity_lost(self) -> dict[str, float]:
        """The other visits that learners had time for, as fractions of them, by cause."""
        return capacity_lost(self.ended_cycles)

    @property
    def largest_cost(self) -> float:
        """The cost of the most expensive round."""
        return max((each.cost for each in self.rounds), default=0.0)

    @property
    def expected_s(self) -> float:
        """The planned seconds of all tasks, summed over the rounds."""
        return sum(each.expected_s for each in self.rounds)

    @property
    def has_prices(self) -> bool:
        """Whether the fleet sets prices or a budget."""
        return self.budget is not None or any(report.has_prices for report in self.tasks)

    def of_task(self, number: int) -> "ServiceReport":
        """Return the figures of one task alone, without the rounds."""
        return replace(
            self, tasks=(self.tasks[number],), rounds=(), paid=self.paid[number : number + 1]
        )

    def require_success(self, failure: Exception | None = None) -> "ServiceReport":
        """Return this report; raise `RunFailedError` with that of the first task that failed."""
        for report in self.tasks:
            if report.outcome == "failed":
                report.require_success()
        if failure is not None:
            raise RunFailedError(str(failure), self.tasks[0]) from failure
        return self

    def as_dict(self) -> dict[str, Any]:
        """Return everything but traces as JSON values; unknown numbers are None."""
        figures = (*METRICS, "capacity_used", "largest_cost", "expected_s", "ended_s")
        return {
            "scheme": self.scheme,
            "outcome": self.outcome,
            "budget": self.budget,
            "paid": list(self.paid),
            **{name: _known(getattr(self, name)) for name in figures},
            "capacity_lost": {cause: _known(part) for cause, part in self.capacity_lost.items()},
            "rounds": [vars(each) | {"expected_s": each.expected_s} for each in self.rounds],
            "folder": None if self.folder is None else str(self.folder),
            "tasks": [report.as_dict() for report in self.tasks],
        }


def _known(value: float) -> float | None:
    return value if isfinite(value) else None
