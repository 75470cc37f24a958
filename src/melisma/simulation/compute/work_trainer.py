"""Training of the work of simulated learners, one by one or many in one batched computation."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from math import ceil, isfinite

import numpy as np

from melisma.errors import DataError, MelismaError
from melisma.fleet.array_types import Ints
from melisma.fleet.rng import Generators
from melisma.learning import batched
from melisma.learning.batched import TrainingWork
from melisma.learning.data.datasets import Split
from melisma.learning.loaded_task import LoadedTask
from melisma.learning.parameters import Arrays, Layout
from melisma.learning.trainer import Trainer, TrainingResult
from melisma.learning.trainer_factory import one_thread, trainer_cores, trainer_for
from melisma.learning.verification.update_check import UpdateChecks
from melisma.simulation.compute.compute import ScoreValues
from melisma.simulation.compute.sample_index import SampleIndex
from melisma.simulation.compute.verified_training import VerifiedTraining, VerifiedWork
from melisma.simulation.compute.work_record import CycleWork
from melisma.simulation.faults import Greed
from melisma.user_code import describe_error


class WorkTrainer:
    """Trains the work of learners on real data, and scores models."""

    def __init__(
        self, loaded: LoadedTask, index: SampleIndex, names: Sequence[str], *, one_by_one: bool
    ) -> None:
        self._names, self._index, self._one_by_one = names, index, one_by_one
        self._task, self._trainer = loaded.task, loaded.trainer
        self._train_data, self._test_data = loaded.data.train, loaded.data.test
        if not len(self._test_data):
            self._test_data = _take(self._train_data, index.held_back)
        self._own_trainers: dict[int, Trainer] = {}
        # As in live learners: threads that share small steps mostly wait for each other.
        size_bytes = Layout.from_arrays(loaded.initial).size_bytes
        self._small_steps = size_bytes <= batched.MAX_STACKED_BYTES
        # With `optimizer.keep`, the updates of this cycle: training again would change the state.
        self._trained: dict[tuple[int, int], TrainingResult] = {}
        self._verified: VerifiedTraining | None = None
        self._checks: dict[int, UpdateChecks] = {}
        if loaded.task.verify != "off":
            self._verified = VerifiedTraining(loaded.task, loaded.trainer)

    def set_greedy(self, learners: Mapping[int, Greed]) -> None:
        """Let these learners cheat from now on."""
        if self._verified is None:
            self._verified = VerifiedTraining(self._task, self._trainer)
            self._one_by_one = True
        self._verified.greedy = dict(learners)

    def take_checks(self, learner: int) -> UpdateChecks:
        """Return the checks of the update that a learner trained last."""
        return self._checks.pop(learner, UpdateChecks())

    @property
    def cores(self) -> int:
        """The cores that training may use."""
        return trainer_cores(self._trainer)

    def train_blocks(
        self, work: CycleWork, start: Arrays
    ) -> Iterator[tuple[Ints, batched.BatchedResults]]:
        """Yield the results of all learners in blocks, with the rows of each block."""
        learners, most = work.learners.size, batched.SHORT_WORK_FACTOR * batched.STACK_LEARNERS
        for block in split_evenly(learners, ceil(learners / most)):
            for result in self._train_block(work.take(block), start):
                yield block[result.indices], result
                del result

    def learners_per_process(self, work: CycleWork) -> int:
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

    def forget_results(self) -> None:
        """Forget the updates of a cycle once they are averaged."""
        self._trained.clear()

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
            if self._verified is not None:
                item = self._verified_work(work, row, learner_work)
                trained, self._checks[learner] = self._verified.train(item, start)
                return trained
            trained = batched.train_one(self._task, self._trainer_of(learner), start, learner_work)
        if self._task.optimizer.keep and self._task.guard != "off":
            self._trained[work.cycle, learner] = trained
        return trained

    def _verified_work(self, work: CycleWork, row: int, learner_work: TrainingWork) -> VerifiedWork:
        """Return the work of a learner, with that of the next learner, which it may copy."""
        learner, everyone, copied = int(work.learners[row]), work.everyone, None
        if everyone is not None and everyone.learners.size > 1:
            own = int(np.flatnonzero(everyone.learners == learner)[0])
            other = everyone.take(np.array([(own + 1) % everyone.learners.size]))
            (copied,) = self._works(other)
        segment = int(work.segments[row])
        return VerifiedWork(learner, work.cycle, segment, learner_work, copied)

    def _trainer_of(self, learner: int) -> Trainer:
        """Return the trainer of a learner: its own if it keeps the state of its optimiser."""
        if not self._task.optimizer.keep:
            return self._trainer
        if learner not in self._own_trainers:
            self._own_trainers[learner] = trainer_for(self._task)
        return self._own_trainers[learner]

    def score(self, parameters: Arrays) -> ScoreValues:
        """Return loss and accuracy on the test samples, or on those that devices hold back."""
        threads = one_thread() if self._small_steps else nullcontext()
        with _user_code("the model could not be scored"), threads:
            score = self._trainer.score(parameters, self._test_data)
        finite = not score.samples or isfinite(score.loss)
        return ScoreValues(_finite_or_none(score.loss), _finite_or_none(score.accuracy), finite)


def split_evenly(count: int, parts: int) -> list[Ints]:
    """Return the numbers below `count` in parts of about equal size."""
    return np.array_split(np.arange(count), parts)


@contextmanager
def _user_code(problem: str) -> Iterator[None]:
    """Raise `DataError` with the problem and its cause where code of the user's raises."""
    try:
        yield
    except MelismaError:
        raise
    except Exception as error:
        raise DataError(f"{problem}: {describe_error(error)}") from error


def _take(split: Split, samples: Ints) -> Split:
    return Split(split.samples[samples], split.labels[samples])


def _finite_or_none(value: float) -> float | None:
    return value if isfinite(value) else None
