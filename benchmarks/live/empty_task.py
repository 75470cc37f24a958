"""A task without training, to measure the cost of a cycle itself.

The model is one array of `model_bytes`; training returns it unchanged.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.task import Task
from melisma.learning.data.datasets import DataSet, Split
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import Score, TrainingResult

SAMPLES = 8


def samples() -> DataSet:
    """Return a few samples for the shards that a cycle hands out."""
    numbers, labels = np.zeros((SAMPLES, 1), np.float32), np.zeros(SAMPLES, np.uint8)
    return DataSet(Split(numbers, labels), Split(numbers[:1], labels[:1]))


class NoTraining:
    """A trainer that visits every sample and changes nothing."""

    def __init__(self, task: Task, model_bytes: int) -> None:
        del task
        self._floats = model_bytes // 4

    def initial(self) -> dict[str, NDArray[Any]]:
        return {"weights": np.ones(self._floats, np.float32)}

    def train(
        self, parameters: Arrays, batches: Iterator[Split], rng: np.random.Generator
    ) -> TrainingResult:
        del rng
        return TrainingResult(dict(parameters), sum(map(len, batches)), 0.0)

    def score(self, parameters: Arrays, samples: Split) -> Score:
        del parameters
        return Score(len(samples), 0.0, len(samples))
