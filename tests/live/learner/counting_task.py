"""A trainer that counts the visits of each sample, and remembers their order."""

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError
from melisma.fleet.task import Task
from melisma.learning.data.datasets import Split
from melisma.learning.trainer import Score, TrainingResult, TrainingState


class KilledError(Exception):
    """The process ends here, as if it had been killed."""


class Forgetful:
    """Counts visits; its trainings cannot be continued.

    `order` depends on the order of all samples, and on numbers drawn from the generator.
    `kill_at` is the number of the batch before which it raises `KilledError`. It writes the size of
    each batch to standard error, and pauses after it.
    """

    kill_at = -1

    def __init__(self, task: Task, *, samples: int = 240, pause_s: float = 0.0) -> None:
        del task
        self._samples, self._pause_s = samples, pause_s
        self._arrays: dict[str, NDArray[Any]] = {}
        self._visits, self._loss_sum = 0, 0.0

    def initial(self) -> dict[str, NDArray[Any]]:
        return {"visits": np.zeros(self._samples), "order": np.zeros(1)}

    def train(
        self, parameters: Any, batches: Iterator[Split], rng: np.random.Generator
    ) -> TrainingResult:
        self._arrays = {name: np.array(parameters[name]) for name in ("visits", "order")}
        visits, self._visits = self._visits, 0
        loss_sum, self._loss_sum = self._loss_sum, 0.0
        for number, batch in enumerate(batches):
            if number == self.kill_at:
                raise KilledError
            self._arrays["visits"][batch.labels] += 1
            for label in batch.labels.tolist():
                self._arrays["order"][:] = 0.9 * self._arrays["order"] + label
            self._arrays["order"] += rng.random()
            visits, loss_sum = visits + len(batch), loss_sum + float(batch.labels.sum())
            self._visits, self._loss_sum = visits, loss_sum
            sys.stderr.write(f"batch {len(batch)}\n")
            sys.stderr.flush()
            time.sleep(self._pause_s)
        self._visits, self._loss_sum = 0, 0.0
        return TrainingResult(self._arrays, visits, loss_sum / max(visits, 1))

    def score(self, parameters: Any, samples: Split) -> Score:
        return Score(len(samples), float(parameters["visits"].sum()), 0, 0)


class Counting(Forgetful):
    """Counts visits; its trainings can be continued."""

    broken = False

    def checkpoint(self) -> TrainingState:
        arrays = {name: array.copy() for name, array in self._arrays.items()}
        return TrainingState(arrays, {"mark": np.ones(1)}, self._visits, self._loss_sum)

    def restore(self, state: TrainingState) -> None:
        if self.broken:
            raise ZeroDivisionError
        if state.extra.keys() != {"mark"}:
            raise DataError("the saved training has no mark")
        self._visits, self._loss_sum = state.visits, state.loss_sum


class Keeping(Counting):
    """Counts trainings over all processes of a learner, as an optimizer counts steps."""

    trainings = 0

    def train(
        self, parameters: Any, batches: Iterator[Split], rng: np.random.Generator
    ) -> TrainingResult:
        result = super().train(parameters, batches, rng)
        self.trainings += 1
        return result

    def optimizer_state(self) -> dict[str, NDArray[Any]]:
        return {"trainings": np.array([self.trainings])}

    def load_optimizer_state(self, state: Any) -> None:
        if self.broken:
            raise ZeroDivisionError
        if state.keys() != {"trainings"}:
            raise DataError("the saved optimizer has no trainings")
        self.trainings = int(state["trainings"][0])


def make_data(samples: int = 240) -> tuple[Any, Any]:
    """Return samples whose labels are their numbers, for training and for tests."""
    numbers = np.arange(samples)
    pair = np.repeat(numbers[:, None], 2, axis=1).astype(np.float32), numbers
    return pair, pair
