"""Real training of simulated learners, and the mean of their updates.

Training starts when the updates to average are known, so that updates that do not count are not
computed.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import ceil, isfinite, nan

import numpy as np

from melisma.cycle.late_work import MAX_LATE_CYCLES
from melisma.cycle.rounds import MAX_EMPTY_CYCLES
from melisma.errors import DataError, MelismaError, MelismaWarning
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.rng import Generators
from melisma.learning import batched
from melisma.learning.aggregation import RunningMean, StartShares, add_parameters
from melisma.learning.data.datasets import Split
from melisma.learning.loaded_task import LoadedTask
from melisma.learning.own_aggregation import UpdateStack, find_aggregation
from melisma.learning.parameters import Arrays, Layout
from melisma.learning.server.server_optimizer import ServerOptimizer, trainable_arrays
from melisma.learning.step_normalization import normalize_changes, step_factors
from melisma.learning.trainer import Trainer, TrainingResult
from melisma.learning.trainer_factory import one_thread, trainer_cores, trainer_for, use_one_thread
from melisma.learning.update_guard import UpdateChanges, UpdateGuard, distances, norm_of
from melisma.simulation.compute.compute import Averaged, ScoreValues
from melisma.simulation.compute.fork_pool import ForkPool, can_fork
from melisma.simulation.compute.sample_index import SampleIndex
from melisma.simulation.compute.work_record import CycleWork, WeightedWork
from melisma.user_code import describe_error

# A cycle is summed in up to this many parts, independent of the number of processes, as
# floating-point sums depend on the order of addition.
MAX_PARTS = 16
LOSSES_BYTES = 1 << 20  # room for the losses of a part in shared memory


@dataclass(frozen=True, eq=False)
class WorkPart:
    """The work of some learners, the share of each in the mean, and the factor for its change."""

    work: CycleWork
    shares: Floats
    scales: Floats


@dataclass(frozen=True, eq=False)
class PartResult:
    """The mean of a part; of each of its learners the loss and the distance from the start.

    The distance of an update that is not finite is NaN; without a guard others are 0.
    """

    mean: RunningMean
    losses: Floats
    distances: Floats


class RealTraining:
    """Trains on real data, one learner after another or many in one batched computation."""

    trains = True

    def __init__(
        self, loaded: LoadedTask, index: SampleIndex, names: Sequence[str], *, one_by_one: bool
    ) -> None:
        self._names, self._index, self._one_by_one = names, index, one_by_one
        self._task, self._trainer = loaded.task, loaded.trainer
        self._train_data, self._test_data = loaded.data.train, loaded.data.test
        if not len(self._test_data):
            self._test_data = _take(self._train_data, index.held_back)
        self.parameters: Arrays = loaded.initial
        self._before: Arrays = self.parameters
        self._layout = Layout.from_arrays(self.parameters)
        self._guard = UpdateGuard(loaded.task.guard)
        self._aggregation = find_aggregation(loaded.task.aggregation)
        self._server = ServerOptimizer(loaded.task.server, trainable_arrays(loaded.trainer))
        self._starts: dict[int, Arrays] = {}  # the parameters that recent cycles began with
        self._own_trainers: dict[int, Trainer] = {}
        self._cycles_without_update = 0
        # As in live learners: threads that share small steps mostly wait for each other.
        self._small_steps = self._layout.size_bytes <= batched.MAX_STACKED_BYTES
        self._pool: ForkPool[Arrays, WorkPart, PartResult] | None = None
        # With `optimizer.keep`, the updates of this cycle: training again would change the state.
        self._trained: dict[tuple[int, int], TrainingResult] = {}

    def average(self, cycle: int, parts: Sequence[WeightedWork]) -> Averaged:
        """Train, and average in double precision, in the order of learners.

        The guard can decide only when all updates are known, and they do not fit in memory. If it
        reduces one, which is rare, all are trained once more with the scales known.
        """
        self._before = self.parameters
        if self._task.late == "carry":
            self._starts[cycle] = self.parameters
            # An update that arrives after its last cycle has closed joins the average after that.
            self._starts.pop(cycle - MAX_LATE_CYCLES - 2, None)
        if not parts:
            return Averaged(np.empty(0), [])
        weights = np.concatenate([part.weights for part in parts])
        steps = np.concatenate([part.steps for part in parts])
        if self._aggregation is None:
            factors = step_factors(weights, steps)
            losses, changes = self._average(cycle, parts, _split_by_part(factors, parts))
            scales, counted = self._judge(changes, weights, steps)
            if (scales * counted != factors)[~np.isnan(changes.distances)].any():
                self.parameters = self._before
                if scales.any():
                    self._average(cycle, parts, _split_by_part(scales * counted, parts))
        else:
            stack, losses, changes = self._stack_updates(cycle, parts)
            scales, counted = self._judge(changes, weights, steps)
            used = (scales > 0) & ~np.isnan(changes.distances)
            if used.any():
                rows = _by_learner(parts)
                rows = rows[used[rows]]
                updates = stack.take_scaled(rows, self._before, (scales * counted)[rows])
                self.parameters = self._aggregation(updates, weights[rows], self._before)
        if self.parameters is not self._before:
            self.parameters = self._server.apply(self._before, dict(self.parameters))
        self._trained.clear()
        return Averaged(losses, _split_by_part(scales, parts))

    def _judge(self, changes: UpdateChanges, weights: Floats, steps: Ints) -> tuple[Floats, Floats]:
        """Return the guard's scale of each update, and its factor for local steps.

        Updates that are not finite do not count, as live runs refuse them.
        """
        finite = ~np.isnan(changes.distances)
        scales, factors = np.ones(finite.size), np.ones(finite.size)
        if not finite.any():
            return scales, factors
        factors[finite] = step_factors(weights[finite], steps[finite] if steps.size else steps)
        counted = normalize_changes(changes.take(finite), weights[finite], factors[finite])
        scales[finite] = self._guard.scales(counted, norm_of(self._before))
        self._guard.record(counted, scales[finite])
        return scales, factors

    def _stack_updates(
        self, cycle: int, parts: Sequence[WeightedWork]
    ) -> tuple[UpdateStack, Floats, UpdateChanges]:
        """Train, with all updates in memory; return them, this cycle's losses, and all changes."""
        learners = sum(part.learners.size for part in parts)
        stack, found = UpdateStack(self._layout, learners), np.empty(learners)
        losses, first = np.empty(0), 0
        for part in parts:
            late = part.record.cycle != cycle
            start = self._starts[part.record.cycle] if late else self._before
            order, part_losses = np.argsort(part.learners), np.empty(part.learners.size)
            work = part.record.of(part.learners[order], part.attempts[order])
            for indices, result in self._train_blocks(work, start):
                rows = order[indices]
                stack.set(first + rows, result.parameters, start, self._before)
                found[first + rows] = self._distances(result, start)
                part_losses[rows] = result.loss
            losses = losses if late else part_losses
            first += part.learners.size
        finite = ~np.isnan(found)
        self._check_updates(int((~finite).sum()), cycle, learners, bool(finite.any()))
        visits = np.concatenate([part.visits for part in parts])
        return stack, losses, UpdateChanges(found, visits)

    def _average(
        self, cycle: int, parts: Sequence[WeightedWork], scales: list[Floats]
    ) -> tuple[Floats, UpdateChanges]:
        """Average with these scales; return the losses of this cycle's updates, and all changes.

        The distance of an update that is not finite, and left out, is NaN.
        """
        weights = [part.weights * (scale > 0) for part, scale in zip(parts, scales, strict=True)]
        total = sum(weight.sum() for weight in weights)
        mean, losses, groups = RunningMean(self._layout), np.empty(0), []
        found: list[Floats] = []
        for part, weight, scale in zip(parts, weights, scales, strict=True):
            late = part.record.cycle != cycle
            start = self._starts[part.record.cycle] if late else self._before
            result = self._train_weighted(mean, part, start, weight / total, scale)
            found.append(result.distances)
            losses = losses if late else result.losses
            counted = weight * ~np.isnan(result.distances) / total
            groups.append((counted.sum(), counted @ scale, start if late else None))
        updates = sum(part.learners.size for part in parts)
        self._check_updates(mean.excluded, cycle, updates, bool(mean))
        if mean:
            kept = 1 - mean.excluded_share
            shares = [StartShares(float(a / kept), float(b / kept), s) for a, b, s in groups]
            self.parameters = add_parameters(mean.result(), self._before, shares)
        visits = np.concatenate([part.visits for part in parts])
        return losses, UpdateChanges(np.concatenate(found), visits)

    def restore(self) -> None:
        """Return to the model before the latest average."""
        if self.parameters is not self._before:
            self.parameters = self._before
            self._guard.forget_last()
            self._server.undo()

    def _train_weighted(
        self,
        mean: RunningMean,
        part: WeightedWork,
        start: Arrays,
        shares: Floats,
        scales: Floats,
    ) -> PartResult:
        """Train one cycle's work from its start and add it to the mean."""
        order = np.argsort(part.learners)
        work = part.record.of(part.learners[order], part.attempts[order])
        split = _split_evenly(
            order.size, min(ceil(order.size / self._learners_per_process(work)), MAX_PARTS)
        )
        pool = self._pool_for(len(split))
        parts = (
            WorkPart(work.take(rows), shares[order][rows], scales[order][rows]) for rows in split
        )
        train = partial(self._train_part, start)
        results = map(train, parts) if pool is None else pool.map(start, parts)
        losses, found = np.empty(order.size), np.empty(order.size)
        for rows, result in zip(split, results, strict=True):
            mean.merge(result.mean)
            losses[order[rows]] = result.losses
            found[order[rows]] = result.distances
        return PartResult(mean, losses, found)

    def _learners_per_process(self, work: CycleWork) -> int:
        """Return how many learners one process trains: a stack if they train together, else one."""
        if self._trains_alone or work.learners.size == 1:
            return 1
        two = work.take(np.arange(2))
        with one_thread():
            together = batched.can_train_together(self._task, self._trainer, self._works(two))
        return batched.STACK_LEARNERS if together else 1

    @property
    def _trains_alone(self) -> bool:
        return self._one_by_one or self._task.optimizer.keep

    def _check_updates(self, excluded: int, cycle: int, updates: int, any_left: bool) -> None:
        """Warn if updates are not finite; raise `DataError` if none was for several cycles."""
        if excluded:
            warnings.warn(
                f"cycle {cycle}: {excluded} of {updates} updates hold numbers that are "
                "not finite, and are left out of the mean; optimizer.lr may be too large",
                MelismaWarning,
                stacklevel=3,
            )
        self._cycles_without_update = 0 if any_left else self._cycles_without_update + 1
        if self._cycles_without_update == MAX_EMPTY_CYCLES:
            # Live runs refuse such updates, so that the cycle is empty.
            raise DataError(
                f"{MAX_EMPTY_CYCLES} cycles in a row no update was finite, so the model did not "
                "change; optimizer.lr may be too large"
            )

    def _pool_for(self, parts: int) -> ForkPool[Arrays, WorkPart, PartResult] | None:
        """Return processes that train, if there is work for several and forking is safe."""
        cores = trainer_cores(self._trainer)
        # The state of optimisers must stay in one process.
        alone = parts == 1 or cores == 1 or self._task.optimizer.keep
        if self._pool is None and not alone and can_fork():
            buffer_bytes = RunningMean(self._layout).nbytes + LOSSES_BYTES
            self._pool = ForkPool(self._train_part, min(cores, parts), use_one_thread, buffer_bytes)
        return None if alone else self._pool

    def _train_part(self, start: Arrays, part: WorkPart) -> PartResult:
        mean, losses = RunningMean(self._layout), np.empty(part.shares.size)
        found = np.zeros(part.shares.size)
        for rows, result in self._train_blocks(part.work, start):
            if self._guard.rule != "off":
                found[rows] = distances(result.parameters, start)
            finite = mean.add(part.shares[rows], result.parameters, part.scales[rows])
            found[rows[~finite]] = nan
            losses[rows] = result.loss
            # Free the memory now, so that the next result reuses it while it is cached.
            del result
        return PartResult(mean, losses, found)

    def _train_blocks(
        self, work: CycleWork, start: Arrays
    ) -> Iterator[tuple[Ints, batched.BatchedResults]]:
        """Yield the results of all learners in blocks, with the rows of each block."""
        learners, most = work.learners.size, batched.SHORT_WORK_FACTOR * batched.STACK_LEARNERS
        for block in _split_evenly(learners, ceil(learners / most)):
            for result in self._train_block(work.take(block), start):
                yield block[result.indices], result
                del result

    def _distances(self, result: batched.BatchedResults, start: Arrays) -> Floats:
        """Return the distance of each update from its start, NaN if it is not finite."""
        floats = [array for array in result.parameters.values() if array.dtype.kind == "f"]
        rows = [np.isfinite(array).reshape(len(array), -1).all(axis=1) for array in floats]
        finite: Floats = np.where(np.logical_and.reduce(rows), 0.0, nan)
        return finite + (0.0 if self._guard.rule == "off" else distances(result.parameters, start))

    def _train_block(self, work: CycleWork, start: Arrays) -> Iterator[batched.BatchedResults]:
        works = self._works(work)
        with one_thread() if self._trains_alone or self._small_steps else nullcontext():
            if not self._trains_alone and batched.can_train_together(
                self._task, self._trainer, works
            ):
                yield from self._train_batched(work, start, works)
                return
            for row, learner_work in enumerate(works):
                trained = self._train_one(work, row, start, learner_work)
                yield batched.BatchedResults.from_one(row, trained)

    def _works(self, work: CycleWork) -> list[batched.TrainingWork]:
        generators = Generators(self._task.seed, "train", work.cycle, work.learners)
        return [self._learner_work(work, generators, *each) for each in enumerate(work.shards)]

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
        if (known := self._trained.get((work.cycle, learner))) is not None:
            return known
        with _user_code(f"{self._names[learner]} could not train in cycle {work.cycle}"):
            trained = batched.train_one(self._task, self._trainer_of(learner), start, learner_work)
        if self._task.optimizer.keep and self._guard.rule != "off":
            self._trained[work.cycle, learner] = trained
        return trained

    def _trainer_of(self, learner: int) -> Trainer:
        """Return the trainer of a learner: its own if it keeps the state of its optimiser."""
        if not self._task.optimizer.keep:
            return self._trainer
        if learner not in self._own_trainers:
            self._own_trainers[learner] = trainer_for(self._task)
        return self._own_trainers[learner]

    def score(self) -> ScoreValues:
        """Return loss and accuracy on the test samples, or on those that devices hold back."""
        threads = one_thread() if self._small_steps else nullcontext()
        with _user_code("the model could not be scored"), threads:
            score = self._trainer.score(self.parameters, self._test_data)
        finite = not score.samples or isfinite(score.loss)
        return ScoreValues(_finite_or_none(score.loss), _finite_or_none(score.accuracy), finite)

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


def _split_by_part(values: Floats, parts: Sequence[WeightedWork]) -> list[Floats]:
    """Return the values of all updates by part."""
    return np.split(values, np.cumsum([part.learners.size for part in parts])[:-1])


def _by_learner(parts: Sequence[WeightedWork]) -> Ints:
    """Return the rows of all updates in the order of learners, earlier cycles first."""
    learners = np.concatenate([part.learners for part in parts])
    cycles = np.concatenate([np.full(part.learners.size, part.record.cycle) for part in parts])
    return np.lexsort((cycles, learners))


def _take(split: Split, samples: Ints) -> Split:
    return Split(split.samples[samples], split.labels[samples])


def _finite_or_none(value: float) -> float | None:
    return value if isfinite(value) else None
