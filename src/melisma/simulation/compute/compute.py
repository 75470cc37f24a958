"""What learners really compute: nothing, where only time matters, or the true gradients.

Training waits until it is known which updates are averaged: what nobody counts is not computed.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import ceil, isfinite
from typing import Protocol

import numpy as np

from melisma.cycle.events import Floats
from melisma.cycle.ragged import Ints, RaggedArray
from melisma.cycle.rounds import MAX_EMPTY_CYCLES
from melisma.errors import DataError, MelismaError, MelismaWarning
from melisma.fleet.rng import Generators
from melisma.learning import batched
from melisma.learning.aggregation import Mean
from melisma.learning.data.datasets import Split
from melisma.learning.imports import told
from melisma.learning.loaded_task import Material
from melisma.learning.parameters import Arrays, Layout
from melisma.learning.trainer import Trained, Trainer
from melisma.learning.trainers import cores_of, one_thread, train_on_one_thread, trainer_for
from melisma.simulation.compute.fork_pool import ForkPool, can_fork
from melisma.simulation.compute.sample_index import SampleIndex

# A cycle is summed up in so many parts at most, however many processes there are: numbers depend on
# the order in which they are added.
PARTS = 16
Score = tuple[float | None, float | None]


@dataclass(frozen=True, eq=False)
class CycleWork:
    """The work of a cycle, learner by learner; `batches` are those that each trains in time."""

    cycle: int
    learners: Ints
    shards: RaggedArray
    passes: Ints
    batches: Ints

    def take(self, places: Ints) -> "CycleWork":
        """That of those at these places."""
        columns = (self.passes[places], self.batches[places])
        return CycleWork(self.cycle, self.learners[places], self.shards.take(places), *columns)


@dataclass(frozen=True, eq=False)
class WorkPart:
    """The work of some learners, and the share that each has in the mean."""

    job: CycleWork
    shares: Floats


class Compute(Protocol):
    """What becomes of the model."""

    def average(self, job: CycleWork, learners: Ints, weights: Floats) -> Floats:
        """Make the weighted mean of these learners' updates the model; the loss of each."""

    def score(self) -> Score:
        """Loss and accuracy of the model, where they are known."""

    def close(self) -> None:
        """Nothing is to be computed any more."""


class TimingOnly:
    """Nothing is trained."""

    def average(self, job: CycleWork, learners: Ints, weights: Floats) -> Floats:  # noqa: ARG002
        """No model, no loss."""
        return np.empty(0)

    def score(self) -> Score:
        """Not known."""
        return None, None

    def close(self) -> None:
        """There is nothing to end."""


