"""The interface between Melisma and a framework; parameters are named arrays.

A trainer takes parameters and batches of samples, and returns the trained parameters with the
number of visits. Passes, their order and their end are decided by the iterator of batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """Parameters after training, the number of sample visits, and their mean loss."""

    parameters: dict[str, NDArray[Any]]
    visits: int
    loss: float


@dataclass(frozen=True, eq=False)
class TrainingState:
    """A training between two batches: its parameters, and what else its trainer needs to go on.

    `loss_sum` is the sum of the losses of all `visits`.
    """

    parameters: dict[str, NDArray[Any]]
    extra: dict[str, NDArray[Any]]
    visits: int
    loss_sum: float


@dataclass(frozen=True)
class Score:
    """Sums over evaluated samples, so that parts can be added.

    `correct` of `labels` labels were predicted; by default each sample has one label. Regression
    has 0 labels, and accuracy has no meaning there.
    """

    samples: int
    loss_sum: float
    correct: int
    labels: int | None = None

    def __add__(self, other: "Score") -> "Score":
        return Score(
            self.samples + other.samples,
            self.loss_sum + other.loss_sum,
            self.correct + other.correct,
            self.label_count + other.label_count,
        )

    @property
    def loss(self) -> float:
        """Mean loss of a sample; NaN without samples."""
        return self.loss_sum / self.samples if self.samples else nan

    @property
    def accuracy(self) -> float:
        """Share of labels that were predicted correctly; NaN without labels."""
        return self.correct / self.label_count if self.label_count else nan

    @property
    def label_count(self) -> int:
        """The number of labels that count for accuracy."""
        return self.samples if self.labels is None else self.labels


class Trainer(Protocol):
    """Trains one task."""

    def initial(self) -> dict[str, NDArray[Any]]:
        """Return the initial parameters, which depend on the seed of the task."""

    def train(
        self, parameters: Arrays, batches: Iterator[Split], rng: np.random.Generator
    ) -> TrainingResult:
        """Train each batch once, in order, until the iterator ends.

        Ask for a batch only when the previous one has been trained: an emulated device is slowed,
        and a training is timed and stopped, when the next batch is requested. `rng` is for random
        numbers in the model, such as dropout; batches may draw from it, too.
        """

    def score(self, parameters: Arrays, samples: Split) -> Score:
        """Evaluate the parameters on the samples."""


@runtime_checkable
class ResumableTrainer(Trainer, Protocol):
    """A trainer whose trainings can be saved between two batches, and continued elsewhere.

    One without these methods trains as well; a training that is interrupted begins anew.
    """

    def checkpoint(self) -> TrainingState:
        """Return copies of the state of the training that runs; called when it asks for a batch."""

    def restore(self, state: TrainingState) -> None:
        """Let the next `train` continue from a state; it is called with its parameters.

        That call returns the visits and the mean loss of both parts. Raise `DataError` for a state
        that does not fit; then the next training begins anew.
        """


@runtime_checkable
class OptimizerKeeper(Trainer, Protocol):
    """A trainer that keeps the state of its optimizer from cycle to cycle, if the task says so.

    Without these methods the state is lost with the process of the learner.
    """

    def optimizer_state(self) -> dict[str, NDArray[Any]]:
        """Return a copy of the state of the optimizer by name, after a training."""

    def load_optimizer_state(self, state: Arrays) -> None:
        """Let the next `train` begin with this state; raise `DataError` if it does not fit."""


def synchronize(trainer: Trainer) -> None:
    """Wait until a trainer has completed its queued work.

    A trainer on an asynchronous device has a method `synchronize`; others are always done.
    """
    wait = getattr(trainer, "synchronize", None)
    if wait is not None:
        wait()
