"""Limits for the code of a task on a device that trusts it: memory of the process, and time."""

import faulthandler
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import (
    ResumableTrainer,
    Score,
    Trainer,
    TrainingResult,
    TrainingState,
    synchronize,
)

MEMORY_FRACTION: Final = 0.75
"""The share of this machine's memory that such a process may use, unless its owner states it."""
DEADLINES: Final = 4.0
"""Code of a task is ended when it takes this many deadlines, and `GRACE_S`."""
GRACE_S: Final = 60.0


def default_memory_bytes() -> int:
    """Return the share of this machine's memory that the code of a task may use."""
    return int(MEMORY_FRACTION * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def limit_memory(size_bytes: int) -> None:
    """Limit the private memory of this process; more raises `MemoryError` in it.

    Address space is not limited: GPU drivers reserve far more than there is.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = size_bytes if hard == resource.RLIM_INFINITY else min(size_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End this process if the context takes longer, with the place where it was on stderr.

    This works while the code holds the interpreter's lock, too.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class WatchedTrainer:
    """A trainer; this process ends if one of its methods takes a multiple of `deadline_s`."""

    def __init__(self, trainer: Trainer, deadline_s: float) -> None:
        self._trainer, self._seconds = trainer, DEADLINES * deadline_s + GRACE_S
        self.device: Any = getattr(trainer, "device", None)

    def initial(self) -> dict[str, NDArray[Any]]:
        """Return the initial parameters."""
        with time_limit(self._seconds):
            return self._trainer.initial()

    def train(
        self, parameters: Arrays, batches: Iterator[Split], rng: np.random.Generator
    ) -> TrainingResult:
        """Train all batches."""
        with time_limit(self._seconds):
            return self._trainer.train(parameters, batches, rng)

    def synchronize(self) -> None:
        """Wait until the trainer has completed its queued work."""
        with time_limit(self._seconds):
            synchronize(self._trainer)

    def score(self, parameters: Arrays, samples: Split) -> Score:
        """Evaluate the parameters on the samples."""
        with time_limit(self._seconds):
            return self._trainer.score(parameters, samples)


class WatchedResumableTrainer(WatchedTrainer):
    """A watched trainer whose trainings can be continued."""

    def __init__(self, trainer: ResumableTrainer, deadline_s: float) -> None:
        super().__init__(trainer, deadline_s)
        self._resumable = trainer

    def checkpoint(self) -> TrainingState:
        """Return the state of the training that runs, within the limit of that training."""
        return self._resumable.checkpoint()

    def restore(self, state: TrainingState) -> None:
        """Let the next training continue."""
        with time_limit(self._seconds):
            self._resumable.restore(state)


def watch_trainer(trainer: Trainer, deadline_s: float) -> WatchedTrainer:
    """Return a watched trainer; its trainings can be continued if those of `trainer` can."""
    if isinstance(trainer, ResumableTrainer):
        return WatchedResumableTrainer(trainer, deadline_s)
    return WatchedTrainer(trainer, deadline_s)
