"""The invariants of a run, checked after each step, with records of their own.

- Shards: `shard_invariants`. Updates: `update_invariants`.
- Time: it never goes back, no cycle outlasts its deadline and the predicted tail, and none closes
  with open work before its deadline, or after it without the quorum, unless the run has to end.
- Restarts: all open work is sent again, as it was assigned, less what was taken back. Learners have
  time to call again before a cycle closes.
- Trace: replaying it gives the same commands, and its report has the same updates and weights.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.machine import CycleMachine
from melisma.cycle.restarts import reconnect_s
from melisma.cycle.rounds import MAX_TAIL_FRACTION
from melisma.fleet.array_types import Ints
from melisma.fleet.task import Task
from melisma.runs.report import Report
from melisma.runs.trace import Step, decode_steps, encode_step
from melisma.simulation.invariants.assignment_records import AssignmentRecords, assignment_keys
from melisma.simulation.invariants.shard_invariants import ShardInvariants
from melisma.simulation.invariants.update_invariants import UpdateInvariants
from melisma.simulation.invariants.violations import InvariantError, expect

ROUNDING_S = 1e-6


def run_checked(run: Callable[[Callable[[Step], object]], object]) -> Sequence[Step]:
    """Call `run` with a watcher that checks the invariants, and return the steps of the run."""
    invariants = Invariants()
    run(invariants.check)
    invariants.check_end()
    return invariants.steps


class Invariants:
    """The checks of one run; they raise `InvariantError`."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._now_s = -np.inf
        self._limit_s = self._deadline_at_s = self._ends_s = self._quorum_from_s = np.inf
        self._deadline_s = 0.0  # of this cycle
        self._resent = set[tuple[int, int]]()  # learner and attempt, in this step
        self._records = AssignmentRecords()
        self._finished = False
        # Set by the first event, `TaskSubmitted`.
        self._task: Task
        self._shards: ShardInvariants
        self._updates: UpdateInvariants

    def check(self, step: Step) -> None:
        """Check one more step."""
        self.steps.append(step)
        expect(step.event.at_s >= self._now_s - ROUNDING_S, "time goes back")
        self._now_s = max(self._now_s, step.event.at_s)
        if isinstance(step.event, events.OrchestratorRestarted):
            self._allow_time(step.event)
        in_time = not self._records.open or self._now_s <= self._limit_s + ROUNDING_S
        expect(in_time, f"cycle {self._records.cycle} is still open at {self._now_s:g} s")
        for message in (step.event, *step.commands):
            if handler := HANDLERS.get(type(message)):
                handler(self, message)
        self._check_resent(step.event)
        if self._records.open:
            self._shards.check_open_requests()

    def check_end(self) -> None:
        """Check the whole trace after the last step."""
        expect(self._finished, "the run ended without Finish")
        lines = [encode_step(step) for step in self.steps]
        machine = CycleMachine()
        for number, step in enumerate(decode_steps(lines), 1):
            issued = machine.handle(step.event)
            replayed = encode_step(Step(step.event, issued))
            expect(replayed == lines[number - 1], f"line {number} of the trace replays otherwise")
        averaged = isinstance(self.steps[-1].event, events.Aggregated | events.Evaluated)
        self._updates.check_report(Report.from_trace(self.steps), interrupted=not averaged)

    def on_submitted(self, event: events.TaskSubmitted) -> None:
        """Record the rules of the task and the shards of the orchestrator."""
        self._task = event.task
        self._ends_s = np.inf if event.ends_s is None else event.ends_s
        self._shards = ShardInvariants(event.task, event.shard_samples, self._records)
        self._updates = UpdateInvariants(event.task, self._records)

    def on_joined(self, event: events.LearnersJoined) -> None:
        """Record the shards on the devices; a learner that restarted has lost its work."""
        self._shards.add_local(event)
        self._close_all(event.learners)

    def on_left(self, event: events.LearnersLeft) -> None:
        """Close the assignments of learners that left."""
        self._close_all(event.learners)

    def on_dispatch(self, command: commands.Dispatch) -> None:
        """Open assignments; the first of a cycle begins it, and others may join with extension."""
        if command.cycle != self._records.cycle:
            self._begin_cycle(command)
        else:
            expect(self._task.extension, "a cycle begins twice")
            ends_s = self._now_s + command.seconds_left
            expect(np.isclose(ends_s, self._deadline_at_s), "a learner has another deadline")
        self._shards.dispatch(command)

    def _begin_cycle(self, command: commands.Dispatch) -> None:
        cycle = self._records.cycle
        expect(command.cycle > cycle, "a cycle begins twice")
        expect(not self._records.open, f"cycle {cycle} never closed")
        self._records.cycle = command.cycle
        self._deadline_s = command.seconds_left
        self._deadline_at_s = self._quorum_from_s = self._now_s + command.seconds_left
        self._limit_s = self._deadline_at_s + command.tail_s
        self._shards.begin_cycle(set(command.shards.values.tolist()))

    def _allow_time(self, event: events.OrchestratorRestarted) -> None:
        """Let an open cycle wait for learners that call again, and for their updates."""
        if self._records.open:
            calls_s = event.at_s + reconnect_s(event.downtime_s)
            self._quorum_from_s = max(self._quorum_from_s, calls_s)
            self._limit_s = max(self._limit_s, calls_s + MAX_TAIL_FRACTION * self._deadline_s)
            self._ends_s = max(self._ends_s, calls_s)

    def on_resend(self, command: commands.Resend) -> None:
        """Check that work is sent again as it was assigned."""
        rows = zip(assignment_keys(command), command.shards, command.passes.tolist(), strict=True)
        for (learner, attempt), shards, passes in rows:
            record = self._records.find_open(command.cycle, learner)
            if record is None or record.closed or attempt not in record.shards:
                raise InvariantError(f"attempt {attempt} of {learner} is sent again, but not open")
            expect(set(shards.tolist()) == record.shards[attempt], f"{learner} gets other shards")
            expect(passes == record.passes, f"{learner} makes another number of passes")
            expect((learner, attempt) not in self._resent, f"{learner} is sent {attempt} twice")
            self._resent.add((learner, attempt))
        left_s = max(0.0, self._deadline_at_s - self._now_s)
        expect(np.isclose(command.seconds_left, left_s), "a learner has another deadline")

    def _check_resent(self, event: events.AnyEvent) -> None:
        """Check that all open work is sent again after a restart."""
        resent, self._resent = self._resent, set()
        if isinstance(event, events.OrchestratorRestarted):
            learners = set(self._records.open)
        elif isinstance(event, events.LearnersResumed):
            learners = set(event.learners.tolist()) & set(self._records.open)
        else:
            expect(not resent, "work is sent again without a restart")
            return
        is_open = {n: each for n, each in self._records.open.items() if not each.closed}
        due = {
            (learner, attempt)
            for learner in learners & is_open.keys()
            for attempt, shards in is_open[learner].shards.items()
            if shards or attempt == 1
        }
        expect(resent == due, f"{sorted(due ^ resent)} are not sent again as they are open")

    def on_extend(self, command: commands.Extend) -> None:
        """Add shards to assignments that are open."""
        expect(command.cycle == self._records.cycle, "an extension of another cycle")
        expect(self._task.extension, "an extension that the task does not allow")
        self._shards.extend(command)

    def on_requested(self, event: events.ShardsRequested) -> None:
        """Record how many further shards learners want."""
        for learner, shards in zip(event.learners.tolist(), event.shards.tolist(), strict=True):
            if record := self._records.find_open(event.cycle, learner):
                record.requested = shards

    def on_released(self, event: events.ShardsReleased) -> None:
        """Take shards from learners that will not get to them."""
        self._shards.release(event)

    def on_updates(self, event: events.UpdatesReceived) -> None:
        """Record the visits of updates, and close their assignments."""
        for index, (learner, attempt) in enumerate(assignment_keys(event)):
            key = event.cycle, learner
            current = self._records.find_open(*key)
            record = current or self._records.late.get(key)
            if record is None or record.closed or attempt not in record.samples:
                continue
            record.visits = None if event.refused else int(event.visits[index])
            record.done = int(event.visits_of_plan[index])
            record.closed, record.attempt = True, attempt
            unused = record.take_back_after(attempt)
            if current is None:
                self._shards.return_late(event.cycle, unused - record.copied)
                if not record.visits:
                    self._lose(key)

    def on_withdraw(self, command: commands.Withdraw) -> None:
        """Close assignments that are withdrawn."""
        for learner, _ in assignment_keys(command):
            key = command.cycle, learner
            if record := self._records.find_open(*key):
                record.closed = True
            elif (record := self._records.late.get(key)) and not record.visits:
                self._lose(key)

    def _close_all(self, learners: Ints) -> None:
        """Close the assignments of learners, and lose late ones without an update."""
        for learner in learners.tolist():
            if learner in self._records.open:
                self._records.open[learner].closed = True
            late = [key for key in self._records.late if key[1] == learner]
            for key in late:
                if not self._records.late[key].visits:
                    self._lose(key)

    def _lose(self, key: tuple[int, int]) -> None:
        """Forget late work that will not count; its shards return."""
        record = self._records.late.pop(key)
        self._shards.return_late(key[0], record.all_shards - record.copied)

    def on_aggregate(self, command: commands.Aggregate) -> None:
        """Check the weights, and that no work of the cycle is missing."""
        self._updates.check_average(command)
        self._check_closing()
        self._updates.check_complete(command)
        self._shards.return_untrained()
        for learner in self._records.end_cycle():
            carried = self._task.late == "carry"
            expect(carried, f"the work of {learner} is neither in nor dropped")

    def _check_closing(self) -> None:
        """Check that the cycle may close, if work is still open."""
        records = self._records.open.values()
        awaited = sum(record.all_samples for record in records if not record.closed)
        if not awaited or self._now_s >= min(self._limit_s, self._ends_s) - ROUNDING_S:
            return
        expect(self._now_s >= self._deadline_at_s - ROUNDING_S, "closed before the deadline")
        called = self._now_s >= self._quorum_from_s - ROUNDING_S
        expect(called, "closed before learners could call again")
        received = sum(record.all_samples for record in records if record.visits)
        quorum = self._task.quorum
        reached = received >= quorum * (received + awaited) * (1 - ROUNDING_S)
        expect(quorum < 1 and received and reached, "closed without the quorum")

    def on_aggregated(self, event: events.Aggregated) -> None:
        """Forget updates that the guard left out."""
        self._updates.leave_out_guarded(event)

    def on_restore(self, _: commands.Restore) -> None:
        """Forget the updates of a model that was not kept."""
        self._updates.forget_last_average()

    def on_finish(self, _: commands.Finish) -> None:
        """Record the end of the run."""
        self._finished, self._records.open = True, {}


HANDLERS: dict[type, Callable[[Invariants, Any], None]] = {
    events.TaskSubmitted: Invariants.on_submitted,
    events.LearnersJoined: Invariants.on_joined,
    events.LearnersLeft: Invariants.on_left,
    events.ShardsRequested: Invariants.on_requested,
    events.ShardsReleased: Invariants.on_released,
    events.UpdatesReceived: Invariants.on_updates,
    events.Aggregated: Invariants.on_aggregated,
    commands.Dispatch: Invariants.on_dispatch,
    commands.Extend: Invariants.on_extend,
    commands.Resend: Invariants.on_resend,
    commands.Withdraw: Invariants.on_withdraw,
    commands.Aggregate: Invariants.on_aggregate,
    commands.Restore: Invariants.on_restore,
    commands.Finish: Invariants.on_finish,
}
