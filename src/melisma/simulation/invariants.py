"""Properties that hold after each step of a run, whatever the faults; checked independently.

- Shards: every shard is dealt before any is dealt again, none twice to one learner, and to two
  learners in a cycle only if more are wanted than exist. A shard is handed on only if the learner
  that had it does not train it any more; while there are shards to hand on, no request stays open
  and none is answered with others. Shards that no learner trained are dealt first in the next
  cycle, and those of a late update that is lost from then on. Extensions have as many shards as
  were requested, at most.
- Updates: none counts twice, none counts that did not arrive, and weights are the samples assigned,
  less where not all visits were made. A late update counts once, with a discount. In federated
  learning no update weighs more than 10 times the median, unless the guard is off.
- Time: it never goes back, no cycle outlasts its deadline and the predicted tail, and none closes
  with open work before its deadline, or after it without the quorum.
- Trace: replaying it gives the same commands, and its report has the same updates and weights.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.machine import CycleMachine
from melisma.errors import MelismaError
from melisma.fleet.array_types import Ints
from melisma.fleet.task import Task
from melisma.runs.assignments import COUNTED
from melisma.runs.report import Report
from melisma.runs.trace import Step, decode_steps, encode_step
from melisma.simulation.assignment_record import AssignmentRecord

ROUNDING_S = 1e-6


class InvariantError(MelismaError):
    """An invariant of a run is violated."""


def run_checked(run: Callable[[Callable[[Step], object]], object]) -> Sequence[Step]:
    """Call `run` with a watcher that checks the invariants, and return the steps of the run."""
    invariants = Invariants()
    run(invariants.check)
    invariants.check_end()
    return invariants.steps


class Invariants:
    """The checks of one run, with records of their own; they raise `InvariantError`."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._now_s = -np.inf
        self._samples: Ints = np.empty(0, np.int64)
        self._local_shards: dict[int, Ints] = {}
        self._dealt: Ints = np.empty(0, np.int64)
        self._task: Task | None = None
        self._extension = self._carry = False
        self._open: dict[int, AssignmentRecord] = {}  # of this cycle, by learner
        self._late: dict[tuple[int, int], AssignmentRecord] = {}  # by cycle and learner
        self._carried: set[tuple[int, int]] = set()
        self._cycle, self._limit_s, self._deadline_at_s = 0, np.inf, np.inf
        self._given_now: set[int] = set()  # shards of the deck dealt in this cycle
        self._returned: set[int] = set()  # shards to be dealt first
        self._last_dealt: dict[int, int] = {}  # cycle by shard
        self._counted: dict[tuple[int, int], tuple[float, int, int]] = {}
        self._last_aggregate: list[tuple[int, int]] = []
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
        self._check_open_requests()

    def check_end(self) -> None:
        """Check the whole trace after the last step."""
        _expect(self._finished, "the run ended without Finish")
        lines = [encode_step(step) for step in self.steps]
        machine = CycleMachine()
        for number, step in enumerate(decode_steps(lines), 1):
            issued = machine.handle(step.event)
            replayed = encode_step(Step(step.event, issued))
            _expect(replayed == lines[number - 1], f"line {number} of the trace replays otherwise")
        self._check_report(Report.from_trace(self.steps))

    def _check_report(self, report: Report) -> None:
        """Check that the report has the updates of all averages, with their weights."""
        counted = {}
        for cycle in report.cycles:
            known = all(each.status != "training" for each in cycle.assignments)
            _expect(known, f"work of cycle {cycle.number} is lost")
            for each in cycle.assignments:
                if each.status in COUNTED and each.weight > 0:
                    counted[each.cycle, each.learner] = each.weight, each.samples, each.visits
        if not isinstance(self.steps[-1].event, events.Aggregated | events.Evaluated):
            # Updates of an average that was interrupted are in no model.
            for key in self._last_aggregate:
                if key not in counted:
                    self._counted.pop(key, None)
        _expect(counted.keys() == self._counted.keys(), "the report has other updates")
        for key, values in counted.items():
            _expect(np.allclose(values, self._counted[key]), f"the report differs in {key}")

    def on_submitted(self, event: events.TaskSubmitted) -> None:
        """Record the rules of the task and the shards of the orchestrator."""
        self._task = event.task
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
                    self._lose(key)

    def _lose(self, key: tuple[int, int]) -> None:
        """Forget late work that will not count; its shards return."""
        record = self._late.pop(key)
        self._return_late(key[0], record.all_shards - record.copied)

    def _return_late(self, cycle: int, shards: set[int]) -> None:
        """Record that late work does not cover these shards, if they were not dealt since."""
        if self._extension and self._dealt.size:
            self._returned |= {each for each in shards if self._last_dealt[each] == cycle}

    def on_dispatch(self, command: commands.Dispatch) -> None:
        """Open assignments; the first of a cycle begins it, and others may join with extension."""
        if command.cycle != self._cycle:
            _expect(command.cycle > self._cycle, "a cycle begins twice")
            _expect(not self._open, f"cycle {self._cycle} never closed")
            self._cycle = command.cycle
            self._deadline_at_s = self._now_s + command.seconds_left
            self._limit_s = self._deadline_at_s + command.tail_s
            self._given_now = set()
            self._check_returned(set(command.shards.values.tolist()))
        else:
            _expect(self._extension, "a cycle begins twice")
            ends_s = self._now_s + command.seconds_left
            _expect(np.isclose(ends_s, self._deadline_at_s), "a learner has another deadline")
            self._returned -= set(command.shards.values.tolist())
        self._given_now |= set(command.shards.values.tolist())
        self._last_dealt |= dict.fromkeys(command.shards.values.tolist(), self._cycle)
        rows = zip(_keys(command), command.shards, command.passes.tolist(), strict=True)
        for (learner, attempt), shards, passes in rows:
            _expect(learner not in self._open, f"learner {learner} is given work twice")
            self._open[learner] = AssignmentRecord({}, {}, passes)
            self._give(learner, attempt, shards)
        self._check_dealt(command.shards.values)

    def on_extend(self, command: commands.Extend) -> None:
        """Add shards to assignments that are open."""
        _expect(command.cycle == self._cycle, "an extension of another cycle")
        _expect(self._extension, "an extension that the task does not allow")
        for (learner, attempt), shards in zip(_keys(command), command.shards, strict=True):
            record = self._open.get(learner)
            if record is None or record.closed:
                raise InvariantError(f"learner {learner} is extended without open work")
            _expect(attempt > max(record.samples), f"attempt {attempt} of {learner} is not new")
            record.requested -= shards.size
            _expect(record.requested >= 0, f"learner {learner} gets more than it requested")
            self._give(learner, attempt, shards)
        new = np.setdiff1d(command.shards.values, command.handed_on)
        self._check_dealt(new)
        if self._dealt.size:
            numbers = set(new.tolist())
            handed_on = set(command.handed_on.tolist())
            _expect(handed_on <= self._given_now, "a shard is handed on that was not dealt")
            _expect(not numbers & self._given_now, "a shard of an extension was already dealt")
            self._check_returned(numbers)
            self._given_now |= numbers
            self._last_dealt |= dict.fromkeys(numbers, self._cycle)
            for learner, shards in zip(command.learners.tolist(), command.shards, strict=True):
                if numbers & set(shards.tolist()):
                    left = sorted(self._to_hand_on() - self._open[learner].had)
                    _expect(not left, f"{learner} gets other shards before {left} are handed on")

    def _check_open_requests(self) -> None:
        """Check that no request is open which shards of another learner could meet."""
        requests = {n: each for n, each in self._open.items() if each.requested > 0}
        if not requests or not self._dealt.size or self._task is None:
            return
        free, most = self._to_hand_on(), self._task.max_shards
        for learner, record in requests.items():
            room = most is None or len(record.all_shards) < most
            if not record.closed and room:
                left = sorted(free - record.had)
                _expect(not left, f"{learner} requested shards, and {left} are not handed on")

    def _to_hand_on(self) -> set[int]:
        """Return the shards of this cycle that no learner has trained, or may still train."""
        trained, had = set[int](), set[int]()
        for record in self._open.values():
            had |= record.had
            if record.visits or not record.closed:
                trained |= record.all_shards
        return had - trained

    def _give(self, learner: int, attempt: int, shards: Ints) -> None:
        record, numbers = self._open[learner], set(shards.tolist())
        _expect(len(numbers) == shards.size > 0, f"learner {learner} gets a shard twice")
        _expect(not record.had & numbers, f"learner {learner} gets a shard again")
        record.had |= numbers
        most = self._task.max_shards if self._task is not None else None
        total = len(record.all_shards) + len(numbers)
        _expect(most is None or total <= most, f"learner {learner} gets {total} shards")
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

    def _check_returned(self, numbers: set[int]) -> None:
        """Check that shards that no learner trained come before others; `numbers` are dealt."""
        if not self._dealt.size or not numbers:
            return
        waiting = self._returned - self._given_now
        first = waiting <= numbers or numbers <= waiting
        _expect(
            first, f"shards {sorted(waiting - numbers)} were not trained, and others come first"
        )
        self._returned -= numbers

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

    def on_requested(self, event: events.ShardsRequested) -> None:
        """Record how many further shards learners want."""
        for learner, shards in zip(event.learners.tolist(), event.shards.tolist(), strict=True):
            if event.cycle == self._cycle and learner in self._open:
                self._open[learner].requested = shards

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
                record.done = int(event.visits_of_plan[index])
                record.closed, record.attempt = True, attempt
                for later in [nth for nth in record.samples if nth > attempt]:
                    if not current:
                        self._return_late(event.cycle, record.shards[later] - record.copied)
                    record.shards[later] = set()
                if not current and not record.visits:
                    self._lose((event.cycle, learner))

    def on_withdraw(self, command: commands.Withdraw) -> None:
        """Close assignments that are withdrawn."""
        for learner, _ in _keys(command):
            if command.cycle == self._cycle and learner in self._open:
                self._open[learner].closed = True
            elif (record := self._late.get((command.cycle, learner))) and not record.visits:
                self._lose((command.cycle, learner))

    def on_aggregate(self, command: commands.Aggregate) -> None:
        """Check the weights, and that no work of the cycle is missing."""
        learners = command.learners.tolist()
        _expect(len(set(learners)) == len(learners), "an update counts twice")
        limit = self._weight_limit(command)
        for learner, weight in zip(learners, command.weights.tolist(), strict=True):
            record = self._open.get(learner)
            if record is None or record.visits is None:
                raise InvariantError(f"learner {learner} counts, but its update never arrived")
            expected = min(record.weight, limit)
            _expect(np.isclose(weight, expected), f"{learner} has weight {weight:g}")
            self._counted[self._cycle, learner] = weight, record.all_samples, record.visits
        self._last_aggregate = [(self._cycle, learner) for learner in learners]
        self._check_late(command, limit)
        self._check_closing()
        arrived = {learner for learner, record in self._open.items() if record.visits}
        _expect(arrived == set(learners) or not self._open, "an update that arrived does not count")
        covered = {
            shard for each in self._open.values() if each.visits for shard in each.all_shards
        }
        for learner, record in self._open.items():
            if not record.closed:
                _expect(self._carry, f"the work of {learner} is neither in nor dropped")
                record.copied = covered & record.all_shards
                self._late[self._cycle, learner] = record
        self._return_untrained()
        self._open = {}

    def _weight_limit(self, command: commands.Aggregate) -> float:
        """Return the most that an update may weigh: in federated learning 10 times the median."""
        task, late = self._task, command.late
        if task is None or task.mode != "federated" or task.guard == "off":
            return np.inf
        keys = zip(late.cycles.tolist(), late.learners.tolist(), strict=True)
        records = [self._open.get(learner) for learner in command.learners.tolist()]
        records += [self._late.get(key) for key in keys]
        weights = sorted(record.weight for record in records if record is not None)
        return 10 * weights[(len(weights) - 1) // 2] if weights else np.inf

    def _check_closing(self) -> None:
        """Check that the cycle may close, if work is still open."""
        records = self._open.values()
        awaited = sum(record.all_samples for record in records if not record.closed)
        task = self._task
        if not awaited or task is None or self._now_s >= self._limit_s - ROUNDING_S:
            return
        _expect(self._now_s >= self._deadline_at_s - ROUNDING_S, "closed before the deadline")
        received = sum(record.all_samples for record in records if record.visits)
        quorum = received >= task.quorum * (received + awaited) * (1 - ROUNDING_S)
        _expect(task.quorum < 1 and received and quorum, "closed without the quorum")

    def _return_untrained(self) -> None:
        """Record the shards of this cycle that no learner has trained, or may still train."""
        if not self._extension or not self._dealt.size or not self._open:
            return
        self._returned |= self._to_hand_on()

    def _check_late(self, command: commands.Aggregate, limit: float) -> None:
        """Check that late updates arrived, count once, and have their discounted weight."""
        late = command.late
        rows = zip(late.cycles.tolist(), late.learners.tolist(), late.weights.tolist(), strict=True)
        for cycle, learner, weight in rows:
            record = self._late.pop((cycle, learner), None)
            if record is None or record.visits is None:
                raise InvariantError(f"{learner} counts late, but its update never arrived")
            expected = min(record.weight, limit) / (1 + command.cycle - cycle)
            _expect(np.isclose(weight, expected), f"{learner} has late weight {weight:g}")
            _expect(self._carry, "a late update counts, but the task drops them")
            self._counted[cycle, learner] = weight, record.all_samples, record.visits
            self._last_aggregate.append((cycle, learner))
            _expect((cycle, learner) not in self._carried, "a late update counts twice")
            self._carried.add((cycle, learner))
        forgotten = [key for key, record in self._late.items() if record.visits]
        _expect(not forgotten, f"late updates of {forgotten} arrived and do not count")

    def on_aggregated(self, event: events.Aggregated) -> None:
        """Forget updates that the guard left out: the report does not count them."""
        pairs = zip(event.guarded_cycles.tolist(), event.guarded.tolist(), strict=True)
        for key, scale in zip(pairs, event.scales.tolist(), strict=True):
            _expect(key in self._last_aggregate, f"{key} is guarded, but not averaged")
            _expect(0 <= scale < 1, f"the change of {key} counts {scale:g} times")
            if not scale:
                del self._counted[key]

    def on_restore(self, _: commands.Restore) -> None:
        """Forget the updates of a model that was not kept."""
        for key in self._last_aggregate:
            self._counted.pop(key, None)

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
    events.ShardsRequested: Invariants.on_requested,
    events.ShardsReleased: Invariants.on_released,
    events.UpdatesReceived: Invariants.on_updates,
    events.Aggregated: Invariants.on_aggregated,
    commands.Dispatch: Invariants.on_dispatch,
    commands.Extend: Invariants.on_extend,
    commands.Withdraw: Invariants.on_withdraw,
    commands.Aggregate: Invariants.on_aggregate,
    commands.Restore: Invariants.on_restore,
    commands.Finish: Invariants.on_finish,
}
