"""Properties that hold after each step of a run, whatever the faults; checked independently.

- Shards: every shard is dealt before any is dealt again, none twice to one learner, and to two
  learners in a cycle only if more are wanted than exist. A shard is handed on only if the learner
  that had it does not train it any more.
- Updates: none counts twice, none counts that did not arrive, and weights are the samples assigned,
  less where not all visits were made. A late update counts once, with a discount.
- Time: it never goes back, and no cycle outlasts its deadline and the predicted tail.
- Trace: replaying it gives the same commands.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.machine import CycleMachine
from melisma.errors import MelismaError
from melisma.fleet.array_types import Ints
from melisma.runs.report import Report
from melisma.runs.trace import Step, decode_steps, encode_step

ROUNDING_S = 1e-6


class InvariantError(MelismaError):
    """An invariant of a run is violated."""


def run_checked(run: Callable[[Callable[[Step], object]], object]) -> Sequence[Step]:
    """Call `run` with a watcher that checks the invariants, and return the steps of the run."""
    invariants = Invariants()
    run(invariants.check)
    invariants.check_end()
    return invariants.steps


@dataclass
class AssignmentRecord:
    """What a learner was given in one cycle, and the visits of its update.

    `samples` and `shards` are those of each extension, by attempt; the first is the assignment.
    """

    samples: dict[int, int]
    shards: dict[int, set[int]]
    passes: int
    visits: int | None = None
    attempt: int = 0  # of the update
    closed: bool = False

    @property
    def all_shards(self) -> set[int]:
        """The shards of all extensions."""
        return {shard for part in self.shards.values() for shard in part}

    @property
    def weight(self) -> float:
        """Samples up to the attempt of the update, less where not all visits were made."""
        samples = sum(n for attempt, n in self.samples.items() if attempt <= self.attempt)
        planned = samples * self.passes
        return samples * min(self.visits or 0, planned) / max(planned, 1)


class Invariants:
    """The checks of one run, with records of their own; they raise `InvariantError`."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._now_s = -np.inf
        self._samples: Ints = np.empty(0, np.int64)
        self._local_shards: dict[int, Ints] = {}
        self._dealt: Ints = np.empty(0, np.int64)
        self._extension = self._carry = False
        self._open: dict[int, AssignmentRecord] = {}  # of this cycle, by learner
        self._late: dict[tuple[int, int], AssignmentRecord] = {}  # by cycle and learner
        self._carried: set[tuple[int, int]] = set()
        self._cycle, self._limit_s = 0, np.inf
        self._finished = False

    def check(self, step: Step) -> None:
        """Check one more step."""
        self.steps.append(step)
        _expect(step.event.at_s >= self._now_s - ROUNDING_S, "time goes back")
        self._now_s = max(self._now_s, step.event.at_s)
        in_time = not self._open or self._now_s <= self._limit_s + ROUNDING_S
        _expect(in_time, f"cycle {self._cycle} is still open at {self._now_s:g} s")
        for message in (step.event, *step.commands):
            if handler := HANDLERS.get(type(message)):
                handler(self, message)

    def check_end(self) -> None:
        """Check the whole trace after the last step."""
        _expect(self._finished, "the run ended without Finish")
        lines = [encode_step(step) for step in self.steps]
        machine = CycleMachine()
        for number, step in enumerate(decode_steps(lines), 1):
            issued = machine.handle(step.event)
            replayed = encode_step(Step(step.event, issued))
            _expect(replayed == lines[number - 1], f"line {number} of the trace replays otherwise")
        for cycle in Report.from_trace(self.steps).cycles:
            known = all(each.status != "training" for each in cycle.assignments)
            _expect(known or cycle.ending == "interrupted", f"work of cycle {cycle.number} is lost")

    def on_submitted(self, event: events.TaskSubmitted) -> None:
        """Record the rules of the task and the shards of the orchestrator."""
        self._extension, self._carry = event.task.extension, event.task.late == "carry"
        self._samples = event.shard_samples
        self._dealt = np.zeros(event.shard_samples.size, np.int64)

    def on_joined(self, event: events.LearnersJoined) -> None:
        """Record the shards on the devices; a learner that restarted has lost its work."""
        self._local_shards.update(zip(event.learners.tolist(), event.local_shards, strict=False))
        self._close_all(event.learners)

    def on_left(self, event: events.LearnersLeft) -> None:
        """Close the assignments of learners that left."""
        self._close_all(event.learners)

    def _close_all(self, learners: Ints) -> None:
        for learner in learners.tolist():
            if learner in self._open:
                self._open[learner].closed = True
            for key in [key for key, record in self._late.items() if key[1] == learner]:
                if not self._late[key].visits:
                    del self._late[key]

    def on_dispatch(self, command: commands.Dispatch) -> None:
        """Open assignments; the first of a cycle begins it, and others may join with extension."""
        if command.cycle != self._cycle:
            _expect(command.cycle > self._cycle, "a cycle begins twice")
            _expect(not self._open, f"cycle {self._cycle} never closed")
            self._cycle = command.cycle
            self._limit_s = self._now_s + command.seconds_left + command.tail_s
        else:
            _expect(self._extension, "a cycle begins twice")
        rows = zip(_keys(command), command.shards, command.passes.tolist(), strict=True)
        for (learner, attempt), shards, passes in rows:
            _expect(learner not in self._open, f"learner {learner} is given work twice")
            self._open[learner] = AssignmentRecord({}, {}, passes)
            self._give(learner, attempt, shards)
        self._check_dealt(command.shards.values)

    def on_extend(self, command: commands.Extend) -> None:
        """Add shards to assignments that are open."""
        _expect(command.cycle == self._cycle, "an extension of another cycle")
        for (learner, attempt), shards in zip(_keys(command), command.shards, strict=True):
            record = self._open.get(learner)
            if record is None or record.closed:
                raise InvariantError(f"learner {learner} is extended without open work")
            _expect(attempt > max(record.samples), f"attempt {attempt} of {learner} is not new")
            self._give(learner, attempt, shards)
        self._check_dealt(np.setdiff1d(command.shards.values, command.handed_on))

    def _give(self, learner: int, attempt: int, shards: Ints) -> None:
        record, numbers = self._open[learner], set(shards.tolist())
        _expect(len(numbers) == shards.size > 0, f"learner {learner} gets a shard twice")
        _expect(not record.all_shards & numbers, f"learner {learner} gets a shard again")
        sizes = self._local_shards[learner] if self._local_shards else self._samples
        record.samples[attempt] = int(sizes[shards].sum())
        record.shards[attempt] = numbers
        if attempt > 1 and self._dealt.size:
            self._check_alone(learner, numbers)

    def _check_alone(self, learner: int, numbers: set[int]) -> None:
        """Check that no other learner trains, or has trained, shards of an extension."""
        for other, record in self._open.items():
            if other != learner and (not record.closed or record.visits):
                shared = sorted(numbers & record.all_shards)
                _expect(not shared, f"{learner} and {other} both train shards {shared}")

    def _check_dealt(self, shards: Ints) -> None:
        if not self._dealt.size:
            return
        if shards.size > self._dealt.size:
            _expect(np.unique(shards).size == self._dealt.size, "a shard is left out")
            return
        _expect(np.unique(shards).size == shards.size, "a shard goes to two learners")
        np.add.at(self._dealt, shards, 1)
        # With extension, shards that were not trained come again, and held ones first.
        even = self._dealt.max() - self._dealt.min() <= 1
        _expect(even or self._extension, "a shard is dealt again before all were dealt")

    def on_released(self, event: events.ShardsReleased) -> None:
        """Take shards from learners that will not get to them."""
        if event.cycle != self._cycle:
            return
        for learner, shards in zip(event.learners.tolist(), event.shards, strict=True):
            record = self._open.get(learner)
            if record is None or record.closed:
                continue
            for attempt, given in record.shards.items():
                taken = np.array(sorted(given & set(shards.tolist())), np.int64)
                record.shards[attempt] = given - set(taken.tolist())
                record.samples[attempt] -= int(self._samples[taken].sum())

    def on_updates(self, event: events.UpdatesReceived) -> None:
        """Record the visits of updates, and close their assignments."""
        for index, (learner, attempt) in enumerate(_keys(event)):
            current = event.cycle == self._cycle and learner in self._open
            record = self._open[learner] if current else self._late.get((event.cycle, learner))
            if record is not None and not record.closed and attempt in record.samples:
                record.visits = None if event.refused else int(event.visits[index])
                record.closed, record.attempt = True, attempt
                for later in [nth for nth in record.samples if nth > attempt]:
                    record.shards[later] = set()

    def on_withdraw(self, command: commands.Withdraw) -> None:
        """Close assignments that are withdrawn."""
        for learner, _ in _keys(command):
            if command.cycle == self._cycle and learner in self._open:
                self._open[learner].closed = True
            elif (record := self._late.get((command.cycle, learner))) and not record.visits:
                del self._late[command.cycle, learner]

    def on_aggregate(self, command: commands.Aggregate) -> None:
        """Check the weights, and that no work of the cycle is missing."""
        learners = command.learners.tolist()
        _expect(len(set(learners)) == len(learners), "an update counts twice")
        for learner, weight in zip(learners, command.weights.tolist(), strict=True):
            record = self._open.get(learner)
            if record is None or record.visits is None:
                raise InvariantError(f"learner {learner} counts, but its update never arrived")
            _expect(np.isclose(weight, record.weight), f"{learner} has weight {weight:g}")
        self._check_late(command)
        arrived = {learner for learner, record in self._open.items() if record.visits}
        _expect(arrived == set(learners) or not self._open, "an update that arrived does not count")
        for learner, record in self._open.items():
            if not record.closed:
                _expect(self._carry, f"the work of {learner} is neither in nor dropped")
                self._late[self._cycle, learner] = record
        self._open = {}

    def _check_late(self, command: commands.Aggregate) -> None:
        """Check that late updates arrived, count once, and have their discounted weight."""
        late = command.late
        rows = zip(late.cycles.tolist(), late.learners.tolist(), late.weights.tolist(), strict=True)
        for cycle, learner, weight in rows:
            record = self._late.pop((cycle, learner), None)
            if record is None or record.visits is None:
                raise InvariantError(f"{learner} counts late, but its update never arrived")
            expected = record.weight / (1 + command.cycle - cycle)
            _expect(np.isclose(weight, expected), f"{learner} has late weight {weight:g}")
            _expect((cycle, learner) not in self._carried, "a late update counts twice")
            self._carried.add((cycle, learner))
        forgotten = [key for key, record in self._late.items() if record.visits]
        _expect(not forgotten, f"late updates of {forgotten} arrived and do not count")

    def on_finish(self, _: commands.Finish) -> None:
        """Record the end of the run."""
        self._finished, self._open = True, {}


def _keys(message: Any) -> list[tuple[int, int]]:
    """Return learner and attempt of each assignment in a message."""
    return list(zip(message.learners.tolist(), message.attempts.tolist(), strict=True))


def _expect(holds: object, violation: str) -> None:
    if not holds:
        raise InvariantError(violation)


HANDLERS: dict[type, Callable[[Invariants, Any], None]] = {
    events.TaskSubmitted: Invariants.on_submitted,
    events.LearnersJoined: Invariants.on_joined,
    events.LearnersLeft: Invariants.on_left,
    events.ShardsReleased: Invariants.on_released,
    events.UpdatesReceived: Invariants.on_updates,
    commands.Dispatch: Invariants.on_dispatch,
    commands.Extend: Invariants.on_extend,
    commands.Withdraw: Invariants.on_withdraw,
    commands.Aggregate: Invariants.on_aggregate,
    commands.Finish: Invariants.on_finish,
}
