"""A scheme, a trainer, a partition and faults of one's own, named in TASK.toml and options."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.allocation import CyclePlan, CycleProblem
from melisma.errors import InfeasibleError
from melisma.fleet import Fleet, Task
from melisma.learning.data.datasets import Split
from melisma.learning.trainer import Score, TrainingResult

Arrays = dict[str, NDArray[Any]]
Pair = tuple[NDArray[np.float32], NDArray[np.int64]]


def fastest_first(problem: CycleProblem, passes: int | None) -> CyclePlan:
    """Give the fastest learner all that fits, then the next, until all shards are dealt."""
    most = problem.most_shards(passes or 1)
    if most.sum() == 0:
        raise InfeasibleError(
            "no learner can train a shard by the deadline",
            constraint="deadline_s",
            miss=float(problem.seconds(1, passes or 1).min() - problem.deadline_s),
            nearest={"deadline_s": float(problem.seconds(1, passes or 1).min())},
        )
    order = np.argsort(problem.train_s, kind="stable")
    before = np.cumsum(most[order]) - most[order]
    shards = np.zeros_like(most)
    shards[order] = np.clip(problem.shards - before, 0, most[order])
    return CyclePlan(shards, passes or 1)


def by_region(
    labels: NDArray[Any], sizes: NDArray[np.int64], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Give the samples of each label to neighbouring devices, a tenth of them at random."""
    order = np.argsort(labels, kind="stable")
    moved = rng.permutation(order.size)[: order.size // 10]
    order[np.sort(moved)] = order[moved]
    return np.split(order[: sizes.sum()], np.cumsum(sizes)[:-1])


def rush_hour(fleet: Fleet, until_s: float, rng: np.random.Generator) -> str:
    """Slow every phone down in the middle of the run, and crash one other device."""
    others = [name for name in fleet.names if not name.startswith("phone")]
    middle_s = 0.4 * until_s
    return (
        f"slow phone at {middle_s:.1f} for {0.2 * until_s:.1f} by 3; "
        f"crash {rng.choice(others)} at {middle_s:.1f} for {0.1 * until_s:.1f}"
    )


class Softmax:
    """A trainer: softmax regression in NumPy, one gradient step for each batch."""

    def __init__(self, task: Task, *, features: int = 8, classes: int = 4) -> None:
        self._lr, self._shape = task.optimizer.lr, (features, classes)

    def initial(self) -> Arrays:
        """Return the initial parameters."""
        return {"weight": np.zeros(self._shape), "bias": np.zeros(self._shape[1])}

    def train(
        self,
        parameters: Arrays,
        batches: Iterator[Split],
        rng: np.random.Generator,  # noqa: ARG002 - for trainers with dropout, for example
    ) -> TrainingResult:
        """Train each batch once, until there are no more."""
        weight, bias = parameters["weight"].copy(), parameters["bias"].copy()
        visits, loss_sum = 0, 0.0
        for batch in batches:
            error, loss = self._errors(weight, bias, batch)
            weight -= self._lr * batch.samples.T @ error / len(batch)
            bias -= self._lr * error.mean(axis=0)
            visits, loss_sum = visits + len(batch), loss_sum + loss
        return TrainingResult({"weight": weight, "bias": bias}, visits, loss_sum / max(visits, 1))

    def score(self, parameters: Arrays, samples: Split) -> Score:
        """Return the summed loss and the number of correct predictions."""
        error, loss = self._errors(parameters["weight"], parameters["bias"], samples)
        rows = np.arange(len(samples))
        error[rows, samples.labels] += 1.0  # back to probabilities
        correct = int((error.argmax(axis=1) == samples.labels).sum())
        return Score(len(samples), loss, correct, len(samples))

    def _errors(
        self, weight: NDArray[Any], bias: NDArray[Any], batch: Split
    ) -> tuple[NDArray[Any], float]:
        logits = batch.samples @ weight + bias
        share = np.exp(logits - logits.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        rows = np.arange(len(batch))
        loss = float(-np.log(np.maximum(share[rows, batch.labels], 1e-12)).sum())
        share[rows, batch.labels] -= 1.0
        return share, loss


def load(train: int = 2000, test: int = 400) -> tuple[Pair, Pair]:
    """Return points around four centres, for training and for testing."""
    rng = np.random.default_rng(4)
    centres = rng.normal(0.0, 1.5, (4, 8))

    def draw(count: int) -> Pair:
        labels = rng.integers(0, 4, count)
        points = centres[labels] + rng.normal(0.0, 1.0, (count, 8))
        return points.astype(np.float32), labels.astype(np.int64)

    return draw(train), draw(test)
