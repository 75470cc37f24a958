"""Properties that hold after each step of a run, whatever the faults; checked independently.

- Shards: every shard is dealt before any is dealt again, none twice to one learner, and to two
  learners in a cycle only if more are wanted than exist. Each assigned shard is trained, given to
  another learner, or reported as dropped when its cycle closes.
- Updates: none counts twice, none counts that did not arrive, and weights are the samples assigned,
  less where not all visits were made; as shares they sum to one.
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
    """Samples and planned visits of an assignment, and the visits of its update."""

    samples: int
    planned: int
    visits: int | None = None
    closed: bool = False


class Invariants:
    """The checks of one run, with records of their own; they raise `InvariantError`."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._now_s = -np.inf
        self._samples: Ints = np.empty(0, np.int64)
        self._local_shards: dict[int, Ints] = {}
        self._dealt: Ints = np.empty(0, np.int64)
        self._open: dict[tuple[int, int], AssignmentRecord] = {}
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
        """Record the shards of the orchestrator."""
        self._shard_samples = event.shard_samples
        self._dealt = np.zeros(event.shard_samples.size, np.int64)

    def on_joined(self, event: events.LearnersJoined) -> None:
        """Record the shards on the devices."""
        self._local_shards.update(zip(event.learners.tolist(), event.local_shards, strict=False))

    def on_left(self, event: events.LearnersLeft) -> None:
        """Close the assignments of learners that left."""
        left = set(event.learners.tolist())
        for key, record in self._open.items():
            record.closed |= key[0] in left

    def on_dispatch(self, command: commands.Dispatch) -> None:
        """Open the assignments of a cycle; check that shards are dealt evenly."""
        _expect(command.cycle > self._cycle or not self._cycle, "a cycle begins twice")
        _expect(not self._open, f"cycle {self._cycle} never closed")
        self._cycle = command.cycle
        self._limit_s = self._now_s + command.seconds_left + command.tail_s
        passes = command.passes.tolist()
        for key, shards, times in zip(_keys(command), command.shards, passes, strict=True):
            _expect(np.unique(shards).size == shards.size > 0, f"{key} gets a shard twice")
            sizes = self._local_shards[key[0]] if self._local_shards else self._shard_samples
            samples = int(sizes[shards].sum())
            self._open[key] = AssignmentRecord(samples, samples * times)
        if self._dealt.size:
            self._check_dealt(command.shards.values)

    def _check_dealt(self, shards: Ints) -> None:
        once = np.unique(shards).size == shards.size or shards.size > self._dealt.size
        _expect(once, "a shard goes to two learners though there are enough")
        np.add.at(self._dealt, shards, 1)
        even = self._dealt.max() - self._dealt.min() <= 1
        _expect(even, "a shard is dealt again before all were dealt")

    def on_updates(self, event: events.UpdatesReceived) -> None:
        """Record the visits of updates, and close their assignments."""
        if event.cycle != self._cycle:
            return
        for index, key in enumerate(_keys(event)):
            record = self._open.get(key)
            if record is not None and not record.closed:
                record.visits = None if event.refused else int(event.visits[index])
                record.closed = True

    def on_withdraw(self, command: commands.Withdraw) -> None:
        """Close assignments that are withdrawn."""
        for key in _keys(command) if command.cycle == self._cycle else ():
            if key in self._open:
                self._open[key].closed = True

    def on_aggregate(self, command: commands.Aggregate) -> None:
        """Check the weights, and that no work of the cycle is missing."""
        keys, total = _keys(command), 0.0
        _expect(len(set(keys)) == len(keys), "an update counts twice")
        for key, weight in zip(keys, command.weights.tolist(), strict=True):
            expected = self._weight_of(key)
            _expect(np.isclose(weight, expected), f"{key} has weight {weight:g}")
            total += expected
        share = total / command.weights.sum() if keys else 1.0
        _expect(abs(share - 1.0) < 1e-9, "shares of the machine's weights do not sum to one")
        missing = [key for key, record in self._open.items() if not record.closed]
        _expect(not missing, f"the work of {missing} is neither in nor dropped")
        arrived = {key for key, record in self._open.items() if record.visits}
        _expect(arrived == set(keys) or not self._open, "an update that arrived does not count")
        self._open = {}

    def _weight_of(self, key: tuple[int, int]) -> float:
        record = self._open.get(key)
        if record is None or record.visits is None:
            raise InvariantError(f"{key} counts, but never arrived")
        return record.samples * min(record.visits, record.planned) / record.planned

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
    events.UpdatesReceived: Invariants.on_updates,
    commands.Dispatch: Invariants.on_dispatch,
    commands.Withdraw: Invariants.on_withdraw,
    commands.Aggregate: Invariants.on_aggregate,
    commands.Finish: Invariants.on_finish,
}
