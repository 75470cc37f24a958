"""A linear model in NumPy and its data, small enough that a run of processes takes seconds."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.task import Task
from melisma.learning.data.datasets import Split
from melisma.learning.trainer import Score, TrainingResult

Pair = tuple[NDArray[np.float32], NDArray[np.int64]]


def blobs(samples: int = 600, test: int = 200) -> tuple[Pair, Pair]:
    """Return training and test samples of two classes of points."""
    rng = np.random.default_rng(3)

    def draw(count: int) -> Pair:
        labels = rng.integers(0, 2, count)
        points = rng.normal(0, 1, (count, 4)) + 3 * labels[:, None]
        return points.astype(np.float32), labels.astype(np.int64)

    return draw(samples), draw(test)


class Linear:
    """Logistic regression by plain gradient steps.

    It sleeps `pause_s` after each batch, so that training takes time and leaves the processor free.
    """

    def __init__(
        self, task: Task, *, numbers: int = 4, broken: str = "", pause_s: float = 0.0
    ) -> None:
        self._task, self._numbers, self._broken = task, numbers, broken
        self._pause_s = pause_s

    def initial(self) -> dict[str, NDArray[Any]]:
        return {"weight": np.zeros(self._numbers, np.float32), "bias": np.zeros(1, np.float32)}

    def train(
        self,
        parameters: Any,
        batches: Iterator[Split],
        rng: np.random.Generator,
    ) -> TrainingResult:
        weight, bias = (np.array(parameters[name], np.float32) for name in ("weight", "bias"))
        visits, loss_sum = 0, 0.0
        for batch in batches:
            error = _sigmoid(batch.samples @ weight[:4] + bias) - batch.labels
            weight[:4] -= self._task.optimizer.lr * (batch.samples.T @ error) / len(batch)
            bias -= self._task.optimizer.lr * error.mean()
            visits, loss_sum = visits + len(batch), loss_sum + float(np.abs(error).sum())
            if self._pause_s:
                time.sleep(self._pause_s)
        return self._finish(weight, bias, visits, loss_sum)

    def _finish(
        self, weight: NDArray[Any], bias: NDArray[Any], visits: int, loss_sum: float
    ) -> TrainingResult:
        if self._broken == "nan":
            weight = weight * np.nan
        if self._broken == "shape":
            weight = weight[:2]
        if self._broken == "raises":
            raise ArithmeticError("this model cannot be trained")
        parameters = {"weight": weight.astype(np.float32), "bias": bias.astype(np.float32)}
        return TrainingResult(parameters, visits, loss_sum / max(visits, 1))

    def score(self, parameters: Any, samples: Split) -> Score:
        probability = _sigmoid(samples.samples @ parameters["weight"][:4] + parameters["bias"])
        right = int(((probability > 0.5) == samples.labels).sum())
        loss = float(np.abs(probability - samples.labels).sum())
        return Score(len(samples), loss, right, len(samples))


def _sigmoid(value: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(1 / (1 + np.exp(-np.clip(value, -30, 30))))
