"""A trainer that tells the device how far it is, batch by batch."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import Score, Trained, Trainer
from melisma.live.learner.device import Device


class PacedTrainer:
    """Trains as another does; before each batch, and at the end, the device knows what was done."""

    def __init__(self, trainer: Trainer, device: Device, batch: int) -> None:
        self._trainer, self._device, self._batch = trainer, device, batch

    def initial(self) -> dict[str, NDArray[Any]]:
        """As the trainer says."""
        return self._trainer.initial()

    def train(
        self,
        parameters: Arrays,
        samples: Split,
        passes: int,
        rng: np.random.Generator,
        stop: Callable[[], bool],
    ) -> Trained:
        """As the trainer does."""
        told = -self._batch

        def asked() -> bool:
            nonlocal told
            told += self._batch
            self._device.add_samples(self._batch if told else 0)
            return stop()

        done = self._trainer.train(parameters, samples, passes, rng, asked)
        # Batches may be short, and the last one was not asked after.
        self._device.add_samples(done.visits - max(told, 0))
        return done

    def score(self, parameters: Arrays, samples: Split) -> Score:
        """As the trainer does."""
        return self._trainer.score(parameters, samples)
