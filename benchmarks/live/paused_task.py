"""A small task in NumPy that sleeps after each batch, so that training leaves the processor free.

Its parameters are a linear model of two classes, and further numbers that training moves a little,
so that a file of them takes a while to write.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.task import Task
from melisma.learning.data.datasets import DataSet, Split
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import Score, TrainingResult

SAMPLES, MANY_SAMPLES, TEST_SAMPLES, FEATURES = 600, 60_000, 200, 4


def blobs(samples: int = SAMPLES) -> DataSet:
    """Return training and test samples of two classes of points."""
    rng = np.random.default_rng(3)

    def draw(count: int) -> Split:
        labels = rng.integers(0, 2, count)
        points = rng.normal(0, 1, (count, FEATURES)) + 3 * labels[:, None]
        return Split(points.astype(np.float32), labels.astype(np.int64))

    return DataSet(draw(samples), draw(TEST_SAMPLES))


def many_blobs() -> DataSet:
    """Return more samples than a few learners train in a cycle."""
    return blobs(MANY_SAMPLES)


class PausedModel:
    """Logistic regression by plain gradient steps, with `numbers` further parameters."""

    def __init__(self, task: Task, pause_s: float = 0.02, numbers: int = 1000) -> None:
        self._lr, self._pause_s, self._numbers = task.optimizer.lr, pause_s, numbers

    def initial(self) -> dict[str, NDArray[Any]]:
        return {
            "weight": np.zeros(FEATURES + 1, np.float32),
            "further": np.zeros(self._numbers, np.float32),
        }

    def train(
        self, parameters: Arrays, batches: Iterator[Split], rng: np.random.Generator
    ) -> TrainingResult:
        weight, further = (np.array(parameters[name]) for name in ("weight", "further"))
        visits, loss_sum = 0, 0.0
        for batch in batches:
            x = _with_bias(batch.samples)
            error = _sigmoid(x @ weight) - batch.labels
            weight -= self._lr * (x.T @ error).astype(np.float32) / len(batch)
            further += rng.standard_normal(1, np.float32) * 1e-3
            visits, loss_sum = visits + len(batch), loss_sum + float(np.abs(error).sum())
            time.sleep(self._pause_s)
        arrays = {"weight": weight, "further": further}
        return TrainingResult(arrays, visits, loss_sum / max(visits, 1))

    def score(self, parameters: Arrays, samples: Split) -> Score:
        probability = _sigmoid(_with_bias(samples.samples) @ parameters["weight"])
        right = int(((probability > 0.5) == samples.labels).sum())
        return Score(len(samples), float(np.abs(probability - samples.labels).sum()), right)


def _with_bias(samples: NDArray[Any]) -> NDArray[Any]:
    return np.column_stack([samples, np.ones(len(samples), np.float32)])


def _sigmoid(values: NDArray[Any]) -> NDArray[Any]:
    probability: NDArray[Any] = 1 / (1 + np.exp(-values))
    return probability
