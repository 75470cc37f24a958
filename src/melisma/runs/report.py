"""The figures of a run; those of its cycles are in `cycle_figures`."""

from collections import Counter
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from melisma.cycle import commands
from melisma.errors import RunFailedError
from melisma.fleet.task import Task
from melisma.learning import metrics
from melisma.runs import capacity
from melisma.runs.capacity import TIME_USES
from melisma.runs.cycle_figures import (
    TIMER_TOLERANCE,
    Cycle,
    capacity_lost,
    seconds_between,
    used_and_allowed_visits,
)
from melisma.runs.folder import BEST_MODEL_FILE, PICTURE_FILE, TRACE_FILE
from melisma.runs.idleness import IdleGroup, find_idle
from melisma.runs.totals import LearnerTotals
from melisma.runs.trace import Step
from melisma.text import visible

if TYPE_CHECKING:
    from melisma.runs.svg import Picture


@dataclass(frozen=True)
class Report:
    """A run: its outcome, its cycles and the totals of its learners.

    `due_s` is the instant by which a run with a total time ends. The orchestrator restarted
    `restarts` times, after `downtime_s` seconds in all, which are part of the run. `departed` are
    the names of learners that left and are not back, and `departures` why; `shared_identities`
    whose identity was in use twice.
    """

    run: str
    task: Task = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    began_s: float
    ended_s: float
    due_s: float | None = None
    restarts: int = 0
    downtime_s: float = 0.0
    cycles: tuple[Cycle, ...] = field(default=(), repr=False)
    outcome: commands.Outcome | Literal["running"] = "running"
    reason: str = ""
    departed: tuple[str, ...] = field(default=(), repr=False)
    departures: tuple[str, ...] = field(default=(), repr=False)
    shared_identities: tuple[str, ...] = field(default=(), repr=False)
    model: Path | None = None
    folder: Path | None = None
    trace: tuple[Step, ...] = field(default=(), repr=False, compare=False)

    def __str__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        accuracy = "" if isnan(self.accuracy) else f"accuracy {self.accuracy:.1%}"
        loss = "" if isnan(self.loss) else f"loss {self.loss:.4g}"
        lines = [
            f"{self.task.name}: {self.outcome} after {_count(self.cycles, 'cycle')}{reason}",
            ", ".join(filter(None, (accuracy, loss))),
            self.deadline_summary,
            self.restart_summary,
            *(f"copied identity: {visible(each)}" for each in self.shared_identities),
            f"model: {self.model}" if self.model else "",
        ]
        return "\n".join(filter(None, lines))

    @classmethod
    def from_trace(cls, steps: Iterable[Step]) -> "Report":
        """Return the report of a trace, complete or not; `DataError` if it has no task."""
        from melisma.runs.progress import RunProgress

        progress, trace = RunProgress(), tuple(steps)
        for step in trace:
            progress.apply(step)
        return replace(progress.report(), trace=trace)

    def require_success(self, failure: Exception | None = None) -> "Report":
        """Return this report; raise `RunFailedError` with it if the run failed.

        `failure` is an error of the user's code that ended the run.
        """
        if self.outcome != "failed" and failure is None:
            return self
        reason = self.reason if failure is None else str(failure)
        saved = "" if self.folder is None else f"; its results so far are in {self.folder}"
        message = f"the run of task {self.task.name} failed: {reason}{saved}"
        raise RunFailedError(message, self) from failure

    @property
    def ended_cycles(self) -> tuple[Cycle, ...]:
        """The cycles that ended, aggregated or empty."""
        return tuple(cycle for cycle in self.cycles if cycle.ending in ("aggregated", "empty"))

    @property
    def deadline_summary(self) -> str:
        """A sentence: how many cycles met the deadline, and how long the longest took."""
        if not self.ended_cycles:
            return f"no cycle ended; the deadline was {self.task.deadline_s:g} s"
        met = sum(cycle.met_deadline for cycle in self.ended_cycles)
        cycles = _count(self.ended_cycles, "cycle")
        lengths = sorted({f"{cycle.deadline_s:.3g}" for cycle in self.ended_cycles}, key=float)
        length = lengths[0] if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        summary = f"the deadline of {length} s held in {met} of {cycles}"
        if self.due_s is not None:
            early_s = self.due_s - self.ended_s
            side = "before" if early_s >= 0 else "after"
            summary = f"ended {abs(early_s):.2g} s {side} its time was up; {summary}"
        if empty := sum(cycle.empty for cycle in self.ended_cycles):
            summary += f", {empty} ended without an update"
        waited = [cycle.cycle_s for cycle in self.ended_cycles if not cycle.empty]
        if not waited:
            return summary
        latest = max(self.ended_cycles, key=lambda cycle: cycle.truancy)
        late_s = latest.cycle_s - latest.deadline_s
        if late_s > 0 and len(lengths) > 1:
            return (
                f"{summary}; the latest took {latest.cycle_s:.4g} s, {late_s:.2g} s more than its "
                f"deadline of {latest.deadline_s:.4g} s"
            )
        late = f" (within {TIMER_TOLERANCE:.1%})" if late_s > 0 else ""
        if not latest.met_deadline:
            late = f", {late_s:.2g} s too long"
        return f"{summary}; the longest took {max(waited):.4g} s{late}"

    @property
    def restart_summary(self) -> str:
        """A sentence: how often the orchestrator restarted; empty if it did not."""
        if not self.restarts:
            return ""
        times = "once" if self.restarts == 1 else f"{self.restarts} times"
        # The clock of an emulated run stands still while it is down.
        if not self.downtime_s:
            return f"the orchestrator restarted {times}; the clock of the run stood still meanwhile"
        return f"the orchestrator restarted {times}; it was down for {self.downtime_s:.3g} s in all"

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
        pairs = [cycle.done_and_planned_visits for cycle in self.ended_cycles]
        visits = np.array(pairs).reshape(-1, 2)
        return metrics.fulfilment(visits[:, 0], visits[:, 1])

    @property
    def capacity_used(self) -> float:
        """Visits that count divided by the visits that learners had time for, over ended cycles."""
        return float(capacity.fraction(*used_and_allowed_visits(self.ended_cycles)))

    @property
    def capacity_lost(self) -> dict[str, float]:
        """The other visits that learners had time for, as fractions of them, by `LOSSES`."""
        return capacity_lost(self.ended_cycles)

    @property
    def time_use(self) -> dict[str, float]:
        """The fraction of the time of all learners in ended cycles, by use."""
        seconds = [cycle.total_use_s for cycle in self.ended_cycles]
        return capacity.shares_by_use(np.array(seconds).reshape(-1, len(TIME_USES)).sum(axis=0))

    @property
    def outside_s(self) -> float:
        """Seconds of the run outside its cycles: before the first, between them, at the end."""
        ends_s = [self.ended_s if isnan(each.closed_s) else each.closed_s for each in self.cycles]
        inside_s = sum(end_s - c.began_s for end_s, c in zip(ends_s, self.cycles, strict=True))
        return max(0.0, seconds_between(self.began_s + inside_s, self.ended_s))

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
    def has_prices(self) -> bool:
        """Whether the fleet sets prices; otherwise `cost` is the number of assigned shards."""
        return any(cycle.rates.has_prices for cycle in self.cycles[:1])

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
    def failed_checks(self) -> dict[str, int]:
        """The number of updates by learner that did not count because their check failed."""
        return dict(Counter(name for cycle in self.cycles for name in cycle.failed_checks))

    @property
    def suspected(self) -> dict[str, int]:
        """How often each learner failed the first filter."""
        return dict(Counter(name for cycle in self.cycles for name in cycle.suspected))

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
        """The totals of all learners, by number, of those that never joined, too."""
        return LearnerTotals.from_cycles(self.names, self.cycles)

    @cached_property
    def idle(self) -> tuple[IdleGroup, ...]:
        """The learners that idled, by cause, and what to change."""
        return find_idle(self)

    def seconds_to(self, accuracy: float) -> float:
        """Return the seconds until a model reached an accuracy, NaN if none did."""
        reached = [cycle.evaluated_s for cycle in self.cycles if cycle.accuracy >= accuracy]
        return seconds_between(self.began_s, reached[0]) if reached else nan

    @property
    def trace_path(self) -> Path | None:
        """The path of the trace."""
        return self.folder / TRACE_FILE if self.folder else None

    @property
    def picture_path(self) -> Path | None:
        """The path of the picture, or None if there is no such file."""
        path = self.folder / PICTURE_FILE if self.folder else None
        return path if path is not None and path.is_file() else None

    @property
    def best_model(self) -> Path | None:
        """The file of the best model, or None if the task did not ask for it."""
        path = self.folder / BEST_MODEL_FILE if self.folder else None
        return path if path is not None and path.is_file() else None

    def plot(self) -> "Picture":
        """Draw the run."""
        from melisma.runs.run_picture import draw_run

        return draw_run(self)

    def to_pandas(self, table: Literal["cycles", "learners"] = "cycles") -> Any:
        """Return a `pandas.DataFrame` with a row for each cycle, or for each learner."""
        from melisma.runs.report_tables import to_frame

        return to_frame(self, table)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: outcome, cycles, learners and picture."""
        from melisma.runs.report_tables import report_html

        return report_html(self)

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the trace as JSON values; unknown numbers are None.

        Lists by learner are None if there are more than `report_json.MAX_LISTED` learners, and
        those of each cycle if learners times cycles exceed it.
        """
        from melisma.runs.report_json import report_to_json

        return report_to_json(self)

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
