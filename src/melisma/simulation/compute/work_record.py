"""The shards that learners were given in a cycle, until the updates to average are known."""

from dataclasses import dataclass, field

import numpy as np

from melisma.cycle import commands
from melisma.cycle.cache_index import EMPTY_CACHE
from melisma.cycle.late_work import MAX_LATE_CYCLES
from melisma.cycle.ragged import RaggedArray
from melisma.fleet.array_types import NO_INTS, Floats, Ints


@dataclass(frozen=True, eq=False)
class CycleWork:
    """The work of each learner in a cycle; `batches` are those that it trains in time.

    `segments` are those of the training that are checked, -1 for none. `everyone` is the work that
    this one is a part of.
    """

    cycle: int
    learners: Ints
    shards: RaggedArray
    passes: Ints
    batches: Ints
    segments: Ints
    everyone: "CycleWork | None" = None

    def take(self, rows: Ints) -> "CycleWork":
        """Return the work in these rows."""
        columns = (self.passes[rows], self.batches[rows], self.segments[rows], self.everyone)
        return CycleWork(self.cycle, self.learners[rows], self.shards.take(rows), *columns)


class WorkRecord:
    """All shards given in one cycle; `batches` by learner are set when updates arrive."""

    def __init__(self, cycle: int, learners: int) -> None:
        self.cycle = cycle
        self.batches = np.zeros(learners, np.int64)
        self.segments = np.full(learners, -1)
        self._passes = np.zeros(learners, np.int64)
        self._given: list[tuple[Ints, Ints, RaggedArray]] = []  # learners, attempts, shards
        self._released = EMPTY_CACHE  # (learner, shard)

    def add(self, learners: Ints, attempts: Ints, shards: RaggedArray, passes: Ints) -> None:
        """Record shards that learners were given, with the attempt of each learner."""
        self._passes[learners] = passes
        self._given.append((learners, attempts, shards))

    def unknown_rows(self, learners: Ints, attempts: Ints) -> Ints:
        """Return the rows of assignments that were not recorded yet."""
        unknown = np.ones(learners.size, np.bool_)
        for known, numbers, _ in self._given:
            recorded = np.zeros(self.batches.size, np.int64)
            recorded[known] = numbers
            unknown &= recorded[learners] != attempts
        return np.flatnonzero(unknown)

    def release(self, learners: Ints, shards: Ints) -> None:
        """Record that learners do not train these shards: pairs of a learner and a shard."""
        self._released = self._released.union(learners, shards)

    def of(self, learners: Ints, attempts: Ints) -> CycleWork:
        """Return the work of learners, ascending, with all shards up to the given attempts."""
        used = np.zeros(self.batches.size, np.int64)
        used[learners] = attempts
        owners, shards = [], []
        for members, nth, rows in self._given:
            chosen = np.flatnonzero(nth <= used[members])
            part = rows.take(chosen)
            owners.append(members[chosen][part.row_ids])
            shards.append(part.values)
        owner, values = np.concatenate(owners), np.concatenate(shards)
        if self._released.pairs.size:
            kept = ~self._released.contains(owner, values)
            owner, values = owner[kept], values[kept]
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=used.size)[learners]
        joined = RaggedArray(counts, values[order])
        columns = (self._passes[learners], self.batches[learners], self.segments[learners])
        return CycleWork(self.cycle, learners, joined, *columns)


@dataclass(frozen=True, eq=False)
class WeightedWork:
    """Updates of one cycle that are averaged, with their weights and visits.

    `steps` are empty unless the task normalises changes by them.
    """

    record: WorkRecord
    learners: Ints
    attempts: Ints
    weights: Floats
    visits: Ints
    steps: Ints = field(default_factory=lambda: NO_INTS)

    def take(self, rows: Ints) -> "WeightedWork":
        """Return the updates in these rows."""
        if rows.size == self.learners.size:
            return self
        columns = self.learners[rows], self.attempts[rows], self.weights[rows], self.visits[rows]
        return WeightedWork(
            self.record, *columns, self.steps[rows] if self.steps.size else self.steps
        )


class WorkRecords:
    """The work of recent cycles, as long as updates of them may still be averaged.

    Without `recording` no shards and batches are kept, as no learner trains on them.
    """

    def __init__(self, learners: int, *, recording: bool) -> None:
        self._learners, self._recording = learners, recording
        self._by_cycle: dict[int, WorkRecord] = {}

    def add(self, command: commands.Dispatch | commands.Extend | commands.Resend) -> None:
        """Record the shards that learners are given, and forget cycles that are too long ago."""
        if not self._recording:
            return
        if command.cycle not in self._by_cycle:
            oldest = command.cycle - MAX_LATE_CYCLES - 1
            known = {cycle: work for cycle, work in self._by_cycle.items() if cycle >= oldest}
            self._by_cycle = known | {command.cycle: WorkRecord(command.cycle, self._learners)}
        record, rows = self._by_cycle[command.cycle], np.arange(command.learners.size)
        if isinstance(command, commands.Resend):
            rows = record.unknown_rows(command.learners, command.attempts)
        record.add(
            command.learners[rows],
            command.attempts[rows],
            command.shards.take(rows),
            command.passes[rows],
        )

    def release(self, cycle: int, learners: Ints, shards: Ints) -> None:
        """Record that learners do not train these shards: pairs of a learner and a shard."""
        if self._recording:
            self._by_cycle[cycle].release(learners, shards)

    def set_batches(self, cycle: int, learners: Ints, batches: Ints) -> None:
        """Record the batches of updates that the machine accepts."""
        if self._recording and learners.size:
            self._by_cycle[cycle].batches[learners] = batches

    def challenge(self, cycle: int, learners: Ints, segments: Ints) -> None:
        """Record which segment of each training is checked."""
        if self._recording:
            self._by_cycle[cycle].segments[learners] = segments

    def updates_to_average(self, command: commands.Aggregate) -> list[WeightedWork]:
        """Return the work of all updates to average: this cycle's, then late ones by cycle."""
        late = command.late
        columns = command.learners, command.attempts, command.weights, command.visits, command.steps
        parts = [(command.cycle, columns)]
        for cycle in np.unique(late.cycles).tolist():
            rows = late.cycles == cycle
            steps = late.steps[rows] if late.steps.size else NO_INTS
            visits = late.visits[rows]
            columns = late.learners[rows], late.attempts[rows], late.weights[rows], visits, steps
            parts.append((cycle, columns))
        return [
            WeightedWork(self._record_of(cycle), *columns)
            for cycle, columns in parts
            if columns[0].size
        ]

    def _record_of(self, cycle: int) -> WorkRecord:
        return self._by_cycle[cycle] if self._recording else WorkRecord(cycle, 0)
