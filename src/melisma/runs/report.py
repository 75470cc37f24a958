"""The figures of a run and of its cycles.

A cycle closes when no update is awaited, or after its deadline. Its time runs from the first
dispatch to closing. It met its deadline if updates were aggregated and it closed by then. Dropped
work counts as not done.
"""

from collections import Counter
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from math import isfinite, isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from melisma.cycle import commands, events
from melisma.fleet.array_types import Floats
from melisma.fleet.task import Task
from melisma.learning import metrics
from melisma.runs import capacity
from melisma.runs.assignments import NO_ASSIGNMENTS, STATUSES, Assignment, Assignments, Status
from melisma.runs.capacity import TIME_USES
from melisma.runs.folder import PICTURE_FILE, TRACE_FILE
from melisma.runs.totals import LearnerTotals
from melisma.runs.trace import Step
from melisma.runs.usage import UNKNOWN_RATES, UsageRates

if TYPE_CHECKING:
    from melisma.runs.svg import Picture

Ending = Literal["running", "aggregated", "empty", "interrupted"]

# A cycle that its deadline closes ends when the timer fires: later by this part of the deadline at
# most.
TIMER_TOLERANCE = 0.005
# `as_dict` lists learners and assignments up to this many learners times cycles.
MAX_LISTED = 10_000


@dataclass(frozen=True)
class Cycle:
    """One global update cycle; figures of a running or empty cycle are NaN.

    `no_pass` counts learners that the plan gave shards, but that could not train them once by the
    deadline; they have no assignment. `handed_on` counts shards that moved from one learner to
    another. With `extension`, learners train until the deadline. `clipped` and `left_out` name
    the learners whose update changed the model too far: its change was scaled down, or it did not
    count; late updates of earlier cycles are included. A cycle is `rejected` if the loss of its
    model was not finite: the model before it was kept.
    """

    number: int
    began_s: float
    deadline_s: float
    assignments: Assignments = NO_ASSIGNMENTS
    ending: Ending = "running"
    reason: str = ""
    closed_s: float = nan
    tail_s: float = 0.0
    no_pass: int = 0
    handed_on: int = 0
    extension: bool = False
    clipped: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    rejected: bool = False
    aggregate_s: float = nan
    evaluate_s: float = nan
    loss: float = nan
    accuracy: float = nan
    evaluated_s: float = nan
    rates: UsageRates = field(default=UNKNOWN_RATES, repr=False, compare=False)

    @property
    def empty(self) -> bool:
        """Whether no update was aggregated; `reason` says why."""
        return self.ending == "empty"

    @property
    def cycle_s(self) -> float:
        """Seconds from the first dispatch until the cycle closed; NaN without a new model."""
        return _seconds(self.began_s, self.closed_s) if self.ending == "aggregated" else nan

    @property
    def met_deadline(self) -> bool:
        """Whether the cycle closed with a new model by its deadline, within `TIMER_TOLERANCE`."""
        return self.cycle_s <= self.deadline_s * (1.0 + TIMER_TOLERANCE)

    @property
    def truancy(self) -> float:
        """Seconds past the deadline as a fraction of the deadline."""
        return float(metrics.truancy(self.cycle_s, self.deadline_s))

    @property
    def fulfilment(self) -> float:
        """Visits done divided by visits planned."""
        return metrics.fulfilment(*self._visits)

    @property
    def drop_rate(self) -> float:
        """The fraction of planned visits that were not done."""
        return metrics.drop_rate(*self._visits)

    @cached_property
    def occupancy(self) -> float:
        """The fraction of the cycle that learners were busy, on average over known phases."""
        return metrics.mean_known(metrics.occupancy(self.assignments.busy_s, self.cycle_s))

    @property
    def capacity_used(self) -> float:
        """Visits that count divided by the visits that learners had time for, at most 1."""
        return float(capacity.capacity_used(*self._capacity))

    @property
    def time_use_s(self) -> Floats:
        """Seconds of each assignment by `TIME_USES`, from dispatch to closing."""
        if self.ending == "running":
            return np.zeros((len(self.assignments), len(TIME_USES)))
        return capacity.time_use_s(
            self.assignments,
            self.began_s + self.deadline_s,
            self.closed_s,
            extension=self.extension,
        )

    @property
    def time_use(self) -> dict[str, float]:
        """The fraction of the time of all learners, from dispatch to closing, by use."""
        return _shares(self._time_use_s)

    @cached_property
    def max_staleness(self) -> float:
        """Largest difference of passes between two learners given shards, parts included."""
        return metrics.max_staleness(self._updates)

    @cached_property
    def average_staleness(self) -> float:
        """Mean difference of passes over all pairs of learners given shards."""
        return metrics.average_staleness(self._updates)

    @property
    def counts(self) -> dict[Status, int]:
        """The number of assignments by status."""
        counts = np.bincount(self.assignments.status, minlength=len(STATUSES)).tolist()
        return {status: count for status, count in zip(STATUSES, counts, strict=True) if count}

    @cached_property
    def visits_counted(self) -> int:
        """The number of visits that count."""
        return int(self.assignments.counted_visits.sum())

    @cached_property
    def visits_dropped(self) -> int:
        """The number of planned visits that were not done, of ended assignments."""
        work = self.assignments
        left = np.maximum(work.planned_visits - work.counted_visits, 0)
        return int(left[~work.with_status("training")].sum())

    @cached_property
    def bytes(self) -> float:
        """Bytes of models, down and up, and of fetched shards that updates report."""
        return float(self.rates.transferred_bytes(self.assignments).sum())

    @cached_property
    def joules(self) -> float:
        """Energy for training and transfers."""
        return self.rates.joules(self.assignments)

    @cached_property
    def cost(self) -> float:
        """The price of the assigned shards."""
        return self.rates.cost(self.assignments)

    @cached_property
    def _visits(self) -> tuple[int, int]:
        """Visits done, at most those planned, and planned; 0 while the cycle is running."""
        if self.ending == "running":
            return 0, 0
        planned = self.assignments.planned_visits
        return int(np.minimum(self.assignments.counted_visits, planned).sum()), int(planned.sum())

    @cached_property
    def _capacity(self) -> Floats:
        """Used and allowed visits; 0 while the cycle is running."""
        if self.ending == "running":
            return np.zeros(2)
        total: Floats = capacity.visits_of_capacity(self.assignments).sum(axis=1)
        return total

    @cached_property
    def _time_use_s(self) -> Floats:
        total: Floats = self.time_use_s.sum(axis=0)
        return total

    @property
    def _updates(self) -> Floats:
        """Passes of each learner given shards: 0 for lost work, NaN while it is under way."""
        work = self.assignments
        passes: Floats = work.counted_visits / np.maximum(work.samples, 1)
        passes[work.with_status("training")] = nan
        return np.concatenate([passes, np.zeros(self.no_pass)])


