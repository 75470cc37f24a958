"""The assignments of all cycles, and the shards in their plans.

A plan grows by extensions. Shards leave it when the learner releases them, when its update does not
cover the extension that brought them (`cycle.coverage`), or when they are handed on after its work
was lost.
"""

from collections.abc import ItemsView
from typing import Any

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.local_shards import ShardSizes
from melisma.cycle.ragged import RaggedArray
from melisma.fleet.array_types import Ints
from melisma.runs.assignments import NO_ASSIGNMENTS, Assignments, Status
from melisma.runs.given_shards import GivenShards

WithAttempts = events.UpdatesReceived | commands.Dispatch | commands.Withdraw | commands.Aggregate
# Shards of an assignment with one of these statuses may be handed on.
LOST: tuple[Status, ...] = ("left", "dropped", "refused")


class PlannedWork:
    """Assignments by cycle; without `extension` no shards are remembered, as none will move."""

    def __init__(self, sizes: ShardSizes, *, extension: bool) -> None:
        self.sizes = sizes
        self._extension = extension
        self._work: dict[int, Assignments] = {}
        self._given: dict[int, list[GivenShards]] = {}  # in the order of giving

    def __getitem__(self, number: int) -> Assignments:
        return self._work.get(number, NO_ASSIGNMENTS)

    def items(self) -> ItemsView[int, Assignments]:
        """Return numbers and assignments of cycles."""
        return self._work.items()

    def update(self, number: int, rows: Ints, **values: Any) -> None:
        """Set values of rows."""
        if rows.size:
            self._work[number] = self[number].update(rows, **values)

    def end(self, number: int, rows: Ints, status: Status, reason: int, at_s: Any) -> None:
        """End those rows that are still in training."""
        if rows.size:
            self._work[number] = self[number].end(rows, status, reason, at_s)

    def find(self, message: WithAttempts) -> tuple[Ints, Ints]:
        """Return the rows of the known assignments in a message, and their indices there."""
        rows = self[message.cycle].find(message.learners, message.attempts)
        indices = np.flatnonzero(rows >= 0)
        return rows[indices], indices

    def find_training(self, number: int, learners: Ints) -> tuple[Ints, Ints]:
        """Return the rows of learners at work, and their indices in `learners`."""
        rows = self[number].latest_rows(learners)
        indices = np.flatnonzero(rows >= 0)
        indices = indices[self[number].with_status("training")[rows[indices]]]
        return rows[indices], indices

    def dispatch(self, command: commands.Dispatch, new: Assignments) -> None:
        """Add the assignments of a command; one that is known is replaced."""
        number, before = command.cycle, self[command.cycle]
        if len(before):
            self._forget(number, self.find(command)[0])
        self._work[number] = before.merge(new) if len(before) else new
        if self._extension:
            shards = command.learners, command.attempts, command.shards
            self._give(number, *shards, by_extension=False)

    def extend(self, command: commands.Extend) -> None:
        """Add shards to assignments; those handed on leave the plan that they were in."""
        self._hand_on(command)
        work = self[command.cycle]
        rows, known = self.find_training(command.cycle, command.learners)
        later = command.attempts[known] > work.attempt[rows]
        rows, known = rows[later], known[later]
        learners, attempts = command.learners[known], command.attempts[known]
        shards = command.shards.take(known)
        self.update(
            command.cycle,
            rows,
            attempt=attempts,
            extensions=attempts - work.first_attempt[rows],
            shards=work.shards[rows] + shards.counts,
            samples=work.samples[rows] + self.sizes.samples_in(learners, shards),
        )
        self._give(command.cycle, learners, attempts, shards, by_extension=True)

    def release(self, event: events.ShardsReleased) -> None:
        """Remove released shards from the plans of learners at work."""
        rows, known = self.find_training(event.cycle, event.learners)
        learners, shards = event.learners[known], event.shards.take(known)
        for part, given in enumerate(self._shards(event.cycle)):
            indices = given.indices_of(learners, shards)
            current = self[event.cycle].find(*given.owners(indices))
            self._remove(event.cycle, part, indices[np.isin(current, rows)])

    def drop_unused(self, event: events.UpdatesReceived, rows: Ints, indices: Ints) -> None:
        """Remove extensions that updates do not cover from the plan."""
        work = self[event.cycle]
        unused = np.flatnonzero(event.attempts[indices] < work.attempt[rows])
        if not unused.size:
            return
        rows, learners = rows[unused], event.learners[indices][unused]
        attempts = event.attempts[indices][unused]
        for part, given in enumerate(self._shards(event.cycle)):
            indices = given.indices_between(learners, attempts, work.attempt[rows])
            self._remove(event.cycle, part, indices)
        extensions = attempts - work.first_attempt[rows]
        self.update(event.cycle, rows, attempt=attempts, extensions=extensions)

    def close(self, number: int) -> None:
        """Forget the dispatched shards of a cycle: late updates may only not cover extensions."""
        self._given[number] = [given.extensions() for given in self._shards(number)]

    def _hand_on(self, command: commands.Extend) -> None:
        """Remove shards from the plans of learners whose work was lost, each from one of them."""
        work, shards = self[command.cycle], command.handed_on
        for part, given in enumerate(self._shards(command.cycle) if shards.size else ()):
            indices = np.flatnonzero(np.isin(given.shards.values, shards))
            rows = work.find(*given.owners(indices))
            lost = np.flatnonzero(rows >= 0)
            lost = indices[lost[work.with_status(*LOST)[rows[lost]]]]
            found, first = np.unique(given.shards.values[lost], return_index=True)
            self._remove(command.cycle, part, lost[first])
            shards = np.setdiff1d(shards, found)

    def _shards(self, number: int) -> list[GivenShards]:
        return self._given.setdefault(number, [])

    def _give(
        self,
        number: int,
        learners: Ints,
        attempts: Ints,
        shards: RaggedArray,
        *,
        by_extension: bool,
    ) -> None:
        """Add a part, joined with those before it that are no larger: few parts remain."""
        given = GivenShards(learners, attempts, shards, np.full(learners.size, by_extension))
        parts = self._shards(number)
        while parts and parts[-1].shards.values.size <= given.shards.values.size:
            given = parts.pop().join(given)
        parts.append(given)

    def _forget(self, number: int, rows: Ints) -> None:
        """Forget the shards of assignments that are replaced."""
        work = self[number]
        above = work.first_attempt[rows] - 1
        for part, given in enumerate(self._shards(number) if rows.size else ()):
            replaced = given.indices_between(work.learner[rows], above, work.attempt[rows])
            self._given[number][part] = given.without(replaced)

    def _remove(self, number: int, part: int, indices: Ints) -> None:
        """Remove given shards from the plans of their assignments."""
        if not indices.size:
            return
        given, work = self._given[number][part], self[number]
        learners, attempts = given.owners(indices)
        single = RaggedArray(np.ones(indices.size, np.int64), given.shards.values[indices])
        samples = self.sizes.samples_in(learners, single)
        rows, owners = np.unique(work.find(learners, attempts), return_inverse=True)
        lost = np.bincount(owners, samples).astype(np.int64)
        shards = work.shards[rows] - np.bincount(owners)
        self.update(number, rows, samples=work.samples[rows] - lost, shards=shards)
        self._given[number][part] = given.without(indices)
