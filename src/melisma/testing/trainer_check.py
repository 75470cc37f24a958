"""A trainer without a framework, and a check of what Melisma expects of a trainer."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.task import Task
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import Score, Trainer, TrainingResult


class FakeTrainer:
    """Learns nothing but how often samples were visited; the loss falls with every visit.

    Usable as `model = "melisma.testing:FakeTrainer"` in a task.
    """

    def __init__(self, task: Task) -> None:
        self._batch = task.batch

    def initial(self) -> dict[str, NDArray[Any]]:
        """Return parameters that were never trained."""
        return {"visits": np.zeros(1)}

    def train(
        self,
        parameters: Arrays,
        samples: Split,
        passes: int,
        rng: np.random.Generator,  # noqa: ARG002 - the order of samples makes no difference
        stop: Callable[[], bool],
    ) -> TrainingResult:
        """Count the samples of each batch until `stop`."""
        before, visits = float(parameters["visits"][0]), 0
        batches = [min(self._batch, len(samples) - k) for k in range(0, len(samples), self._batch)]
        for size in batches * passes:
            if stop():
                break
            visits += size
        return TrainingResult(
            {"visits": np.array([before + visits])}, visits, _loss(before + visits)
        )

    def score(self, parameters: Arrays, samples: Split) -> Score:
        """Return a loss that falls with visits, and no accuracy."""
        loss = _loss(float(parameters["visits"][0]))
        return Score(len(samples), loss * len(samples), 0, 0)


def _loss(visits: float) -> float:
    return 1 / (1 + visits)


def check_trainer(trainer: Trainer, samples: Split) -> None:
    """Raise `AssertionError` if a trainer breaks a rule that Melisma relies on.

    `samples` are a few samples of the task, at least two.
    """
    initial = trainer.initial()
    _check(len(initial) > 0, "initial() returns no parameters")
    _check(_same(initial, trainer.initial()), "initial() differs from call to call")
    copy = {name: np.array(value) for name, value in initial.items()}

    def train(stop: Callable[[], bool]) -> TrainingResult:
        return trainer.train(initial, samples, 2, np.random.default_rng(1), stop)

    trained = train(lambda: False)
    _check(_same(initial, copy), "train() changes the parameters that it is given")
    _check(trained.parameters.keys() == initial.keys(), "train() returns other parameters")
    expected = 2 * len(samples)
    _check(trained.visits == expected, f"2 passes are {trained.visits} visits, not {expected}")
    again = train(lambda: False)
    _check(_same(trained.parameters, again.parameters), "the same rng gives another result")
    stopped = train(lambda: True)
    _check(stopped.visits == 0, f"train() made {stopped.visits} visits after stop()")
    _check(_same(stopped.parameters, initial), "train() without a visit changes parameters")
    score = trainer.score(trained.parameters, samples)
    _check(score.samples == len(samples), f"score() counts {score.samples} samples")
    _check(bool(np.isfinite(score.loss)), f"score() gives a loss of {score.loss}")


def _same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def _check(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)
