"""What must hold after each step of a run, whatever goes wrong: kept in books of its own.

- Shards: each is dealt before any is dealt again, none twice to one learner, and to two in a cycle
  only if more are wanted than there are. Each that is handed out is trained, handed on, or reported
  as dropped by the time its cycle closes.
- Updates: none counts twice, none counts that did not come, and weights are the samples given, less
  where not all visits were made; as shares they sum to one.
- Time: it does not go back, and no cycle goes on past its deadline and the tail that was predicted.
- The trace tells the truth: read again, it leads the machine to the same commands.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.machine import CycleMachine
from melisma.cycle.ragged import Ints
from melisma.errors import MelismaError
from melisma.runs.report import Report
from melisma.runs.trace import Step, decode_steps, encode_step

ROUNDING_S = 1e-6


class InvariantError(MelismaError):
    """Something that must hold does not."""


@dataclass
class AssignmentRecord:
    """An assignment in the books."""

    samples: int
    planned: int
    visits: int | None = None
    closed: bool = False


class Invariants:
    """Books on one run; `hear` raises `BrokenError` at the first step after which they are off."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._now_s = -np.inf
        self._samples: Ints = np.empty(0, np.int64)
        self._own: dict[int, Ints] = {}
        self._dealt: Ints = np.empty(0, np.int64)
        self._open: dict[tuple[int, int], AssignmentRecord] = {}
        self._cycle, self._limit_s = 0, np.inf
        self._finished = False

    def check(self, step: Step) -> None:
        """One more step."""
        self.steps.append(step)
        _expect(step.event.at_s >= self._now_s - ROUNDING_S, "time goes back")
        self._now_s = max(self._now_s, step.event.at_s)
        in_time = not self._open or self._now_s <= self._limit_s + ROUNDING_S
        _expect(in_time, f"cycle {self._cycle} goes on at {self._now_s:g} s")
        for said in (step.event, *step.commands):
            _BOOKED.get(type(said), _nothing)(self, said)

    def check_end(self) -> None:
        """After the last step: what the trace tells."""
        _expect(self._finished, "the run ended without an end")
        written = [encode_step(step) for step in self.steps]
        machine = CycleMachine()
        for number, step in enumerate(decode_steps(written), 1):
            said = machine.handle(step.event)
            again = encode_step(Step(step.event, said))  # type: ignore[arg-type]
            _expect(again == written[number - 1], f"line {number} of the trace replays otherwise")
        for cycle in Report.of(self.steps).cycles:
            known = all(each.status != "training" for each in cycle.assignments)
            _expect(known or cycle.ending == "interrupted", f"work of cycle {cycle.number} is lost")

    def _submitted(self, event: events.TaskSubmitted) -> None:
        self._samples, self._dealt = event.samples, np.zeros(event.samples.size, np.int64)

    def _joined(self, event: events.LearnersJoined) -> None:
        self._own.update(zip(event.learners.tolist(), event.local_data, strict=False))

    def _left(self, event: events.LearnersLeft) -> None:
        gone = set(event.learners.tolist())
        for key, entry in self._open.items():
            entry.closed |= key[0] in gone

    def _dispatched(self, command: commands.Dispatch) -> None:
        _expect(command.cycle > self._cycle or not self._cycle, "a cycle begins twice")
        _expect(not self._open, f"cycle {self._cycle} never closed")
        self._cycle = command.cycle
        self._limit_s = self._now_s + command.seconds_left + command.tail_s
        passes = command.passes.tolist()
        for key, shards, times in zip(_keys(command), command.shards, passes, strict=True):
            _expect(np.unique(shards).size == shards.size > 0, f"{key} gets a shard twice")
            sizes = self._own[key[0]] if self._own else self._samples
            samples = int(sizes[shards].sum())
            self._open[key] = AssignmentRecord(samples, samples * times)
        if self._dealt.size:
            flat = command.shards.values
            once = np.unique(flat).size == flat.size or flat.size > self._dealt.size
            _expect(once, "a shard goes to two learners though there are enough")
            np.add.at(self._dealt, flat, 1)
            even = self._dealt.max() - self._dealt.min() <= 1
            _expect(even, "a shard is dealt again before all were dealt")

    def _updated(self, event: events.UpdatesReceived) -> None:
        if event.cycle != self._cycle:
            return
        for place, key in enumerate(_keys(event)):
            entry = self._open.get(key)
            if entry is not None and not entry.closed:
                entry.visits = None if event.refused else int(event.visits[place])
                entry.closed = True

    def _withdrawn(self, command: commands.Withdraw) -> None:
        for key in _keys(command) if command.cycle == self._cycle else ():
            if key in self._open:
                self._open[key].closed = True

    def _averaged(self, command: commands.Aggregate) -> None:
        keys, booked = _keys(command), 0.0
        _expect(len(set(keys)) == len(keys), "an update counts twice")
        for key, weight in zip(keys, command.weights.tolist(), strict=True):
            entry = self._open.get(key)
            _expect(entry is not None and entry.visits is not None, f"{key} counts, and never came")
            assert entry is not None
            assert entry.visits is not None
            done = min(entry.visits, entry.planned) / entry.planned
            _expect(np.isclose(weight, entry.samples * done), f"{key} weighs {weight:g}")
            booked += entry.samples * done
        share = booked / command.weights.sum() if keys else 1.0
        _expect(abs(share - 1.0) < 1e-9, "shares of the machine's weights do not sum to one")
        missing = [key for key, entry in self._open.items() if not entry.closed]
        _expect(not missing, f"what {missing} had to do is neither in nor dropped")
        came = {key for key, entry in self._open.items() if entry.visits}
        _expect(came == set(keys) or not self._open, "an update that came does not count")
        self._open = {}

    def _ended(self, _: commands.Finish) -> None:
        self._finished, self._open = True, {}


def _keys(named: Any) -> list[tuple[int, int]]:
    return list(zip(named.learners.tolist(), named.attempts.tolist(), strict=True))


def _expect(holds: object, what: str) -> None:
    if not holds:
        raise InvariantError(what)


def _nothing(books: Invariants, said: Any) -> None:
    """Nothing to write down."""


_BOOKED: dict[type, Callable[[Invariants, Any], None]] = {
    events.TaskSubmitted: Invariants._submitted,
    events.LearnersJoined: Invariants._joined,
    events.LearnersLeft: Invariants._left,
    events.UpdatesReceived: Invariants._updated,
    commands.Dispatch: Invariants._dispatched,
    commands.Withdraw: Invariants._withdrawn,
    commands.Aggregate: Invariants._averaged,
    commands.Finish: Invariants._ended,
}


def run_checked(run: Callable[[Callable[[Step], object]], object]) -> Sequence[Step]:
    """The steps of a run that is given a watcher; `BrokenError` if one breaks what must hold."""
    books = Invariants()
    run(books.check)
    books.check_end()
    return books.steps
