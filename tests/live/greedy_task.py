"""A linear model whose trainings can be repeated, and which one of the learners does not train.

Where it is repeated, in the thread that checks updates, it trains in any case.
"""

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from melisma.learning.data.datasets import Split
from melisma.learning.trainer import TrainingResult, TrainingState

if TYPE_CHECKING:
    from tests.live.tiny_task import Linear, blobs
else:
    from tiny_task import Linear, blobs  # beside this file, in the folder of a run

__all__ = ["Greedy", "Repeatable", "blobs"]
GREEDY_LEARNER = 1


class Repeatable(Linear):
    """Logistic regression that can go on from a state."""

    def __init__(self, task: Any, **settings: Any) -> None:
        super().__init__(task, **settings)
        self._state = TrainingState({}, {}, 0, 0.0)
        self._restored: TrainingState | None = None

    def train(
        self, parameters: Any, batches: Iterator[Split], rng: np.random.Generator
    ) -> TrainingResult:
        restored, self._restored = self._restored, None
        arrays = {name: np.array(array) for name, array in parameters.items()}
        self._state = restored or TrainingState(arrays, {}, 0, 0.0)
        for batch in batches:
            done = super().train(self._state.parameters, iter([batch]), rng)
            visits = self._state.visits + done.visits
            loss_sum = self._state.loss_sum + done.loss * done.visits
            learned = self._learned(self._state.parameters, done.parameters, rng)
            self._state = TrainingState(learned, {}, visits, loss_sum)
        visits, loss = self._state.visits, self._state.loss_sum / max(self._state.visits, 1)
        return TrainingResult(self._state.parameters, visits, loss)

    def _learned(
        self,
        before: dict[str, NDArray[Any]],
        after: dict[str, NDArray[Any]],
        rng: np.random.Generator,
    ) -> dict[str, NDArray[Any]]:
        return after

    def checkpoint(self) -> TrainingState:
        return self._state

    def restore(self, state: TrainingState) -> None:
        self._restored = state

    def trainable(self) -> list[str]:
        return ["weight", "bias"]


class Greedy(Repeatable):
    """The same; one learner adds noise to the old parameters instead of training them."""

    def _learned(
        self,
        before: dict[str, NDArray[Any]],
        after: dict[str, NDArray[Any]],
        rng: np.random.Generator,
    ) -> dict[str, NDArray[Any]]:
        seeds: Any = rng.bit_generator.seed_seq
        checks = threading.current_thread().name.startswith("verify")
        if checks or seeds.entropy[-1] != GREEDY_LEARNER:
            return after
        noise = np.random.default_rng(seeds.entropy[2]).normal(0, 0.01, 4)
        return before | {"weight": np.asarray(before["weight"] + noise, np.float32)}
