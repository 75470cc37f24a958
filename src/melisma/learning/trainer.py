"""The seam between learning and a framework: whatever turns its parameters into named arrays.

A trainer gets parameters, samples and a number of passes, and returns the changed parameters with
what it has really done: it asks `stop` before every batch and leaves when told, in the middle of a
pass too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """Parameters after training, the samples that were visited, and their mean loss on the way."""

    parameters: dict[str, NDArray[Any]]
    visits: int
    loss: float


@dataclass(frozen=True)
class Score:
    """How good parameters are on some samples; sums, so that parts can be added.

    `right` counts labels that were met, of the `judged` ones: one a sample unless said. Where
    labels are quantities none is judged, and accuracy has no meaning.
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
        """Mean loss of a sample; NaN where there is none."""
        return self.loss_sum / self.samples if self.samples else nan

    @property
    def accuracy(self) -> float:
        """Part of the labels that were met; NaN where none was judged."""
        return self.correct / self.label_count if self.label_count else nan

    @property
    def label_count(self) -> int:
        """Labels that were judged."""
        return self.samples if self.labels is None else self.labels


class Trainer(Protocol):
    """Trains one task."""

    def initial(self) -> dict[str, NDArray[Any]]:
        """Parameters to begin with, by the seed of the task."""

    def train(
        self,
        parameters: Arrays,
        samples: Split,
        passes: int,
        rng: np.random.Generator,
        stop: Callable[[], bool],
    ) -> TrainingResult:
        """So many passes over the samples in batches, in random order, until `stop` says so."""

    def score(self, parameters: Arrays, samples: Split) -> Score:
        """How good the parameters are."""
