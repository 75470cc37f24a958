"""The figures of one run, as schemes are compared by them."""

from dataclasses import dataclass, field, replace
from math import isfinite, nan

from melisma.runs.report import Report

COMPLETED = ("finished", "reached goal")
FIGURES = (
    *("accuracy_s", "training_s", "run_s", "deadline_misses", "max_staleness"),
    *("capacity_used", "outside_share"),
    *("average_staleness", "visits_per_s", "visits_counted", "visits_dropped"),
    *("bytes", "joules", "cost", "accuracy", "loss"),
)
MAX_LISTED_LEARNERS = 100


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
