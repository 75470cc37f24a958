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
from melisma.learning.trainer import Trained, Trainer

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
# Learners that train at a time: calls are paid off by some thirty, and more leave the cache.
STACK = 32
# So many times as many where learners have few batches: to set up a stack takes as long as some.
TALLER = 2


@dataclass(frozen=True, eq=False)
class Work:
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
    def own(self) -> Split:
        """Its samples alone, as a copy."""
        if self.rows is None:
            return self.samples
        return Split(self.samples.samples[self.rows], self.samples.labels[self.rows])


@dataclass(frozen=True, eq=False)
class Results:
    """What became of some of the works: their places, and `Trained` of all, works first."""

    places: Ints
    parameters: Arrays
    visits: Ints
    loss: Floats

    @classmethod
    def of_one(cls, place: int, trained: Trained) -> "Results":
        """Of one work alone."""
        arrays = {name: array[None] for name, array in trained.parameters.items()}
        return cls(np.array([place]), arrays, np.array([trained.visits]), np.array([trained.loss]))


def train_many(
    task: Task, trainer: Trainer, parameters: Arrays, works: Sequence[Work]
) -> Iterator[Results]:
    """What `trainer.train` returns for each work; all begin from the same parameters."""
    together = _together(task, trainer, works)
    if together is not None:
        return together(parameters)
    alone = (train_one(trainer, parameters, work) for work in works)
    return (Results.of_one(place, trained) for place, trained in enumerate(alone))


def batchable(task: Task, trainer: Trainer, works: Sequence[Work]) -> bool:
    """Whether these learners train together: a trial has shown that it comes to the same."""
    return _together(task, trainer, works) is not None


def train_one(trainer: Trainer, parameters: Arrays, work: Work) -> Trained:
    """What one learner trains alone."""
    stop = stop_after(work.batches)
    return trainer.train(parameters, work.own, work.passes, work.rng(), stop)


def stop_after(batches: int) -> Callable[[], bool]:
    """A stop that lets so many batches pass."""
    asked = count()
    return lambda: next(asked) >= batches


def _together(
    task: Task, trainer: Trainer, works: Sequence[Work]
) -> Callable[[Arrays], Iterator[Results]] | None:
    # A trainer of one's own needs no PyTorch, and it is not imported to find that out.
    if "melisma.learning.pytorch.torch_trainer" not in sys.modules or len(works) < 2:
        return None
    from melisma.learning.pytorch.torch_batched import train_together, way_for
    from melisma.learning.pytorch.torch_trainer import TorchTrainer

    if type(trainer) is not TorchTrainer:
        return None
    way = way_for(task, trainer, works)
    return None if way is None else partial(train_together, task, trainer, way, works)