@dataclass(frozen=True)
class Report:
    """A run: its outcome, its cycles and the totals of its learners."""

    run: str
    task: Task
    names: tuple[str, ...] = field(repr=False)
    began_s: float
    ended_s: float
    cycles: tuple[Cycle, ...] = ()
    outcome: commands.Outcome | Literal["running"] = "running"
    reason: str = ""
    departures: tuple[str, ...] = field(default=(), repr=False)
    model: Path | None = None
    folder: Path | None = None
    trace: tuple[Step, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def from_trace(cls, steps: Iterable[Step]) -> "Report":
        """Return the report of a trace, complete or not; `DataError` if it has no task."""
        from melisma.runs.progress import RunProgress

        progress, trace = RunProgress(), tuple(steps)
        for step in trace:
            progress.apply(step)
        return replace(progress.report(), trace=trace)

    @property
    def ended_cycles(self) -> tuple[Cycle, ...]:
        """The cycles that ended, aggregated or empty."""
        return tuple(cycle for cycle in self.cycles if cycle.ending in ("aggregated", "empty"))

    @property
    def deadline_summary(self) -> str:
        """A sentence: how many cycles met the deadline, and how long the longest took."""
        deadline_s = self.task.deadline_s
        if not self.ended_cycles:
            return f"no cycle ended; the deadline was {deadline_s:g} s"
        met = sum(cycle.met_deadline for cycle in self.ended_cycles)
        cycles = _count(self.ended_cycles, "cycle")
        summary = f"the deadline of {deadline_s:g} s held in {met} of {cycles}"
        waited = [cycle.cycle_s for cycle in self.ended_cycles if not cycle.empty]
        if not waited:
            return summary
        late_s = max(waited) - deadline_s
        late = f" (within {TIMER_TOLERANCE:.1%})" if late_s > 0 else ""
        if late_s > TIMER_TOLERANCE * deadline_s:
            late = f", {late_s:.2g} s too long"
        return f"{summary}; the longest took {max(waited):.4g} s{late}"

    @property
    def satisfaction(self) -> float:
        """The fraction of cycles that met the deadline."""
        ended = self.ended_cycles
        return sum(cycle.met_deadline for cycle in ended) / len(ended) if ended else nan

    @property
    def mean_truancy(self) -> float:
        """The mean truancy of cycles with aggregated updates."""
        return metrics.mean_truancy(*self._of_cycles("cycle_s"))

    @property
    def fulfilment(self) -> float:
        """Visits done divided by visits planned, over all ended cycles."""
        visits = np.array([cycle._visits for cycle in self.ended_cycles]).reshape(-1, 2)
        return metrics.fulfilment(visits[:, 0], visits[:, 1])

    @property
    def capacity_used(self) -> float:
        """Visits that count divided by the visits that learners had time for, over ended cycles."""
        pairs = np.array([cycle._capacity for cycle in self.ended_cycles]).reshape(-1, 2)
        return float(capacity.capacity_used(*pairs.sum(axis=0)))

    @property
    def time_use(self) -> dict[str, float]:
        """The fraction of the time of all learners in ended cycles, by use."""
        seconds = [cycle._time_use_s for cycle in self.ended_cycles]
        return _shares(np.array(seconds).reshape(-1, len(TIME_USES)).sum(axis=0))

    @property
    def outside_s(self) -> float:
        """Seconds of the run outside its cycles: before the first, between them, at the end."""
        ends_s = [self.ended_s if isnan(each.closed_s) else each.closed_s for each in self.cycles]
        inside_s = sum(end_s - c.began_s for end_s, c in zip(ends_s, self.cycles, strict=True))
        return max(0.0, _seconds(self.began_s + inside_s, self.ended_s))

    @property
    def outside_share(self) -> float:
        """Seconds outside cycles as a fraction of the run."""
        run_s = self.ended_s - self.began_s
        return self.outside_s / run_s if run_s > 0 else nan

    @property
    def deadline_misses(self) -> int:
        """The number of ended cycles that did not meet the deadline."""
        return sum(not cycle.met_deadline for cycle in self.ended_cycles)

    @property
    def max_staleness(self) -> float:
        """The largest staleness of an ended cycle."""
        return max((cycle.max_staleness for cycle in self.ended_cycles), default=nan)

    @property
    def average_staleness(self) -> float:
        """The mean staleness of ended cycles that are not empty."""
        return metrics.mean_known(
            [cycle.average_staleness for cycle in self.ended_cycles if not cycle.empty]
        )

    @property
    def visits_counted(self) -> int:
        """The number of visits that count."""
        return sum(cycle.visits_counted for cycle in self.cycles)

    @property
    def visits_dropped(self) -> int:
        """The number of planned visits that were not done, interrupted cycles included."""
        return sum(cycle.visits_dropped for cycle in self.cycles)

    @property
    def bytes(self) -> float:
        """The bytes of all cycles."""
        return sum(cycle.bytes for cycle in self.cycles)

    @property
    def joules(self) -> float:
        """The joules of all cycles."""
        return sum(cycle.joules for cycle in self.cycles)

    @property
    def cost(self) -> float:
        """The cost of all cycles."""
        return sum(cycle.cost for cycle in self.cycles)

    @property
    def clipped(self) -> dict[str, int]:
        """The number of updates by learner whose change was scaled down."""
        return dict(Counter(name for cycle in self.cycles for name in cycle.clipped))

    @property
    def left_out(self) -> dict[str, int]:
        """The number of updates by learner that did not count because of the guard."""
        return dict(Counter(name for cycle in self.cycles for name in cycle.left_out))

    @property
    def training_s(self) -> float:
        """The sum of all cycle times in seconds."""
        return metrics.training_s(self._of_cycles("cycle_s")[0])

    @property
    def accuracy(self) -> float:
        """The accuracy after the last evaluated cycle whose model was kept."""
        return self._last("accuracy")

    @property
    def loss(self) -> float:
        """The loss after the last evaluated cycle whose model was kept."""
        return self._last("loss")

    @cached_property
    def learners(self) -> LearnerTotals:
        """The totals of all learners, by number; a learner that never joined has no name."""
        return LearnerTotals.from_cycles(self.names, self.cycles)

    def seconds_to(self, accuracy: float) -> float:
        """Return the seconds until a model reached an accuracy, NaN if none did."""
        reached = [cycle.evaluated_s for cycle in self.cycles if cycle.accuracy >= accuracy]
        return _seconds(self.began_s, reached[0]) if reached else nan

    @property
    def trace_path(self) -> Path | None:
        """The path of the trace."""
        return self.folder / TRACE_FILE if self.folder else None

    @property
    def picture_path(self) -> Path | None:
        """The path of the picture, or None if there is no such file."""
        path = self.folder / PICTURE_FILE if self.folder else None
        return path if path is not None and path.is_file() else None

    def plot(self) -> "Picture":
        """Draw the run."""
        from melisma.runs.run_picture import draw_run

        return draw_run(self)

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the trace as JSON values; unknown numbers are None.

        Lists by learner are None if learners times cycles exceed `MAX_LISTED`.
        """
        many = len(self.names) * len(self.cycles) > MAX_LISTED
        report: dict[str, Any] = _to_json(self, PER_LEARNER_FIELDS if many else ())
        return {
            **report,
            "learner_count": len(self.names),
            "task": msgspec.to_builtins(self.task),
            "phases": list(events.PHASES),
            "time_uses": list(TIME_USES),
        }

    def _of_cycles(self, name: str) -> tuple[list[float], list[float]]:
        return [getattr(cycle, name) for cycle in self.ended_cycles], [
            cycle.deadline_s for cycle in self.ended_cycles
        ]

    def _last(self, name: str) -> float:
        kept = (cycle for cycle in self.cycles if not cycle.rejected)
        evaluated = [cycle for cycle in kept if not isnan(cycle.evaluate_s)]
        return float(getattr(evaluated[-1], name)) if evaluated else nan


def _count(things: Sized, noun: str) -> str:
    return f"{len(things)} {noun}" + "s" * (len(things) != 1)


def _shares(seconds: Floats) -> dict[str, float]:
    """Return seconds by use as fractions of their sum, NaN if it is 0."""
    total_s = float(seconds.sum())
    shares = (seconds / total_s).tolist() if total_s > 0 else [nan] * len(TIME_USES)
    return dict(zip(TIME_USES, shares, strict=True))


def _seconds(start_s: float, end_s: float) -> float:
    """Return a difference of instants without rounding errors below a nanosecond."""
    return round(end_s - start_s, 9)


# Properties that `as_dict` adds to the fields of each record.
FIGURES: dict[type, tuple[str, ...]] = {
    Assignment: ("planned_visits", "counted_visits", "capacity_used"),
    Cycle: (
        *("cycle_s", "met_deadline", "truancy", "fulfilment", "drop_rate", "occupancy"),
        *("capacity_used", "time_use", "time_use_s"),
        *("max_staleness", "average_staleness", "visits_counted", "visits_dropped"),
        *("bytes", "joules", "cost", "counts"),
    ),
    Report: (
        *("satisfaction", "deadline_misses", "mean_truancy", "fulfilment", "training_s"),
        *("capacity_used", "time_use", "outside_s", "outside_share"),
        *("max_staleness", "average_staleness", "visits_counted", "visits_dropped"),
        *("bytes", "joules", "cost", "accuracy", "loss", "learners", "clipped", "left_out"),
    ),
}
PER_LEARNER_FIELDS = ("names", "departures", "assignments", "learners", "time_use_s")
HIDDEN_FIELDS = ("trace", "rates")


def _to_json(value: Any, left_out: tuple[str, ...]) -> Any:
    """Convert a record with its figures to JSON values."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {name: _to_json(item, left_out) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        value = tuple(value.tolist())
    if isinstance(value, tuple | list | Assignments | LearnerTotals):
        return [_to_json(item, left_out) for item in value]
    if isinstance(value, Path):
        return str(value)
    if not is_dataclass(value):
        return value
    names = [field.name for field in fields(value) if field.name not in HIDDEN_FIELDS]
    return {
        name: None if name in left_out else _to_json(getattr(value, name), left_out)
        for name in (*names, *FIGURES.get(type(value), ()))
    }
