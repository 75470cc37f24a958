"""What learners really compute: nothing, where only time matters, or the true gradients.

Training waits until it is known which updates are averaged: what nobody counts is not computed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Protocol

import numpy as np

from melisma.cycle.events import Floats
from melisma.cycle.rows import Ints, Rows
from melisma.fleet.chance import generator
from melisma.learning import batched
from melisma.learning.aggregation import mean_of
from melisma.learning.data import Split
from melisma.learning.material import Material
from melisma.learning.parameters import Arrays, Layout
from melisma.learning.trainer import Trained, Trainer
from melisma.learning.trainers import one_thread, trainer_for
from melisma.simulation.stock import Stock

# Samples of learners that are got ready at a time.
READY = 1 << 22
Score = tuple[float | None, float | None]


@dataclass(frozen=True, eq=False)
class Job:
    """The work of a cycle, learner by learner; `batches` are those that each trains in time."""

    cycle: int
    learners: Ints
    shards: Rows
    passes: Ints
    batches: Ints


class Work(Protocol):
    """What becomes of the model."""

    def average(self, job: Job, learners: Ints, weights: Floats) -> Floats:
        """Make the weighted mean of these learners' updates the model; the loss of each."""

    def score(self) -> Score:
        """Loss and accuracy of the model, where they are known."""


class Timing:
    """Nothing is trained."""

    def average(self, job: Job, learners: Ints, weights: Floats) -> Floats:  # noqa: ARG002
        """No model, no loss."""
        return np.empty(0)

    def score(self) -> Score:
        """Not known."""
        return None, None


class Training:
    """Real training on real data, all learners one after another or many at once."""

    def __init__(self, material: Material, stock: Stock, *, one_by_one: bool) -> None:
        self._task, self._trainer, self._stock = material.task, material.trainer, stock
        self._train, self._one_by_one = material.data.train, one_by_one
        self._test = material.data.test
        if not len(self._test):
            self._test = _chosen(self._train, stock.held_back)
        self.parameters: Arrays = material.trainer.initial()
        self._layout = Layout.of(self.parameters)
        self._own: dict[int, Trainer] = {}

    def average(self, job: Job, learners: Ints, weights: Floats) -> Floats:
        """As `Work` says; in double precision, in the order of learners."""
        order = np.argsort(learners)
        learners, shares = learners[order], (weights / weights.sum())[order]
        losses = np.empty(learners.size)

        def updates() -> Iterator[tuple[Floats, Arrays]]:
            for some in self._groups(job, learners):
                for done in self._trained(job, learners[some]):
                    places = some[done.places]
                    losses[order[places]] = done.loss
                    yield shares[places], done.parameters

        self.parameters = mean_of(self._layout, updates())
        return losses

    def score(self) -> Score:
        """On the test samples, or those that devices hold back."""
        score = self._trainer.score(self.parameters, self._test)
        return _known(score.loss), _known(score.accuracy)

    def _trained(self, job: Job, learners: Ints) -> Iterator[batched.Results]:
        places = np.searchsorted(job.learners, learners)
        rows = job.shards.some(places)
        works = [self._work(job, *both) for both in zip(places.tolist(), rows, strict=True)]
        if self._one_by_one or self._task.optimizer.keep:
            # As live learners do; threads that share small steps only wait for each other.
            with one_thread():
                for place, (learner, work) in enumerate(zip(learners.tolist(), works, strict=True)):
                    yield batched.Results.of_one(place, self._alone(learner, work))
        else:
            yield from batched.train_many(self._task, self._trainer, self.parameters, works)

    def _groups(self, job: Job, learners: Ints) -> list[Ints]:
        """Places of learners in their order, so many at a time as have about `READY` samples."""
        shards = job.shards.counts[np.searchsorted(job.learners, learners)]
        filled = np.cumsum(shards * self._task.shard_samples) // READY
        return np.split(np.arange(learners.size), np.flatnonzero(np.diff(filled)) + 1)

    def _work(self, job: Job, place: int, shards: Ints) -> batched.Work:
        learner = int(job.learners[place])
        return batched.Work(
            self._train,
            int(job.passes[place]),
            partial(generator, self._task.seed, "train", job.cycle, learner),
            int(job.batches[place]),
            self._stock.samples(learner, shards),
        )

    def _alone(self, learner: int, work: batched.Work) -> Trained:
        """By a trainer of its own, where the state of its optimiser stays with a learner."""
        trainer = self._trainer
        if self._task.optimizer.keep:
            trainer = self._own.setdefault(learner, trainer_for(self._task))
        return batched.train_one(trainer, self.parameters, work)


def _chosen(split: Split, samples: Ints) -> Split:
    return Split(split.samples[samples], split.labels[samples])


def _known(value: float) -> float | None:
    return value if isfinite(value) else None
