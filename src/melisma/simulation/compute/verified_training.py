"""Training of simulated learners, honest and greedy ones, with the checks of live runs.

A greedy learner presents states that fit its update and its commitment: what it has trained, and
its last state for what it has not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import nan
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError
from melisma.fleet.rng import generator
from melisma.fleet.task import Task
from melisma.learning.batched import TrainingWork, train_one
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import Trainer, TrainingResult, TrainingState
from melisma.learning.verification.loss_gap import (
    choose_rows,
    filter_visits,
    loss_gap,
    sample_count,
)
from melisma.learning.verification.reexecution import repeat_segment
from melisma.learning.verification.segments import SegmentRecorder, segment_edges
from melisma.learning.verification.update_check import (
    AssignedTraining,
    ReportedTraining,
    SegmentChecker,
    UpdateChecks,
    require_repeatable,
)
from melisma.simulation.faults import Greed

TRAINED_PART: Final[Mapping[str, float]] = {"speed": 0.5, "ask": 0.5, "less": 0.3}
"""What greedy learners train of the work that they report."""
NOISE: Final = 0.01
"""The standard deviation of noise, in that of each array."""


@dataclass(frozen=True, eq=False)
class VerifiedWork:
    """The work of a learner in a cycle, the segment that is checked, and the work to copy."""

    learner: int
    cycle: int
    segment: int
    work: TrainingWork
    copied: TrainingWork | None = None


class VerifiedTraining:
    """Trains learners one by one as `greedy` says, and checks their updates."""

    def __init__(self, task: Task, trainer: Trainer) -> None:
        self._task, self._trainer = task, trainer
        self.greedy: Mapping[int, Greed] = {}
        self._checker: SegmentChecker | None = None
        if task.verify == "audit":
            self._resumable = require_repeatable(task, trainer)
            self._checker = SegmentChecker(self._resumable, self._resumable.trainable())

    def train(self, item: VerifiedWork, start: Arrays) -> tuple[TrainingResult, UpdateChecks]:
        """Return the update of a learner, and what its checks show."""
        recorder = SegmentRecorder()
        trained = self._train(item, start, recorder)
        if self._task.verify == "off":
            return trained, UpdateChecks()
        checks = self._filter(item, start, trained)
        if self._checker is None or item.segment < 0:
            return trained, checks
        batches = item.work.batches
        segment = min(item.segment, len(segment_edges(batches)) - 1)
        reported = ReportedTraining(
            batches=batches,
            digests=recorder.digests(batches, trained.parameters),
            segment=segment,
            states=recorder.states(batches, segment),
            update=trained.parameters,
        )

        def all_batches() -> Iterator[Split]:
            return item.work.iterate(self._task.batch, item.work.rng())

        found = self._checker.check(reported, AssignedTraining(start, all_batches, item.work.rng))
        return trained, replace(
            checks,
            verdict=found.verdict,
            reason=found.reason,
            visits=checks.visits + found.visits,
        )

    def _train(
        self, item: VerifiedWork, start: Arrays, recorder: SegmentRecorder
    ) -> TrainingResult:
        greed, work = self.greedy.get(item.learner, ""), item.work
        if not greed and item.segment < 0:
            return train_one(self._task, self._trainer, start, work)
        if greed == "noise":
            work = replace(work, batches=0)
        elif greed == "copy":
            work = item.copied or replace(work, batches=0)
        elif greed:
            work = replace(work, batches=max(1, int(TRAINED_PART[greed] * work.batches)))
        if self._checker is None:
            trained = train_one(self._task, self._trainer, start, work)
            parameters = trained.parameters
        else:
            state = self._train_recorded(start, work, recorder)
            parameters, trained = state.parameters, TrainingResult(state.parameters, 0, nan)
        if greed == "noise":
            parameters = self._add_noise(item, start)
        if greed and self._checker is not None:
            recorder.fill(item.work.batches, replace(state, parameters=parameters))
        visits = sum(map(len, item.work.iterate(self._task.batch, item.work.rng())))
        loss = trained.loss if self._checker is None else state.loss_sum / max(state.visits, 1)
        return TrainingResult(parameters, visits, loss)

    def _train_recorded(
        self, start: Arrays, work: TrainingWork, recorder: SegmentRecorder
    ) -> TrainingState:
        rng = work.rng()

        def batches() -> Iterator[Split]:
            for number, batch in enumerate(work.iterate(self._task.batch, rng)):
                recorder.record(number, self._resumable)
                yield batch
            recorder.record(work.batches, self._resumable)

        return repeat_segment(self._resumable, start, batches(), rng)

    def _add_noise(self, item: VerifiedWork, start: Arrays) -> dict[str, NDArray[Any]]:
        rng = generator(self._task.seed, "greedy noise", item.cycle, item.learner)
        return {
            name: np.asarray(
                array + NOISE * array.std() * rng.standard_normal(array.shape), array.dtype
            )
            if array.dtype.kind == "f"
            else array
            for name, array in start.items()
        }

    def _filter(self, item: VerifiedWork, start: Arrays, trained: TrainingResult) -> UpdateChecks:
        """Return the statistic of the first filter."""
        work, rows = item.work, item.work.rows
        count = sample_count(trained.visits)
        if not count or rows is None or not trained.visits:
            return UpdateChecks()
        rng = generator(self._task.seed, "loss gap", item.cycle, item.learner)
        is_given = np.zeros(len(work.samples), np.bool_)
        is_given[rows] = True
        given, other = np.flatnonzero(is_given), np.flatnonzero(~is_given)
        samples = [
            work.samples.take(those[choose_rows(count, those.size, rng)])
            for those in (given, other)
        ]
        try:
            gap = loss_gap(self._trainer, start, trained.parameters, *samples)
        except DataError:
            gap = nan
        return UpdateChecks(gap=gap, visits=filter_visits(count))
