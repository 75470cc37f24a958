"""Training of many learners for a simulation: together where the model allows, else one by one.

Either way the results are those of `Trainer.train`; `torch_batched` says how close.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.task import Task
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import Trainer, TrainingResult

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
# Learners that train at a time: calls are paid off by some thirty, and more leave the cache.
STACK_LEARNERS = 32
# So many times as many where learners have few batches: to set up a stack takes as long as some.
SHORT_WORK_FACTOR = 2


@dataclass(frozen=True, eq=False)
class TrainingWork:
    """What one learner trains in a cycle; it stops after so many batches, in mid-pass too.

    Its samples are those in these rows, or all; its generator is made when its turn comes.
    """

    samples: Split
    passes: int
    rng: Callable[[], np.random.Generator]
    batches: int
    rows: Ints | None = None

    def __len__(self) -> int:
        return len(self.samples) if self.rows is None else len(self.rows)

    @property
    def own_samples(self) -> Split:
        """Its samples alone, as a copy."""
        if self.rows is None:
            return self.samples
        return Split(self.samples.samples[self.rows], self.samples.labels[self.rows])


@dataclass(frozen=True, eq=False)
class BatchedResults:
    """What became of some of the works: their places, and `Trained` of all, works first."""

    indices: Ints
    parameters: Arrays
    visits: Ints
    loss: Floats

    @classmethod
    def from_one(cls, place: int, trained: TrainingResult) -> "BatchedResults":
        """Of one work alone."""
        arrays = {name: array[None] for name, array in trained.parameters.items()}
        return cls(np.array([place]), arrays, np.array([trained.visits]), np.array([trained.loss]))


def train_many(
    task: Task, trainer: Trainer, parameters: Arrays, works: Sequence[TrainingWork]
) -> Iterator[BatchedResults]:
    """What `trainer.train` returns for each work; all begin from the same parameters."""
    together = _stacked_training(task, trainer, works)
    if together is not None:
        return together(parameters)
    alone = (train_one(trainer, parameters, work) for work in works)
    return (BatchedResults.from_one(place, trained) for place, trained in enumerate(alone))


def can_train_together(task: Task, trainer: Trainer, works: Sequence[TrainingWork]) -> bool:
    """Whether these learners train together: a trial has shown that it comes to the same."""
    return _stacked_training(task, trainer, works) is not None


def train_one(trainer: Trainer, parameters: Arrays, work: TrainingWork) -> TrainingResult:
    """What one learner trains alone."""
    stop = stop_after(work.batches)
    return trainer.train(parameters, work.own_samples, work.passes, work.rng(), stop)


def stop_after(batches: int) -> Callable[[], bool]:
    """A stop that lets so many batches pass."""
    asked = count()
    return lambda: next(asked) >= batches


def _stacked_training(
    task: Task, trainer: Trainer, works: Sequence[TrainingWork]
) -> Callable[[Arrays], Iterator[BatchedResults]] | None:
    # A trainer of one's own needs no PyTorch, and it is not imported to find that out.
    if "melisma.learning.pytorch.torch_trainer" not in sys.modules or len(works) < 2:
        return None
    from melisma.learning.pytorch.torch_batched import stacked_model_for, train_stacked
    from melisma.learning.pytorch.torch_trainer import TorchTrainer

    if type(trainer) is not TorchTrainer:
        return None
    way = stacked_model_for(task, trainer, works)
    return None if way is None else partial(train_stacked, task, trainer, way, works)
