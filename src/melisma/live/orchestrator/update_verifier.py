"""Checks the updates of a live run, in a thread of its own, from their arrival on.

Commitments and revealed states are kept in memory: of updates that arrived before a restart of the
orchestrator, a challenge has no verdict.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from math import isnan, nan
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from melisma.cycle.commands import Dispatch
from melisma.cycle.events import VerifiedUpdates
from melisma.cycle.late_work import MAX_LATE_CYCLES
from melisma.errors import DataError
from melisma.fleet.rng import generator
from melisma.fleet.task import Task
from melisma.learning.batches import StreamChange
from melisma.learning.data.datasets import Split
from melisma.learning.data.shards import concatenate, decode_shard
from melisma.learning.parameters import Arrays
from melisma.learning.stream_log import GivenWork, replay_batches
from melisma.learning.trainer import Trainer
from melisma.learning.trainer_factory import trainer_for
from melisma.learning.verification.loss_gap import (
    choose_rows,
    filter_visits,
    loss_gap,
    sample_count,
)
from melisma.learning.verification.reexecution import Verdict
from melisma.learning.verification.segments import SegmentStates, segment_edges
from melisma.learning.verification.update_check import (
    AssignedTraining,
    CheckResult,
    ReportedTraining,
    SegmentChecker,
    UpdateChecks,
    require_repeatable,
)
from melisma.live.orchestrator.assignment_versions import AssignmentVersion, AssignmentVersions
from melisma.live.protocol import UpdateCommitment
from melisma.user_code import describe_error

Assignment = tuple[int, int, int]
"""Learner, cycle and attempt."""
FILTER_SHARDS: Final = 4  # of each kind


@dataclass(frozen=True, eq=False)
class ReceivedUpdate:
    """An update on disk, the parameters that its cycle began with, and the states that it reveals.

    Both are read when it is checked, as many may wait; the start is None if it is damaged.
    `revealed` are the states of the challenged segment; None without a challenge.
    """

    assignment: Assignment
    visits: int
    read: Callable[[], Arrays]
    read_start: Callable[[], Arrays | None]
    revealed: Mapping[str, NDArray[Any]] | None = None


@dataclass(frozen=True, eq=False)
class _LoadedUpdate:
    assignment: Assignment
    visits: int
    parameters: Arrays
    start: Arrays


class UpdateVerifier:
    """Checks updates of one task; `read_shard` returns the file of a shard, by its number."""

    def __init__(
        self, task: Task, shard_samples: Sequence[int], read_shard: Callable[[int], Path]
    ) -> None:
        self._task, self._samples, self._read_shard = task, shard_samples, read_shard
        self.given = AssignmentVersions()
        self.commitments: dict[Assignment, UpdateCommitment] = {}
        self.segments: dict[Assignment, int | None] = {}
        self._checks: dict[Assignment, Future[UpdateChecks]] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="verify")
        self._secret = secrets.randbits(64)

    def dispatch(self, command: Dispatch) -> None:
        """Record assignments, and forget commitments of long ago."""
        self.given.dispatch(command)
        oldest = command.cycle - MAX_LATE_CYCLES - 1
        for kept in (self.commitments, self.segments, self._checks):
            for assignment in [each for each in kept if each[1] < oldest]:
                del kept[assignment]

    def receive(self, update: ReceivedUpdate) -> None:
        """Begin to check an update that counts."""
        self._checks[update.assignment] = self._pool.submit(self._check, update)

    async def results(
        self, assignments: Sequence[Assignment], challenged: set[Assignment]
    ) -> VerifiedUpdates:
        """Return the checks of these updates; a challenge of an earlier process has no verdict."""
        found = list[UpdateChecks]()
        for assignment in assignments:
            check = self._checks.pop(assignment, None)
            if check is not None:
                found.append(await asyncio.wrap_future(check))
            else:
                unknown = assignment in challenged
                verdict = Verdict.IMPOSSIBLE if unknown else Verdict.UNCHECKED
                found.append(UpdateChecks(verdict))
            self.commitments.pop(assignment, None)
            self.segments.pop(assignment, None)
        rows = [n for n, check in enumerate(found) if check.verdict or not isnan(check.gap)]
        return VerifiedUpdates(
            np.array([assignments[row][0] for row in rows], np.int64),
            np.array([assignments[row][1] for row in rows], np.int64),
            np.array([int(found[row].verdict) for row in rows], np.int64),
            np.array([found[row].gap for row in rows], np.float64),
            float(sum(check.visits for check in found)),
            tuple(check.reason for check in found if check.verdict is Verdict.WRONG),
        )

    def close(self) -> None:
        """Let the thread end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    @cached_property
    def _trainer(self) -> Trainer:
        return trainer_for(self._task)

    @cached_property
    def _checker(self) -> SegmentChecker:
        trainer = require_repeatable(self._task, self._trainer)
        return SegmentChecker(trainer, trainer.trainable())

    def _check(self, update: ReceivedUpdate) -> UpdateChecks:
        try:
            start, parameters = update.read_start(), update.read()
        except (OSError, DataError):
            start, parameters = None, {}
        if start is None:
            # The average leaves it out; no learner is to blame.
            challenged = update.revealed is not None
            return UpdateChecks(Verdict.IMPOSSIBLE if challenged else Verdict.UNCHECKED)
        loaded = _LoadedUpdate(update.assignment, update.visits, parameters, start)
        return self._check_loaded(loaded, update.revealed)

    def _check_loaded(self, update: _LoadedUpdate, revealed: Arrays | None) -> UpdateChecks:
        versions = self.given.versions(*update.assignment[:2])
        checks = self._filter(update, versions)
        if revealed is None:
            return checks
        result = CheckResult(Verdict.IMPOSSIBLE, "it is not known which shards it was given")
        for version in versions:
            result = self._repeat(update, revealed, version)
            if result.verdict is Verdict.RIGHT:
                break
        if result.verdict is Verdict.WRONG and not all(v.complete for v in versions):
            result = replace(result, verdict=Verdict.IMPOSSIBLE)
        visits = checks.visits + result.visits
        return replace(checks, verdict=result.verdict, reason=result.reason, visits=visits)

    def _repeat(
        self, update: _LoadedUpdate, revealed: Arrays, version: AssignmentVersion
    ) -> CheckResult:
        """Check an update, if its learner was given these shards."""
        commitment, segment = self.commitments[update.assignment], self.segments[update.assignment]
        assert segment is not None
        try:
            works = self._works(commitment, version)
            self._check_counts(commitment, works, update.assignment)
            reported = ReportedTraining(
                batches=commitment.batches,
                digests=commitment.digests,
                segment=segment,
                states=SegmentStates.from_arrays(revealed),
                update=update.parameters,
                device=commitment.environment.rpartition(" ")[2],
            )
            assigned = AssignedTraining(
                update.start,
                partial(self._batches, commitment, works, update.assignment, segment),
                partial(self._rng, update.assignment),
            )
            return self._checker.check(reported, assigned)
        except (OSError, MemoryError) as error:
            # Of this machine: the learner is not to blame.
            return CheckResult(Verdict.IMPOSSIBLE, f"it cannot be repeated here: {error}")
        except DataError as error:
            return CheckResult(Verdict.WRONG, str(error))
        except Exception as error:  # noqa: BLE001 - code of the user, with states of a learner
            return CheckResult(Verdict.WRONG, f"it cannot be repeated: {describe_error(error)}")

    def _works(self, commitment: UpdateCommitment, version: AssignmentVersion) -> list[GivenWork]:
        """Return the work of each instruction that a learner says that it trained."""
        if unknown := [n for n in commitment.attempts if n not in version.parts]:
            raise DataError(f"it trained work {unknown[0]}, which it was not given")
        parts = [version.parts[attempt] for attempt in commitment.attempts]
        return [
            GivenWork(part.passes, part.shards, [self._samples[shard] for shard in part.shards])
            for part in parts
        ]

    def _rng(self, assignment: Assignment) -> np.random.Generator:
        learner, cycle, _ = assignment
        return generator(self._task.seed, "train", cycle, learner)

    def _rows(
        self, commitment: UpdateCommitment, works: Sequence[GivenWork], assignment: Assignment
    ) -> Iterator[Split]:
        """Yield the shards and rows of all batches."""
        changes = [StreamChange(c.batches, c.announced, c.arrived) for c in commitment.changes]
        batches = replay_batches(
            works,
            changes,
            self._task.batch,
            self._rng(assignment),
            repeat=self._task.extension,
        )
        return islice(batches, commitment.batches)

    def _check_counts(
        self, commitment: UpdateCommitment, works: Sequence[GivenWork], assignment: Assignment
    ) -> None:
        """Raise `DataError` unless batches and visits are those that were reported."""
        batches = visits = 0
        for rows in self._rows(commitment, works, assignment):
            batches, visits = batches + 1, visits + len(rows)
        if (batches, visits) != (commitment.batches, commitment.visits):
            raise DataError(
                f"it reports {commitment.visits} visits in {commitment.batches} batches; its "
                f"shards give {visits} in {batches}"
            )

    def _batches(
        self,
        commitment: UpdateCommitment,
        works: Sequence[GivenWork],
        assignment: Assignment,
        segment: int,
    ) -> Iterator[Split]:
        """Yield all batches; samples are read for those of the segment only."""
        first, last = segment_edges(commitment.batches)[segment]
        for number, rows in enumerate(self._rows(commitment, works, assignment)):
            is_used = first <= number < last
            yield self._read_rows(rows) if is_used else Split(rows.samples[:0], rows.labels[:0])

    def _read_rows(self, rows: Split) -> Split:
        """Return the samples of rows, given by shard and row."""
        parts, places = list[Split](), list[NDArray[np.int64]]()
        for shard in np.unique(rows.samples).tolist():
            chosen = np.flatnonzero(rows.samples == shard)
            parts.append(self._read(shard).take(rows.labels[chosen]))
            places.append(chosen)
        order = np.argsort(np.concatenate(places), kind="stable")
        return concatenate(parts).take(order)

    def _read(self, shard: int) -> Split:
        return decode_shard(self._read_shard(shard).read_bytes())

    def _filter(self, update: _LoadedUpdate, versions: Sequence[AssignmentVersion]) -> UpdateChecks:
        """Return the statistic of the first filter."""
        count = sample_count(update.visits)
        shards = sorted({s for v in versions for part in v.parts.values() for s in part.shards})
        others = sorted({*range(len(self._samples))} - {*shards})
        if not count or not shards or not others:
            return UpdateChecks()
        rng = np.random.default_rng((self._secret, *update.assignment))
        try:
            samples = [self._choose_samples(numbers, count, rng) for numbers in (shards, others)]
            gap = loss_gap(self._trainer, update.start, update.parameters, *samples)
        except Exception:  # noqa: BLE001 - code of the user, or a disk of this machine
            gap = nan
        return UpdateChecks(gap=gap, visits=filter_visits(count))

    def _choose_samples(self, shards: Sequence[int], count: int, rng: np.random.Generator) -> Split:
        chosen = rng.permutation(np.array(shards))[:FILTER_SHARDS].tolist()
        pool = concatenate([self._read(shard) for shard in chosen])
        return pool.take(choose_rows(count, len(pool), rng))
