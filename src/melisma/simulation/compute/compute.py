"""The computation of simulated learners: nothing, where only time matters, or real training.

Training starts when the updates to average are known, so that updates that do not count are not
computed.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import ceil, isfinite
from typing import Protocol

import numpy as np

from melisma.cycle.late_work import MAX_LATE_CYCLES
from melisma.cycle.rounds import MAX_EMPTY_CYCLES
from melisma.errors import DataError, MelismaError, MelismaWarning
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.rng import Generators
from melisma.learning import batched
from melisma.learning.aggregation import RunningMean, apply_late_changes
from melisma.learning.data.datasets import Split
from melisma.learning.loaded_task import LoadedTask
from melisma.learning.parameters import Arrays, Layout
from melisma.learning.trainer import Trainer, TrainingResult
from melisma.learning.trainer_factory import one_thread, trainer_cores, trainer_for, use_one_thread
from melisma.learning.user_code import describe_error
from melisma.simulation.compute.fork_pool import ForkPool, can_fork
from melisma.simulation.compute.sample_index import SampleIndex
from melisma.simulation.compute.work_record import CycleWork, WeightedWork

# A cycle is summed in up to this many parts, independent of the number of processes, as
# floating-point sums depend on the order of addition.
MAX_PARTS = 16
LOSSES_BYTES = 1 << 20  # room for the losses of a part in shared memory
ScoreValues = tuple[float | None, float | None]


@dataclass(frozen=True, eq=False)
class WorkPart:
    """The work of some learners, and the share of each in the mean."""

    work: CycleWork
    shares: Floats


class ComputeBackend(Protocol):
    """The computation of simulated learners, and the model that results."""

    def average(self, cycle: int, parts: Sequence[WeightedWork]) -> Floats:
        """Set the model to the weighted mean of updates; return the losses of this cycle's.

        Parts are by cycle. Updates of earlier cycles began with other parameters: their changes are
        applied to the present ones. Without parts the model stays.
        """

    def score(self) -> ScoreValues:
        """Return loss and accuracy of the model, None where unknown."""

    def close(self) -> None:
        """Release processes and memory."""


class TimingOnly:
    """Computes nothing: only time matters."""

    def average(self, cycle: int, parts: Sequence[WeightedWork]) -> Floats:  # noqa: ARG002
        """Return no losses."""
        return np.empty(0)

    def score(self) -> ScoreValues:
        """Return None twice."""
        return None, None

    def close(self) -> None:
        """Do nothing."""


class RealTraining:
    """Trains on real data, one learner after another or many in one batched computation."""

    def __init__(
        self, loaded: LoadedTask, index: SampleIndex, names: Sequence[str], *, one_by_one: bool
    ) -> None:
        self._names, self._index, self._one_by_one = names, index, one_by_one
        self._task, self._trainer = loaded.task, loaded.trainer
        self._train_data, self._test_data = loaded.data.train, loaded.data.test
        if not len(self._test_data):
            self._test_data = _take(self._train_data, index.held_back)
        self.parameters: Arrays = loaded.trainer.initial()
        self._layout = Layout.from_arrays(self.parameters)
        self._starts: dict[int, Arrays] = {}  # the parameters that recent cycles began with
        self._own_trainers: dict[int, Trainer] = {}
        self._cycles_without_update = 0
        self._learners_per_process = 1 if one_by_one else batched.STACK_LEARNERS
        self._pool: ForkPool[Arrays, WorkPart, tuple[RunningMean, Floats]] | None = None

    def average(self, cycle: int, parts: Sequence[WeightedWork]) -> Floats:
        """Train, and average in double precision, in the order of learners; return the losses."""
        total = sum(part.weights.sum() for part in parts)
        mean, losses = RunningMean(self._layout), np.empty(0)
        if self._task.late == "carry":
            self._starts[cycle] = self.parameters
            # An update that arrives after its last cycle has closed joins the average after that.
            self._starts.pop(cycle - MAX_LATE_CYCLES - 2, None)
        if not parts:
            return losses
        late = []
        for part in parts:
            shares = part.weights / total
            if part.record.cycle == cycle:
                losses = self._train_weighted(mean, part, self.parameters, shares)
            else:
                start, before = self._starts[part.record.cycle], mean.excluded_share
                self._train_weighted(mean, part, start, shares)
                late.append((float(shares.sum()) - (mean.excluded_share - before), start))
        self._check_mean(mean, cycle, sum(part.learners.size for part in parts))
        if mean:
            late = [(share / (1 - mean.excluded_share), start) for share, start in late]
            self.parameters = apply_late_changes(mean.result(), self.parameters, late)
        return losses

    def _train_weighted(
        self, mean: RunningMean, part: WeightedWork, start: Arrays, shares: Floats
    ) -> Floats:
        """Train one cycle's work from its start and add it to the mean; return the losses."""
        order = np.argsort(part.learners)
        work = part.record.of(part.learners[order], part.attempts[order])
        split = _split_evenly(
            order.size, min(ceil(order.size / self._learners_per_process), MAX_PARTS)
        )
        pool = self._pool_for(len(split))
        parts = (WorkPart(work.take(rows), shares[order][rows]) for rows in split)
        train = partial(self._train_part, start)
        results = map(train, parts) if pool is None else pool.map(start, parts)
        losses = np.empty(order.size)
        for rows, (part_mean, loss) in zip(split, results, strict=True):
            mean.merge(part_mean)
            losses[order[rows]] = loss
        return losses

    def _check_mean(self, mean: RunningMean, cycle: int, updates: int) -> None:
        """Warn if updates are not finite; raise `DataError` if none was for several cycles."""
        if mean.excluded:
            warnings.warn(
                f"cycle {cycle}: {mean.excluded} of {updates} updates hold numbers that are "
                "not finite, and are left out of the mean; optimizer.lr may be too large",
                MelismaWarning,
                stacklevel=3,
            )
        self._cycles_without_update = 0 if mean else self._cycles_without_update + 1
        if self._cycles_without_update == MAX_EMPTY_CYCLES:
            # Live runs refuse such updates, so that the cycle is empty.
            raise DataError(
                f"{MAX_EMPTY_CYCLES} cycles in a row no update was finite, so the model did not "
                "change; optimizer.lr may be too large"
            )

    def _pool_for(
        self, parts: int
    ) -> ForkPool[Arrays, WorkPart, tuple[RunningMean, Floats]] | None:
        """Return processes that train, if there is work for several and forking is safe."""
        cores = trainer_cores(self._trainer)
        # The state of optimisers must stay in one process.
        alone = parts == 1 or cores == 1 or self._task.optimizer.keep
        if self._pool is None and not alone and can_fork():
            buffer_bytes = RunningMean(self._layout).nbytes + LOSSES_BYTES
            self._pool = ForkPool(self._train_part, min(cores, parts), use_one_thread, buffer_bytes)
        return None if alone else self._pool

    def _train_part(self, start: Arrays, part: WorkPart) -> tuple[RunningMean, Floats]:
        mean, losses = RunningMean(self._layout), np.empty(part.shares.size)
        learners, most = part.shares.size, batched.SHORT_WORK_FACTOR * batched.STACK_LEARNERS
        for block in _split_evenly(learners, ceil(learners / most)):
            for result in self._train_block(part.work.take(block), start):
                rows = block[result.indices]
                mean.add(part.shares[rows], result.parameters)
                losses[rows] = result.loss
                # Free the memory now, so that the next result reuses it while it is cached.
                del result
        return mean, losses

    def _train_block(self, work: CycleWork, start: Arrays) -> Iterator[batched.BatchedResults]:
        generators = Generators(self._task.seed, "train", work.cycle, work.learners)
        works = [self._learner_work(work, generators, *each) for each in enumerate(work.shards)]
        alone = self._one_by_one or self._task.optimizer.keep
        if not alone and batched.can_train_together(self._task, self._trainer, works):
            yield from self._train_batched(work, start, works)
            return
        # As in live learners: threads that share small steps mostly wait for each other.
        with one_thread() if alone else nullcontext():
            for row, learner_work in enumerate(works):
                trained = self._train_one(work, row, start, learner_work)
                yield batched.BatchedResults.from_one(row, trained)

    def _learner_work(
        self, work: CycleWork, generators: Generators, row: int, shards: Ints
    ) -> batched.TrainingWork:
        samples = self._index.samples(int(work.learners[row]), shards)
        batches = int(work.batches[row])
        # Extended training goes on beyond the planned passes.
        needed = ceil(batches / ceil(len(samples) / self._task.batch))
        return batched.TrainingWork(
            self._train_data,
            max(int(work.passes[row]), needed),
            partial(generators.get, row),
            batches,
            samples,
        )

    def _train_batched(
        self, work: CycleWork, start: Arrays, works: list[batched.TrainingWork]
    ) -> Iterator[batched.BatchedResults]:
        try:
            yield from batched.train_many(self._task, self._trainer, start, works)
        except Exception as error:
            # Training one by one raises an error that names the learner.
            for row, learner_work in enumerate(works):
                self._train_one(work, row, start, learner_work)
            raise DataError(
                f"cycle {work.cycle} could not be trained in one batch: {describe_error(error)}; "
                'learners one by one can: use simulation.work = "train"'
            ) from error

    def _train_one(
        self, work: CycleWork, row: int, start: Arrays, learner_work: batched.TrainingWork
    ) -> TrainingResult:
        learner = int(work.learners[row])
        with _user_code(f"{self._names[learner]} could not train in cycle {work.cycle}"):
            return batched.train_one(self._task, self._trainer_of(learner), start, learner_work)

    def _trainer_of(self, learner: int) -> Trainer:
        """Return the trainer of a learner: its own if it keeps the state of its optimiser."""
        if not self._task.optimizer.keep:
            return self._trainer
        if learner not in self._own_trainers:
            self._own_trainers[learner] = trainer_for(self._task)
        return self._own_trainers[learner]

    def score(self) -> ScoreValues:
        """Return loss and accuracy on the test samples, or on those that devices hold back."""
        with _user_code("the model could not be scored"):
            score = self._trainer.score(self.parameters, self._test_data)
        return _finite_or_none(score.loss), _finite_or_none(score.accuracy)

    def close(self) -> None:
        """End the processes that trained."""
        if self._pool is not None:
            self._pool.close()


@contextmanager
def _user_code(problem: str) -> Iterator[None]:
    """Raise `DataError` with the problem and its cause where code of the user's raises."""
    try:
        yield
    except MelismaError:
        raise
    except Exception as error:
        raise DataError(f"{problem}: {describe_error(error)}") from error


def _split_evenly(count: int, parts: int) -> list[Ints]:
    """Return the numbers below `count` in parts of about equal size."""
    return np.array_split(np.arange(count), parts)


def _take(split: Split, samples: Ints) -> Split:
    return Split(split.samples[samples], split.labels[samples])


def _finite_or_none(value: float) -> float | None:
    return value if isfinite(value) else None
