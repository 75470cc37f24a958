"""Training of many learners for a simulation: together if the model allows it, else one by one.

Both ways give the results of `Trainer.train`; `torch_batched` states the rounding differences.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np

from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.task import Task
from melisma.learning.batches import batch_indices
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import Trainer, TrainingResult

# Learners in one stack: about thirty amortize the cost of calls; more do not fit in the cache.
STACK_LEARNERS = 32
# Factor on STACK_LEARNERS for short work: setting up a stack costs as much as several batches.
SHORT_WORK_FACTOR = 2
# Parameters of a learner in a stack. Measured: larger models are faster one by one.
MAX_STACKED_BYTES = 5 << 19


@dataclass(frozen=True, eq=False)
class TrainingWork:
    """The training of one learner in a cycle; it stops after `batches`, even within a pass.

    `rows` selects its samples (default: all). `rng` is called when the training starts.
    """

    samples: Split
    passes: int
    rng: Callable[[], np.random.Generator]
    batches: int
    rows: Ints | None = None

    def __len__(self) -> int:
        return len(self.samples) if self.rows is None else len(self.rows)

    @property
    def own_samples(self) -> Split:
        """The selected samples, as a copy."""
        if self.rows is None:
            return self.samples
        return self.samples.take(self.rows)

    def iterate(self, size: int, rng: np.random.Generator) -> Iterator[Split]:
        """Yield the batches, each of up to `size` samples."""
        batches = batch_indices(len(self), self.passes, size, rng)
        for rows in islice(batches, self.batches):
            yield self.samples.take(rows if self.rows is None else self.rows[rows])


@dataclass(frozen=True, eq=False)
class BatchedResults:
    """Results of a group of works: their indices, and results stacked along the first axis."""

    indices: Ints
    parameters: Arrays
    visits: Ints
    loss: Floats

    @classmethod
    def from_one(cls, index: int, trained: TrainingResult) -> "BatchedResults":
        """Return the results of a single work."""
        arrays = {name: array[None] for name, array in trained.parameters.items()}
        return cls(np.array([index]), arrays, np.array([trained.visits]), np.array([trained.loss]))


def train_many(
    task: Task, trainer: Trainer, parameters: Arrays, works: Sequence[TrainingWork]
) -> Iterator[BatchedResults]:
    """Yield the results of `trainer.train` for each work, all from the same parameters."""
    train_together = _bind_stacked_training(task, trainer, works)
    if train_together is not None:
        return train_together(parameters)
    results = (train_one(task, trainer, parameters, work) for work in works)
    return (BatchedResults.from_one(index, trained) for index, trained in enumerate(results))


def can_train_together(task: Task, trainer: Trainer, works: Sequence[TrainingWork]) -> bool:
    """Whether these learners can train together, as shown by a trial."""
    return _bind_stacked_training(task, trainer, works) is not None


def train_one(
    task: Task, trainer: Trainer, parameters: Arrays, work: TrainingWork
) -> TrainingResult:
    """Train one learner alone."""
    rng = work.rng()
    return trainer.train(parameters, work.iterate(task.batch, rng), rng)


def _bind_stacked_training(
    task: Task, trainer: Trainer, works: Sequence[TrainingWork]
) -> Callable[[Arrays], Iterator[BatchedResults]] | None:
    # A trainer of the user may not need PyTorch: do not import it just to check.
    if "melisma.learning.pytorch.torch_trainer" not in sys.modules or len(works) < 2:
        return None
    from melisma.learning.pytorch.torch_batched import choose_stacked_model, train_stacked
    from melisma.learning.pytorch.torch_trainer import TorchTrainer

    if type(trainer) is not TorchTrainer:
        return None
    model = choose_stacked_model(task, trainer, works)
    return None if model is None else partial(train_stacked, task, trainer, model, works)
