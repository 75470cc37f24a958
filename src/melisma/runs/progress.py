"""The progress of a run, folded from the steps of its trace.

The only code that interprets steps: it serves the report of a finished run and the display of a
running one, with three learners or a million. It repeats no decision of the machine: an
update counts if the commands count it. Requests for shards and prefetching change nothing here: the
answer to a request is an `Extend`, and updates report the shards that were fetched. Nor does work
that is sent again after a restart, which is known already. A trace may have no reports of progress.
Steps are not kept.
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any, Final, Literal

import msgspec
import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.local_shards import ShardSizes
from melisma.errors import DataError
from melisma.fleet.array_types import NO_INTS, Bools, Ints
from melisma.fleet.task import Task
from melisma.learning.verification.reexecution import Verdict
from melisma.runs.assignments import COUNTED, STATUSES, Assignments, Names, Status
from melisma.runs.capacity import MeasuredRates
from melisma.runs.cycle_figures import Cycle
from melisma.runs.learner_set import LearnerSet
from melisma.runs.planned_work import PlannedWork
from melisma.runs.report import Report
from melisma.runs.trace import Step
from melisma.runs.unassigned import Unassigned
from melisma.runs.usage import UNKNOWN_RATES, UsageRates

FAILED_CHECK: Final = "left out: failed its audit"
GIVEN_UP: Final = "the cycle was given up: the run went on from another model"


class RunProgress:
    """The facts about a run so far; call `apply` with each step."""

    def __init__(self) -> None:
        self.now_s = -inf
        self.outcome: commands.Outcome | Literal["running"] = "running"
        self.reason = ""
        self.names = np.empty(0, np.object_)
        self.joined, self.left, self.collecting = LearnerSet(), LearnerSet(), LearnerSet()
        self._reported = LearnerSet()  # costs since they joined, or a bound for this cycle
        self.collecting_cycle = 0  # the cycle for which bounds were last requested
        self.evaluated_number = 0  # the cycle that was evaluated last
        self._submitted: events.TaskSubmitted | None = None
        self._length_s = nan  # of the latest cycle
        self._rates = UNKNOWN_RATES
        self._work = PlannedWork(ShardSizes(np.empty(0, np.int64)), extension=False)
        self._reasons, self._reason_codes = [""], {"": 0}
        self._departures = np.empty(0, np.int32)
        self._shared_identities: list[str] = []
        self._cycles: dict[int, Cycle] = {}
        self._measured = MeasuredRates()
        self._drawn = 0, NO_INTS  # the latest cycle with a sample, and its learners
        self._restarts, self._downtime_s = 0, 0.0  # of the orchestrator
        self._aggregate: commands.Aggregate | None = None
        self._averaged: commands.Aggregate | None = None  # the latest that was carried out

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
            departed=tuple(self.names[self.left.numbers].tolist()),
            departures=tuple(departures.tolist()),
            shared_identities=tuple(self._shared_identities),
            began_s=self.submission.at_s,
            ended_s=self.now_s,
            due_s=self.submission.ends_s,
            restarts=self._restarts,
            downtime_s=self._downtime_s,
            cycles=tuple(self._snapshot(number, names) for number in sorted(self._cycles)),
            outcome=self.outcome,
            reason=self.reason,
        )

    def apply(self, step: Step) -> None:
        """Add one step; steps after the end of the run are ignored, unless the run goes on."""
        if self.outcome != "running" and not isinstance(step.event, events.TaskContinued):
            return
        # The event of an update has the instant of its arrival, which may lie before this step.
        self.now_s = max(self.now_s, float(step.event.at_s))
        for item in (step.event, *step.commands):
            HANDLERS.get(type(item), _ignore)(self, item)

    def on_submitted(self, event: events.TaskSubmitted) -> None:
        """Keep the task, its sizes and rates."""
        self._submitted, self._length_s = event, event.task.deadline_s
        self._rates = UsageRates.from_submission(event)
        self._work = PlannedWork(ShardSizes(event.shard_samples), extension=event.task.extension)
        self._make_room(len(event.names) or event.learner_count)
        self.names[: len(event.names)] = event.names

    def _make_room(self, count: int) -> None:
        missing = count - self.names.size
        if missing <= 0:
            return
        self.names = np.concatenate([self.names, np.full(missing, "", np.object_)])
        self._departures = np.pad(self._departures, (0, missing))
        self._measured.make_room(count)

    def on_restarted(self, event: events.OrchestratorRestarted) -> None:
        """Count a restart of the orchestrator."""
        self._restarts += 1
        self._downtime_s += event.downtime_s

    def on_continued(self, event: events.TaskContinued) -> None:
        """Go on after the end of the run, with learners that join again.

        A run that had not ended goes on from another model: its open cycle is given up.
        """
        if self.outcome == "running":
            self._interrupt_cycles(GIVEN_UP)
        task = msgspec.structs.replace(self.task, cycles=event.cycles, stop=event.stop)
        ends_s = self.submission.ends_s if event.ends_s is None else event.ends_s
        self._submitted = msgspec.structs.replace(self.submission, task=task, ends_s=ends_s)
        self.outcome, self.reason, self._aggregate = "running", "", None

    def on_registered(self, event: events.LearnersRegistered) -> None:
        """Store the names of learners that may join."""
        self._make_room(int(event.learners.max(initial=-1)) + 1)
        self.names[event.learners] = event.names

    def on_joined(self, event: events.LearnersJoined) -> None:
        """Add learners."""
        self._make_room(int(event.learners.max(initial=-1)) + 1)
        self.names[event.learners] = event.names
        self.joined.add(event.learners)
        self.left.discard(event.learners)
        self._reported.discard(event.learners)
        if len(event.local_shard_samples):
            self._work.sizes.add(event.learners, event.local_shard_samples)

    def on_left(self, event: events.LearnersLeft) -> None:
        """End the work of learners that left."""
        self._make_room(int(event.learners.max(initial=-1)) + 1)
        self.left.add(event.learners)
        self._departures[event.learners] = self._reason_code(event.reason)
        self.collecting.discard(event.learners)
        for number, work in list(self._work.items()):
            if work.with_status("training").any():
                self._end_work(number, work.rows_of(event.learners), "left", event.reason)

    def on_shared(self, event: events.IdentitiesShared) -> None:
        """Keep the note about an identity that is in use twice."""
        self._shared_identities.append(event.reason)

    def on_reported(self, event: events.CostsReported | events.BoundsReported) -> None:
        """Stop waiting for learners that reported."""
        self.collecting.discard(event.learners)
        self._reported.add(event.learners)

    def on_progress(self, event: events.ProgressReported) -> None:
        """Store visits of open assignments."""
        rows, known = self._work.find_training(event.cycle, event.learners)
        self._work.update(event.cycle, rows, visits=event.visits[known])

    def on_updates(self, event: events.UpdatesReceived) -> None:
        """Store updates, each once, and end their assignments."""
        rows, indices = self._work.find(event)
        duplicate = ~np.isnan(self._work[event.cycle].arrived_s[rows])
        rows, new = rows[~duplicate], _slice_if_all(indices[~duplicate], event.learners.size)
        self._work.drop_unused(event, rows, new)
        left_s = self._deadline_s(event.cycle) - self._work[event.cycle].dispatched_s[rows]
        learners = event.learners[new]
        self._measured.measure(learners, event.visits[new], event.phases[new])
        self._work.update(
            event.cycle,
            rows,
            visits=event.visits[new],
            allowed_visits=self._measured.allowed_visits(learners, left_s),
            shipped=event.shipped[new],
            loss=event.loss[new],
            phases=event.phases[new],
            arrived_s=event.arrival_times_s[new],
        )
        ended_s = event.arrivals_s[new] if event.arrivals_s.size else self.now_s
        self._end_work(
            event.cycle, rows, "refused" if event.refused else "counted", event.refused, ended_s
        )

    def on_released(self, event: events.ShardsReleased) -> None:
        """Remove released shards from the plans of learners at work."""
        self._work.release(event)

    def on_aggregated(self, event: events.Aggregated) -> None:
        """Store the seconds of aggregation, the training losses, and what the guard decided."""
        clipped = event.guarded[event.scales > 0]
        failed = _failed_checks(event)
        far = (event.scales == 0) & ~failed
        damaged = np.isnan(event.scales)
        self._update_cycle(
            event.cycle,
            aggregate_s=event.seconds,
            clipped=tuple(self.names[clipped].tolist()),
            left_out=tuple(self.names[event.guarded[far]].tolist()),
            failed_checks=tuple(self.names[event.guarded[failed]].tolist()),
            checked=int((event.verified.verdicts != Verdict.UNCHECKED).sum()),
            check_visits=event.verified.visits,
        )
        command, self._aggregate = self._aggregate, None
        self._averaged = command
        if far.any() and command is not None:
            reason = "its change was far larger than those of other updates"
            self._exclude(command, event, far, "refused", reason)
        if failed.any() and command is not None:
            self._exclude(command, event, failed, "refused", FAILED_CHECK)
        if damaged.any() and command is not None:
            reason = "it was damaged on the disk of the orchestrator"
            self._exclude(command, event, damaged, "dropped", reason)
        if event.loss.size and command is not None and command.cycle == event.cycle:
            rows, indices = self._work.find(command)
            self._work.update(event.cycle, rows, loss=event.loss[indices])

    def on_suspect(self, command: commands.Suspect) -> None:
        """Store the learners that fail the first filter."""
        cycle = self._cycles[max(self._cycles)]
        names = tuple(self.names[command.learners].tolist())
        self._update_cycle(cycle.number, suspected=names)

    def _exclude(
        self,
        command: commands.Aggregate,
        event: events.Aggregated,
        selected: Bools,
        status: Status,
        reason: str,
    ) -> None:
        """Set the status of averaged updates that were left out."""
        for row in np.flatnonzero(selected).tolist():
            number = int(event.guarded_cycles[row])
            source = command if number == command.cycle else command.late
            found = source.learners == event.guarded[row]
            if number != command.cycle:
                found &= command.late.cycles == number
            learners, attempts = source.learners[found], source.attempts[found]
            self._set_status(number, learners, attempts, status, reason)

    def _set_status(
        self, number: int, learners: Ints, attempts: Ints, status: Status, reason: str
    ) -> None:
        """Set the status of updates that were averaged, and count them no more."""
        rows = self._work[number].find(learners, attempts)
        values = {"status": STATUSES.index(status), "reason": self._reason_code(reason)}
        self._work.update(number, rows[rows >= 0], weight=0.0, **values)

    def on_restore(self, command: commands.Restore) -> None:
        """Record that the updates of the latest average are in no model."""
        averaged = self._averaged
        if averaged is not None:
            late = averaged.late
            parts = [(averaged.cycle, averaged.learners, averaged.attempts)]
            for number in np.unique(late.cycles).tolist():
                rows = late.cycles == number
                parts.append((number, late.learners[rows], late.attempts[rows]))
            for part in parts:
                self._set_status(*part, "refused", command.reason)
        values = {"ending": "empty", "reason": command.reason, "rejected": True}
        self._update_cycle(command.cycle, loss=nan, accuracy=nan, **values)

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
        self.collecting_cycle = 0
        if isinstance(command, commands.AskBound):
            self.collecting_cycle = command.cycle
            self._reported.discard(command.learners)

    def on_dispatch(self, command: commands.Dispatch) -> None:
        """Open a cycle with its first assignments, or add those of learners that come late."""
        number = command.cycle
        if number not in self._cycles:
            self._length_s = command.seconds_left
        self._open_cycle(number, self._length_s)
        no_pass = self._cycles[number].no_pass + command.no_pass.size
        self._update_cycle(number, tail_s=command.tail_s, no_pass=no_pass)
        if command.drawn.size:
            self._drawn = number, command.drawn
        self.collecting.discard(command.learners)
        samples = self._work.sizes.samples_in(command.learners, command.shards)
        new = Assignments.from_dispatch(command, samples, self.now_s, self.names, self._reasons)
        self._make_room(int(command.learners.max(initial=-1)) + 1)
        left_s = self._deadline_s(number) - self.now_s
        allowed = self._measured.allowed_visits(new.learner.astype(np.int64), left_s)
        if not np.isnan(allowed).all():
            new = replace(new, allowed_visits=allowed)
        self._work.dispatch(command, new)

    def on_extend(self, command: commands.Extend) -> None:
        """Add further shards to assignments; those handed on leave the plan that they were in."""
        self._work.extend(command)
        if command.cycle in self._cycles:
            handed_on = self._cycles[command.cycle].handed_on + command.handed_on.size
            self._update_cycle(command.cycle, handed_on=handed_on)

    def on_withdraw(self, command: commands.Withdraw) -> None:
        """End withdrawn assignments."""
        late = self.now_s >= self._deadline_s(command.cycle)
        rows, _ = self._work.find(command)
        self._end_work(command.cycle, rows, "late" if late else "dropped", command.reason)

    def on_aggregate(self, command: commands.Aggregate) -> None:
        """Close a cycle."""
        self._open_cycle(command.cycle, self._length_s)
        self._record_unassigned(command.cycle)
        self.collecting.clear()
        self._aggregate = command
        rows, indices = self._work.find(command)
        self._work.update(command.cycle, rows, weight=command.weights[indices])
        reason = command.reason.removeprefix("empty: ")
        open_rows = np.flatnonzero(self._work[command.cycle].with_status("training"))
        self._end_work(command.cycle, open_rows, "late", reason)
        carried = f"joined the average of cycle {command.cycle}"
        self._end_late(command.late, "carried", carried, command.late.weights)
        ending = "aggregated" if command.learners.size or command.late.learners.size else "empty"
        self._update_cycle(command.cycle, ending=ending, reason=reason, closed_s=self.now_s)
        self._work.close(command.cycle)

    def _end_late(
        self, late: commands.LateUpdates, status: Status, reason: str, weights: Any
    ) -> None:
        """Set the status of late updates, each in the cycle that it belongs to."""
        for number in np.unique(late.cycles).tolist():
            members = np.flatnonzero(late.cycles == number)
            rows = self._work[number].find(late.learners[members], late.attempts[members])
            known = rows >= 0
            values = {"status": STATUSES.index(status), "reason": self._reason_code(reason)}
            self._work.update(number, rows[known], weight=weights[members][known], **values)

    def on_finish(self, command: commands.Finish) -> None:
        """End the run and all open cycles."""
        self.outcome, self.reason = command.outcome, command.reason
        if command.outcome == "failed" and self.collecting_cycle > max(
            self._cycles, default=self.collecting_cycle
        ):
            self._open_cycle(self.collecting_cycle, self._length_s)
        self._interrupt_cycles(command.reason, failed=command.outcome == "failed")

    def _interrupt_cycles(self, reason: str, *, failed: bool = False) -> None:
        """End the cycle that was being averaged, and all open ones."""
        unfinished = self._aggregate
        if unfinished is not None and (unfinished.learners.size or unfinished.late.learners.size):
            self._interrupt_cycle(unfinished.cycle, reason, failed=failed)
            late = unfinished.late
            self._end_late(late, "dropped", reason, np.zeros(late.learners.size))
        for number, cycle in list(self._cycles.items()):
            if cycle.ending == "running":
                self._record_unassigned(number)
                self._interrupt_cycle(number, reason, failed=failed)
        self.collecting.clear()

    def _record_unassigned(self, number: int) -> None:
        """Record the learners that have no assignment in a cycle that ends now.

        Learners that were not drawn for it are none of them.
        """
        count, idle = self.names.size, self.names != ""
        cycle, drawn = self._drawn
        if cycle == number:
            idle = np.isin(np.arange(count), drawn, kind="table")
        idle[self._work[number].learner] = False
        present = (self.joined - self.left).mask(count)
        not_ready = (self.collecting - self._reported).mask(count)
        self._update_cycle(number, unassigned=Unassigned.from_masks(idle, present, not_ready))

    def _interrupt_cycle(self, number: int, reason: str, *, failed: bool) -> None:
        """End a cycle with the run: its updates are in no model."""
        work = self._work[number]
        received = np.flatnonzero(work.with_status(*COUNTED) & (work.visits > 0))
        dropped = {"status": STATUSES.index("dropped"), "reason": self._reason_code(reason)}
        self._work.update(number, received, weight=0.0, **dropped)
        late = self.now_s >= self._deadline_s(number)
        open_rows = np.flatnonzero(work.with_status("training"))
        self._end_work(number, open_rows, "late" if late else "dropped", reason)
        ending = "empty" if failed and not received.size else "interrupted"
        self._update_cycle(number, ending=ending, reason=reason, closed_s=self.now_s)

    def _open_cycle(self, number: int, deadline_s: float) -> None:
        if number not in self._cycles:
            self._cycles[number] = Cycle(
                number,
                self.now_s,
                deadline_s,
                rates=self._rates,
                extension=self.task.extension,
                carries_late=self.task.late == "carry",
            )

    def _update_cycle(self, number: int, **values: Any) -> None:
        self._cycles[number] = replace(self._cycles[number], **values)

    def _end_work(
        self, number: int, rows: Ints, status: Status, reason: str, at_s: Any = None
    ) -> None:
        """End open assignments, now unless an instant is given."""
        if rows.size:
            code, ended_s = self._reason_code(reason), self.now_s if at_s is None else at_s
            self._work.end(number, rows, status, code, ended_s)

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
        cycle, work = self._cycles[number], replace(self._work[number].freeze(), names=names)
        return replace(cycle, assignments=work, unassigned=replace(cycle.unassigned, names=names))


def _slice_if_all(indices: Ints, count: int) -> Any:
    """Return the indices, or a slice where they are all, which needs no copy."""
    return slice(None) if indices.size == count else indices


def _nan_if_none(value: float | None) -> float:
    return nan if value is None else value


def _ignore(progress: RunProgress, step: Any) -> None:
    """Ignore events and commands that change nothing here."""


def _failed_checks(event: events.Aggregated) -> Bools:
    """Return which of the updates that did not count in full were found wrong."""
    verified = event.verified
    wrong = verified.verdicts == Verdict.WRONG
    pairs = zip(verified.learners[wrong].tolist(), verified.cycles[wrong].tolist(), strict=True)
    known = set(pairs)
    guarded = zip(event.guarded.tolist(), event.guarded_cycles.tolist(), strict=True)
    return np.array([pair in known for pair in guarded], np.bool_)


HANDLERS: dict[type, Callable[[RunProgress, Any], None]] = {
    events.TaskSubmitted: RunProgress.on_submitted,
    events.OrchestratorRestarted: RunProgress.on_restarted,
    events.TaskContinued: RunProgress.on_continued,
    events.LearnersRegistered: RunProgress.on_registered,
    events.LearnersJoined: RunProgress.on_joined,
    events.LearnersLeft: RunProgress.on_left,
    events.IdentitiesShared: RunProgress.on_shared,
    events.CostsReported: RunProgress.on_reported,
    events.BoundsReported: RunProgress.on_reported,
    events.ProgressReported: RunProgress.on_progress,
    events.ShardsReleased: RunProgress.on_released,
    events.UpdatesReceived: RunProgress.on_updates,
    events.Aggregated: RunProgress.on_aggregated,
    events.Evaluated: RunProgress.on_evaluated,
    commands.Benchmark: RunProgress.on_collect,
    commands.AskBound: RunProgress.on_collect,
    commands.Dispatch: RunProgress.on_dispatch,
    commands.Extend: RunProgress.on_extend,
    commands.Withdraw: RunProgress.on_withdraw,
    commands.Aggregate: RunProgress.on_aggregate,
    commands.Restore: RunProgress.on_restore,
    commands.Suspect: RunProgress.on_suspect,
    commands.Finish: RunProgress.on_finish,
}