class RealTraining:
    """Real training on real data, all learners one after another or many at once."""

    def __init__(
        self, material: Material, stock: SampleIndex, names: Sequence[str], *, one_by_one: bool
    ) -> None:
        self._names = names
        self._task, self._trainer, self._stock = material.task, material.trainer, stock
        self._train, self._one_by_one = material.data.train, one_by_one
        self._test = material.data.test
        if not len(self._test):
            self._test = _chosen(self._train, stock.held_back)
        self.parameters: Arrays = material.trainer.initial()
        self._layout = Layout.of(self.parameters)
        self._own: dict[int, Trainer] = {}
        self._lost = 0  # cycles in a row
        # Learners that a process of its own is for.
        self._least = 1 if one_by_one else batched.STACK
        self._crew: ForkPool[Arrays, WorkPart, tuple[Mean, Floats]] | None = None

    def average(self, job: CycleWork, learners: Ints, weights: Floats) -> Floats:
        """As `Work` says; in double precision, in an order that is always the same."""
        order = np.argsort(learners)
        shares = (weights / weights.sum())[order]
        places = np.searchsorted(job.learners, learners[order])
        split = _even(order.size, min(ceil(order.size / self._least), PARTS))
        crew = self._crew_for(len(split))
        parts = (WorkPart(job.take(places[at]), shares[at]) for at in split)
        alone = map(partial(self._trained, self.parameters), parts)
        done = alone if crew is None else crew.map(self.parameters, parts)
        mean, losses = Mean(self._layout), np.empty(order.size)
        for at, (part, loss) in zip(split, done, strict=True):
            mean.join(part)
            losses[order[at]] = loss
        if mean.left_out:
            warnings.warn(
                f"cycle {job.cycle}: {mean.left_out} of {order.size} updates hold numbers that are "
                "not finite, and are left out of the mean; optimizer.lr may be too large",
                MelismaWarning,
                stacklevel=2,
            )
        self._lost = 0 if mean else self._lost + 1
        if self._lost == MAX_EMPTY_CYCLES:
            # As live, where such updates are refused and the cycle is empty.
            raise DataError(
                f"{MAX_EMPTY_CYCLES} cycles in a row no update was finite, and nothing was learnt; "
                "optimizer.lr may be too large"
            )
        if mean:
            self.parameters = mean.arrays()
        return losses

    def score(self) -> Score:
        """On the test samples, or those that devices hold back."""
        with _told("the model could not be scored"):
            score = self._trainer.score(self.parameters, self._test)
        return _known(score.loss), _known(score.accuracy)

    def close(self) -> None:
        """End the processes that trained."""
        if self._crew is not None:
            self._crew.close()

    def _crew_for(self, parts: int) -> ForkPool[Arrays, WorkPart, tuple[Mean, Floats]] | None:
        """Processes that train, where there is work for more than one, and forks are safe."""
        cores = cores_of(self._trainer)
        # What optimisers keep must stay in one process.
        alone = parts == 1 or cores == 1 or self._task.optimizer.keep
        if self._crew is None and not alone and can_fork():
            # Losses are few.
            room_bytes = Mean(self._layout).nbytes + (1 << 20)
            begin = train_on_one_thread
            self._crew = ForkPool(self._trained, min(cores, parts), begin, room_bytes)
        return None if alone else self._crew

    def _trained(self, start: Arrays, part: WorkPart) -> tuple[Mean, Floats]:
        mean, losses = Mean(self._layout), np.empty(part.shares.size)
        learners, most = part.shares.size, batched.TALLER * batched.STACK
        for some in _even(learners, ceil(learners / most)):
            for done in self._results(part.job.take(some), start):
                places = some[done.places]
                mean.add(part.shares[places], done.parameters)
                losses[places] = done.loss
                # The next ones take the same memory, while it is near.
                del done
        return mean, losses

    def _results(self, job: CycleWork, start: Arrays) -> Iterator[batched.Results]:
        chance = Generators(self._task.seed, "train", job.cycle, job.learners)
        works = [self._work(job, chance, *each) for each in enumerate(job.shards)]
        alone = self._one_by_one or self._task.optimizer.keep
        if not alone and batched.batchable(self._task, self._trainer, works):
            yield from self._together(job, start, works)
            return
        # As live learners do; threads that share small steps only wait for each other.
        with one_thread() if alone else nullcontext():
            for place, work in enumerate(works):
                yield batched.Results.of_one(place, self._trained_alone(job, place, start, work))

    def _together(
        self, job: CycleWork, start: Arrays, works: list[batched.Work]
    ) -> Iterator[batched.Results]:
        try:
            yield from batched.train_many(self._task, self._trainer, start, works)
        except Exception as error:
            # Whose samples are to blame is known one by one.
            for place, work in enumerate(works):
                self._trained_alone(job, place, start, work)
            raise DataError(
                f"cycle {job.cycle} could not be trained together: {told(error)}; "
                'one by one it can, by simulation.work = "train"'
            ) from error

    def _trained_alone(
        self, job: CycleWork, place: int, start: Arrays, work: batched.Work
    ) -> Trained:
        learner = int(job.learners[place])
        with _told(f"{self._names[learner]} could not train in cycle {job.cycle}"):
            return batched.train_one(self._trainer_of(learner), start, work)

    def _work(self, job: CycleWork, chance: Generators, place: int, shards: Ints) -> batched.Work:
        return batched.Work(
            self._train,
            int(job.passes[place]),
            partial(chance.of, place),
            int(job.batches[place]),
            self._stock.samples(int(job.learners[place]), shards),
        )

    def _trainer_of(self, learner: int) -> Trainer:
        """One of its own, where the state of its optimiser stays with a learner."""
        if not self._task.optimizer.keep:
            return self._trainer
        if learner not in self._own:
            self._own[learner] = trainer_for(self._task)
        return self._own[learner]


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Say what could not be done, and why, where code of the user's raises."""
    try:
        yield
    except MelismaError:
        raise
    except Exception as error:
        raise DataError(f"{what}: {told(error)}") from error


def _even(count: int, parts: int) -> list[Ints]:
    """The first so many numbers in parts of about equal size."""
    return np.array_split(np.arange(count), parts)


def _chosen(split: Split, samples: Ints) -> Split:
    return Split(split.samples[samples], split.labels[samples])


def _known(value: float) -> float | None:
    return value if isfinite(value) else None
