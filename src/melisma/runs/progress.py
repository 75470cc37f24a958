"""The progress of a run, folded from the steps of its trace.

The only code that interprets steps: it serves the report of a finished run and the display of a
running one, with three learners or a million. It repeats no decision of the machine: an
update counts if the commands count it. Steps are not kept.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any, Literal

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.local_shards import ShardSizes
from melisma.errors import DataError
from melisma.fleet.array_types import Ints
from melisma.fleet.task import Task
from melisma.runs.assignments import NO_ASSIGNMENTS, STATUSES, Assignments, Names, Status
from melisma.runs.learner_set import LearnerSet
from melisma.runs.report import Cycle, Report
from melisma.runs.trace import Step
from melisma.runs.usage import UNKNOWN_RATES, UsageRates

WithAttempts = events.UpdatesReceived | commands.Dispatch | commands.Withdraw | commands.Aggregate

# An update of an assignment with one of these statuses is a duplicate.
COUNTED_OR_REFUSED = (STATUSES.index("counted"), STATUSES.index("refused"))


class RunProgress:
    """The facts about a run so far; call `apply` with each step."""

    def __init__(self) -> None:
        self.now_s = -inf
        self.outcome: commands.Outcome | Literal["running"] = "running"
        self.reason = ""
        self.names = np.empty(0, np.object_)
        self.joined, self.left, self.collecting = LearnerSet(), LearnerSet(), LearnerSet()
        self.collecting_cycle = 0  # the cycle for which bounds were last requested
        self.evaluated_number = 0  # the cycle that was evaluated last
        self._submitted: events.TaskSubmitted | None = None
        self._rates = UNKNOWN_RATES
        self._shard_sizes = ShardSizes(np.empty(0, np.int64))
        self._reasons, self._reason_codes = [""], {"": 0}
        self._departures = np.empty(0, np.int32)
        self._cycles: dict[int, Cycle] = {}
        self._work: dict[int, Assignments] = {}
        self._aggregate: commands.Aggregate | None = None

    @property
    def submission(self) -> events.TaskSubmitted:
        """The first event; `DataError` if there was none."""
        if self._submitted is None:
            raise DataError("the trace does not begin with TaskSubmitted")
        return self._submitted

    @property
    def task(self) -> Task:
        """The task of the run."""
        return self.submission.task

    @property
    def current_cycle(self) -> Cycle | None:
        """The cycle that began last."""
        return self._snapshot(max(self._cycles), self.names) if self._cycles else None

    @property
    def evaluated_cycle(self) -> Cycle | None:
        """The cycle that was evaluated last."""
        number = self.evaluated_number
        return self._snapshot(number, self.names) if number else None

    def report(self) -> Report:
        """Return the report so far, without the trace."""
        names = tuple(self.names.tolist())
        departures = np.array(self._reasons, np.object_)[self._departures[self.left.numbers]]
        return Report(
            run=self.submission.run,
            task=self.task,
            names=names,
            departures=tuple(departures.tolist()),
            began_s=self.submission.at_s,
            ended_s=self.now_s,
            cycles=tuple(self._snapshot(number, names) for number in sorted(self._cycles)),
            outcome=self.outcome,
            reason=self.reason,
        )

    def apply(self, step: Step) -> None:
        """Add one step; steps after the end of the run are ignored."""
        if self.outcome != "running":
            return
        # The event of an update has the instant of its arrival, which may lie before this step.
        self.now_s = max(self.now_s, float(step.event.at_s))
        for item in (step.event, *step.commands):
            HANDLERS.get(type(item), _ignore)(self, item)

    def on_submitted(self, event: events.TaskSubmitted) -> None:
        """Keep the task, its sizes and rates."""
        self._submitted = event
        self._rates = UsageRates.from_submission(event)
        self._shard_sizes = ShardSizes(event.shard_samples)
        self._make_room(len(event.names) or event.learner_count)
        self.names[: len(event.names)] = event.names

    def _make_room(self, count: int) -> None:
        missing = count - self.names.size
        if missing <= 0:
            return
        self.names = np.concatenate([self.names, np.full(missing, "", np.object_)])
        self._departures = np.pad(self._departures, (0, missing))

    def on_joined(self, event: events.LearnersJoined) -> None:
        """Add learners."""
        self._make_room(int(event.learners.max(initial=-1)) + 1)
        self.names[event.learners] = event.names
        self.joined.add(event.learners)
        self.left.discard(event.learners)
        if len(event.local_shards):
            self._shard_sizes.add(event.learners, event.local_shards)

    def on_left(self, event: events.LearnersLeft) -> None:
        """End the work of learners that left."""
        self._make_room(int(event.learners.max(initial=-1)) + 1)
        self.left.add(event.learners)
        self._departures[event.learners] = self._reason_code(event.reason)
        self.collecting.discard(event.learners)
        for number, work in self._work.items():
            if work.with_status("training").any():
                self._end_work(number, work.rows_of(event.learners), "left", event.reason)

    def on_reported(self, event: events.EstimatesReported | events.BoundsReported) -> None:
        """Stop waiting for learners that reported."""
        self.collecting.discard(event.learners)

    def on_progress(self, event: events.ProgressReported) -> None:
        """Store visits of open assignments."""
        work = self._work.get(event.cycle, NO_ASSIGNMENTS)
        rows = work.latest_rows(event.learners)
        known = np.flatnonzero(rows >= 0)
        known = known[work.with_status("training")[rows[known]]]
        self._update_work(event.cycle, rows[known], visits=event.visits[known])

    def on_updates(self, event: events.UpdatesReceived) -> None:
        """Store updates, each once, and end their assignments."""
        rows, indices = self._find_rows(event)
        duplicate = np.isin(
            self._work.get(event.cycle, NO_ASSIGNMENTS).status[rows], COUNTED_OR_REFUSED
        )
        rows, new = rows[~duplicate], _slice_if_all(indices[~duplicate], event.learners.size)
        self._update_work(
            event.cycle,
            rows,
            visits=event.visits[new],
            shipped=event.shipped[new],
            loss=event.loss[new],
            phases=event.phases[new],
            arrived_s=event.arrival_times_s[new],
        )
        ended_s = event.arrivals_s[new] if event.arrivals_s.size else self.now_s
        self._end_work(
            event.cycle, rows, "refused" if event.refused else "counted", event.refused, ended_s
        )

    def on_aggregated(self, event: events.Aggregated) -> None:
        """Store the seconds of aggregation and the training losses."""
        self._update_cycle(event.cycle, aggregate_s=event.seconds)
        command, self._aggregate = self._aggregate, None
        if event.loss.size and command is not None and command.cycle == event.cycle:
            rows, indices = self._find_rows(command)
            self._update_work(event.cycle, rows, loss=event.loss[indices])

    def on_evaluated(self, event: events.Evaluated) -> None:
        """Store the score of a cycle."""
        self.evaluated_number = max(self.evaluated_number, event.cycle)
        score = {"loss": _nan_if_none(event.loss), "accuracy": _nan_if_none(event.accuracy)}
        self._update_cycle(
            event.cycle, evaluate_s=event.seconds, evaluated_s=float(event.at_s), **score
        )

    def on_collect(self, command: commands.Benchmark | commands.AskBound) -> None:
        """Wait for the reports of learners."""
        self.collecting.add(command.learners)
        self.collecting_cycle = command.cycle if isinstance(command, commands.AskBound) else 0

    def on_dispatch(self, command: commands.Dispatch) -> None:
        """Open a cycle and its assignments."""
        self._open_cycle(command.cycle, command.seconds_left)
        self._update_cycle(command.cycle, tail_s=command.tail_s, no_pass=command.no_pass.size)
        self.collecting.clear()
        samples = self._shard_sizes.samples_in(command.learners, command.shards)
        new = Assignments.from_dispatch(command, samples, self.now_s, self.names, self._reasons)
        before = self._work[command.cycle]
        self._work[command.cycle] = before.merge(new) if len(before) else new

    def on_withdraw(self, command: commands.Withdraw) -> None:
        """End withdrawn assignments."""
        late = self.now_s >= self._deadline_s(command.cycle)
        rows, _ = self._find_rows(command)
        self._end_work(command.cycle, rows, "late" if late else "dropped", command.reason)

    def on_aggregate(self, command: commands.Aggregate) -> None:
        """Close a cycle."""
        self._open_cycle(command.cycle, self.task.deadline_s)
        self.collecting.clear()
        self._aggregate = command
        rows, indices = self._find_rows(command)
        self._update_work(command.cycle, rows, weight=command.weights[indices])
        ending = "aggregated" if command.learners.size else "empty"
        reason = command.reason.removeprefix("empty: ")
        self._update_cycle(command.cycle, ending=ending, reason=reason, closed_s=self.now_s)

    def on_finish(self, command: commands.Finish) -> None:
        """End the run and all open cycles."""
        self.outcome, self.reason = command.outcome, command.reason
        self.collecting.clear()
        if command.outcome == "failed" and self.collecting_cycle > max(
            self._cycles, default=self.collecting_cycle
        ):
            self._open_cycle(self.collecting_cycle, self.task.deadline_s)
        unfinished = self._aggregate
        if unfinished is not None and unfinished.learners.size:
            self._interrupt_cycle(unfinished.cycle, command)
        for number, cycle in self._cycles.items():
            if cycle.ending == "running":
                self._interrupt_cycle(number, command)

    def _interrupt_cycle(self, number: int, command: commands.Finish) -> None:
        """End a cycle with the run: its updates are in no model."""
        received = np.flatnonzero(self._work[number].counted_visits)
        dropped = {"status": STATUSES.index("dropped"), "reason": self._reason_code(command.reason)}
        self._update_work(number, received, weight=0.0, **dropped)
        ending = "empty" if command.outcome == "failed" and not received.size else "interrupted"
        self._update_cycle(number, ending=ending, reason=command.reason, closed_s=self.now_s)

    def _open_cycle(self, number: int, deadline_s: float) -> None:
        if number not in self._cycles:
            self._cycles[number] = Cycle(number, self.now_s, deadline_s, rates=self._rates)
            self._work[number] = NO_ASSIGNMENTS

    def _update_cycle(self, number: int, **values: Any) -> None:
        self._cycles[number] = replace(self._cycles[number], **values)

    def _update_work(self, number: int, rows: Ints, **values: Any) -> None:
        if rows.size:
            self._work[number] = self._work[number].update(rows, **values)

    def _end_work(
        self, number: int, rows: Ints, status: Status, reason: str, at_s: Any = None
    ) -> None:
        """End open assignments, now unless an instant is given."""
        if rows.size:
            code, ended_s = self._reason_code(reason), self.now_s if at_s is None else at_s
            self._work[number] = self._work[number].end(rows, status, code, ended_s)

    def _find_rows(self, message: WithAttempts) -> tuple[Ints, Ints]:
        """Return the rows of the known assignments in a message, and their indices there."""
        rows = self._work.get(message.cycle, NO_ASSIGNMENTS).find(
            message.learners, message.attempts
        )
        indices = np.flatnonzero(rows >= 0)
        return rows[indices], indices

    def _reason_code(self, reason: str) -> int:
        """Return the index of a reason, adding a new one."""
        code = self._reason_codes.setdefault(reason, len(self._reasons))
        if code == len(self._reasons):
            self._reasons.append(reason)
        return code

    def _deadline_s(self, number: int) -> float:
        cycle = self._cycles.get(number)
        return cycle.began_s + cycle.deadline_s if cycle else nan

    def _snapshot(self, number: int, names: Names) -> Cycle:
        """Return a cycle with its assignments, which later steps do not change."""
        work = replace(self._work[number].freeze(), names=names)
        return replace(self._cycles[number], assignments=work)


def _slice_if_all(indices: Ints, count: int) -> Any:
    """Return the indices, or a slice where they are all, which needs no copy."""
    return slice(None) if indices.size == count else indices


def _nan_if_none(value: float | None) -> float:
    return nan if value is None else value


def _ignore(progress: RunProgress, step: Any) -> None:
    """Ignore events and commands that change nothing here."""


HANDLERS: dict[type, Callable[[RunProgress, Any], None]] = {
    events.TaskSubmitted: RunProgress.on_submitted,
    events.LearnersJoined: RunProgress.on_joined,
    events.LearnersLeft: RunProgress.on_left,
    events.EstimatesReported: RunProgress.on_reported,
    events.BoundsReported: RunProgress.on_reported,
    events.ProgressReported: RunProgress.on_progress,
    events.UpdatesReceived: RunProgress.on_updates,
    events.Aggregated: RunProgress.on_aggregated,
    events.Evaluated: RunProgress.on_evaluated,
    commands.Benchmark: RunProgress.on_collect,
    commands.AskBound: RunProgress.on_collect,
    commands.Dispatch: RunProgress.on_dispatch,
    commands.Withdraw: RunProgress.on_withdraw,
    commands.Aggregate: RunProgress.on_aggregate,
    commands.Finish: RunProgress.on_finish,
}
