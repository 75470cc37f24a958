"""A trainer without a framework, and a check of what Melisma expects of a trainer."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.task import Task
from melisma.learning.batches import BatchStream, batches_of
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import ResumableTrainer, Score, Trainer, TrainingResult
from melisma.learning.trainer_factory import signature_problem


class FakeTrainer:
    """Learns nothing but how often samples were visited; the loss falls with every visit.

    Usable as `model = "melisma.testing:FakeTrainer"` in a task.
    """

    def __init__(self, task: Task) -> None:
        del task

    def initial(self) -> dict[str, NDArray[Any]]:
        """Return parameters that were never trained."""
        return {"visits": np.zeros(1)}

    def train(
        self,
        parameters: Arrays,
        batches: Iterator[Split],
        rng: np.random.Generator,  # noqa: ARG002 - it uses no random numbers
    ) -> TrainingResult:
        """Count the samples of all batches."""
        before, visits = float(parameters["visits"][0]), sum(map(len, batches))
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

    def train(passes: int) -> TrainingResult:
        rng = np.random.default_rng(1)
        batches = batches_of(samples, passes, 1 + len(samples) // 3, rng)
        result = trainer.train(initial, batches, rng)
        left = batches.planned_visits_left
        _check(not left, f"train() returned before the batches ended: {left} visits are left")
        return result

    problem = signature_problem(trainer)
    _check(problem is None, str(problem))
    trained = train(2)
    _check(_same(initial, copy), "train() changes the parameters that it is given")
    _check(trained.parameters.keys() == initial.keys(), "train() returns other parameters")
    expected = 2 * len(samples)
    _check(trained.visits == expected, f"2 passes are {trained.visits} visits, not {expected}")
    again = train(2)
    _check(_same(trained.parameters, again.parameters), "the same rng gives another result")
    if isinstance(trainer, ResumableTrainer):
        _check_resumed(trainer, samples, trained)
    empty = train(0)
    _check(empty.visits == 0, f"train() reports {empty.visits} visits without a batch")
    _check(_same(empty.parameters, initial), "train() without a batch changes parameters")
    score = trainer.score(trained.parameters, samples)
    _check(score.samples == len(samples), f"score() counts {score.samples} samples")
    _check(bool(np.isfinite(score.loss)), f"score() gives a loss of {score.loss}")


def _check_resumed(trainer: ResumableTrainer, samples: Split, expected: TrainingResult) -> None:
    """Compare a training that is continued from a checkpoint with one that was not interrupted."""
    size, former, saved = 1 + len(samples) // 3, np.random.default_rng(1), []

    def stop() -> bool:
        saved.append((trainer.checkpoint(), batches.state(), former.bit_generator.state))
        return len(saved) > 2

    batches = batches_of(samples, 2, size, former, stop)
    trainer.train(trainer.initial(), batches, former)
    state, place, random = saved[-1]
    rng = np.random.default_rng(1)
    rng.bit_generator.state = random
    rest = BatchStream(size, rng)
    rest.restore(place, [samples])
    rest.close()
    trainer.restore(state)
    resumed = trainer.train(state.parameters, rest, rng)
    same = _same(resumed.parameters, expected.parameters) and resumed.visits == expected.visits
    _check(same, "a training that is continued from checkpoint() gives another result")


def _same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def _check(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)
