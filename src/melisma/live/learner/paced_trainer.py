"""A trainer slowed to the speed of the emulated device, batch by batch."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import Score, Trainer, TrainingResult
from melisma.live.learner.device import Device


class PacedTrainer:
    """Wraps a trainer; counts the samples of each batch at the device."""

    def __init__(self, trainer: Trainer, device: Device, batch: int) -> None:
        self._trainer, self._device, self._batch = trainer, device, batch

    def initial(self) -> dict[str, NDArray[Any]]:
        """Return the initial parameters."""
        return self._trainer.initial()

    def train(
        self,
        parameters: Arrays,
        samples: Split,
        passes: int,
        rng: np.random.Generator,
        stop: Callable[[], bool],
    ) -> TrainingResult:
        """Train, and count samples at the device before each batch and at the end."""
        counted = -self._batch

        def count_and_stop() -> bool:
            nonlocal counted
            counted += self._batch
            self._device.add_samples(self._batch if counted else 0)
            return stop()

        trained = self._trainer.train(parameters, samples, passes, rng, count_and_stop)
        # Batches may be short, and `stop` is not called after the last one.
        self._device.add_samples(trained.visits - max(counted, 0))
        return trained

    def score(self, parameters: Arrays, samples: Split) -> Score:
        """Evaluate parameters on samples."""
        return self._trainer.score(parameters, samples)
