"""The interface between Melisma and a framework; parameters are named arrays.

A trainer takes parameters and batches of samples, and returns the trained parameters with the
number of visits. Passes, their order and their end are decided by the iterator of batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan
from typing import Any, Protocol

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


def synchronize(trainer: Trainer) -> None:
    """Wait until a trainer has completed its queued work.

    A trainer on an asynchronous device has a method `synchronize`; others are always done.
    """
    wait = getattr(trainer, "synchronize", None)
    if wait is not None:
        wait()
