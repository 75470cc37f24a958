"""Invariants of shards: which learners get which shards, and when.

Every shard is dealt before any is dealt again, none twice to one learner. No shard is trained under
two assignments of a cycle, unless more are wanted than exist: copies are dealt only when all shards
were, and never by an extension. A shard is handed on only if the learner that had it does not train
it any more; while there are shards to hand on, no request stays open and none is answered with
others. Shards that no learner trained are dealt first in the next cycle, and those of a late
update that is lost from then on. Extensions have as many shards as were requested, at most.
"""

import numpy as np

from melisma.cycle import commands, events
from melisma.fleet.array_types import Ints
from melisma.fleet.task import Task
from melisma.simulation.invariants.assignment_records import (
    AssignmentRecord,
    AssignmentRecords,
    assignment_keys,
)
from melisma.simulation.invariants.violations import InvariantError, expect


class ShardInvariants:
    """The shards of one run, and the checks of where they go."""

    def __init__(self, task: Task, shard_samples: Ints, records: AssignmentRecords) -> None:
        self._task, self._records = task, records
        self._samples = shard_samples
        self._local_samples: dict[int, Ints] = {}
        self._deals: Ints = np.zeros(shard_samples.size, np.int64)  # of each shard
        self._dealt_now: set[int] = set()  # shards of the deck dealt in this cycle
        self._returned: set[int] = set()  # shards to be dealt first
        self._last_dealt: dict[int, int] = {}  # cycle by shard

    def add_local(self, event: events.LearnersJoined) -> None:
        """Record the shards on the devices."""
        rows = zip(event.learners.tolist(), event.local_shard_samples, strict=False)
        self._local_samples.update(rows)

    def begin_cycle(self, shards: set[int]) -> None:
        """Check the shards that are dealt at the beginning of a cycle."""
        self._dealt_now = set()
        self._check_returned(shards)

    def dispatch(self, command: commands.Dispatch) -> None:
        """Record assignments and check their shards."""
        numbers = set(command.shards.values.tolist())
        self._returned -= numbers
        self._mark_dealt(numbers)
        open_records = self._records.open
        rows = zip(assignment_keys(command), command.shards, command.passes.tolist(), strict=True)
        for (learner, attempt), shards, passes in rows:
            expect(learner not in open_records, f"learner {learner} is given work twice")
            open_records[learner] = AssignmentRecord({}, {}, passes)
            self._give(learner, attempt, shards)
        self._check_deal(command.shards.values)

    def extend(self, command: commands.Extend) -> None:
        """Record extensions and check their shards."""
        for (learner, attempt), shards in zip(
            assignment_keys(command), command.shards, strict=True
        ):
            record = self._records.open.get(learner)
            if record is None or record.closed:
                raise InvariantError(f"learner {learner} is extended without open work")
            expect(attempt > max(record.samples), f"attempt {attempt} of {learner} is not new")
            record.requested -= shards.size
            expect(record.requested >= 0, f"learner {learner} gets more than it requested")
            self._give(learner, attempt, shards)
        new = np.setdiff1d(command.shards.values, command.handed_on)
        self._check_deal(new)
        if self._deals.size:
            self._check_handed_on(command, set(new.tolist()))

    def _check_handed_on(self, command: commands.Extend, new: set[int]) -> None:
        """Check that shards are handed on before new ones are dealt."""
        handed_on = set(command.handed_on.tolist())
        expect(handed_on <= self._dealt_now, "a shard is handed on that was not dealt")
        expect(not new & self._dealt_now, "a shard of an extension was already dealt")
        self._check_returned(new)
        self._returned -= new
        self._mark_dealt(new)
        for learner, shards in zip(command.learners.tolist(), command.shards, strict=True):
            if new & set(shards.tolist()):
                left = sorted(self._records.to_hand_on() - self._records.open[learner].had)
                expect(not left, f"{learner} gets other shards before {left} are handed on")

    def _give(self, learner: int, attempt: int, shards: Ints) -> None:
        """Record shards that a learner is given."""
        record, numbers = self._records.open[learner], set(shards.tolist())
        expect(len(numbers) == shards.size > 0, f"learner {learner} gets a shard twice")
        expect(not record.had & numbers, f"learner {learner} gets a shard again")
        record.had |= numbers
        most, total = self._task.max_shards, len(record.all_shards) + len(numbers)
        expect(most is None or total <= most, f"learner {learner} gets {total} shards")
        sizes = self._local_samples[learner] if self._local_samples else self._samples
        record.samples[attempt] = int(sizes[shards].sum())
        record.shards[attempt] = numbers
        if self._deals.size and (attempt > 1 or len(self._dealt_now) < self._deals.size):
            self._check_alone(learner, numbers)

    def _check_alone(self, learner: int, numbers: set[int]) -> None:
        """Check that no other learner trains, or has trained, these shards in this cycle."""
        for other, record in self._records.open.items():
            if other != learner and (not record.closed or record.visits):
                shared = sorted(numbers & record.all_shards)
                expect(not shared, f"{learner} and {other} both train shards {shared}")

    def _mark_dealt(self, shards: set[int]) -> None:
        """Record that shards were dealt in this cycle."""
        self._dealt_now |= shards
        self._last_dealt |= dict.fromkeys(shards, self._records.cycle)

    def _check_deal(self, shards: Ints) -> None:
        """Check that every shard is dealt before any is dealt again."""
        if not self._deals.size:
            return
        if shards.size > self._deals.size:
            expect(np.unique(shards).size == self._deals.size, "a shard is left out")
            return
        expect(np.unique(shards).size == shards.size, "a shard goes to two learners")
        np.add.at(self._deals, shards, 1)
        # With extension, shards that were not trained come again, and held ones first.
        even = self._deals.max() - self._deals.min() <= 1
        expect(even or self._task.extension, "a shard is dealt again before all were dealt")

    def _check_returned(self, shards: set[int]) -> None:
        """Check that shards that no learner trained come first among the shards to deal."""
        if not self._deals.size or not shards:
            return
        waiting = self._returned - self._dealt_now
        left = sorted(waiting - shards)
        come_first = waiting <= shards or shards <= waiting
        expect(come_first, f"shards {left} were not trained, and others come first")

    def check_open_requests(self) -> None:
        """Check that no request is open which shards of another learner could meet."""
        requests = {n: each for n, each in self._records.open.items() if each.requested > 0}
        if not requests or not self._deals.size:
            return
        free, most = self._records.to_hand_on(), self._task.max_shards
        for learner, record in requests.items():
            room = most is None or len(record.all_shards) < most
            if not record.closed and room:
                left = sorted(free - record.had)
                expect(not left, f"{learner} requested shards, and {left} are not handed on")

    def release(self, event: events.ShardsReleased) -> None:
        """Take shards from learners that will not get to them."""
        for learner, shards in zip(event.learners.tolist(), event.shards, strict=True):
            record = self._records.find_open(event.cycle, learner)
            if record is None or record.closed:
                continue
            for attempt, given in record.shards.items():
                taken = np.array(sorted(given & set(shards.tolist())), np.int64)
                record.shards[attempt] = given - set(taken.tolist())
                record.samples[attempt] -= int(self._samples[taken].sum())

    def return_untrained(self) -> None:
        """Record the shards of this cycle that no learner has trained, or may still train."""
        if self._task.extension and self._deals.size:
            self._returned |= self._records.to_hand_on()

    def return_late(self, cycle: int, shards: set[int]) -> None:
        """Record that late work does not cover these shards, if they were not dealt since."""
        if self._task.extension and self._deals.size:
            self._returned |= {each for each in shards if self._last_dealt[each] == cycle}
