"""Plain SGD one step at a time, on all parameters as one vector: what a peer computes.

Between two steps the vector may be changed in place, and the model with it. PyTorch is imported
only for a task that needs it.
"""

import sys
from dataclasses import dataclass, field
from math import nan
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError, SettingError
from melisma.fleet.task import OptimizerSettings, Task
from melisma.learning.compression import Vector
from melisma.learning.data.datasets import Split
from melisma.learning.trainer import Score
from melisma.learning.trainer_factory import trainer_for


class Stepper(Protocol):
    """A model that is trained step by step on samples of its own.

    `vector` holds all parameters, one after the other. `gradient_sum` is the sum of the gradients
    since the caller last set it to 0. Both are changed in place. `visits` counts samples trained.
    """

    vector: Vector
    gradient_sum: Vector
    visits: int

    def step(self, rate: float) -> float:
        """Take the next batch and `vector -= rate * gradient`; the loss of the batch before it.

        There is no end to the batches; every pass over the samples is in an order of its own.
        """

    def score(self, samples: Split) -> Score:
        """How good the parameters are."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Copies of the parameters by name, as a model is saved."""


@dataclass(eq=False)
class NullStepper:
    """For timing only: nothing is computed, visits are counted in batches of at most `samples`."""

    batch: int
    samples: int
    vector: Vector = field(default_factory=lambda: np.empty(0, np.float32), init=False)
    gradient_sum: Vector = field(default_factory=lambda: np.empty(0, np.float32), init=False)
    visits: int = field(default=0, init=False)

    def step(self, rate: float) -> float:  # noqa: ARG002 - as `Steps` says
        """A batch was visited, and its loss is not known."""
        self.visits += min(self.batch, self.samples)
        return nan

    def score(self, samples: Split) -> Score:  # noqa: ARG002 - as `Steps` says
        """Of no samples."""
        return Score(0, 0.0, 0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """None."""
        return {}


def stepper_for(task: Task, samples: Split, rng: np.random.Generator) -> Stepper:
    """Steps of a task on these samples, from the parameters that its trainer begins with.

    `SettingError` where the task asks for more than plain SGD, or its model has more than
    parameters in 32 bits; `DataError` where there are no samples.
    """
    _check_plain_sgd(task.optimizer)
    if not len(samples):
        raise DataError("there are no samples to take steps on; expected at least one")
    trainer = trainer_for(task)
    # A trainer of one's own needs no PyTorch, and it is not imported to find that out.
    if "melisma.learning.pytorch.torch_trainer" in sys.modules:
        from melisma.learning.pytorch.torch_stepper import TorchStepper
        from melisma.learning.pytorch.torch_trainer import TorchTrainer

        if type(trainer) is TorchTrainer:
            return TorchStepper(task, trainer, samples, rng)
    raise SettingError(
        f"peers take plain SGD steps: model {task.model} trains by itself, and cannot be stepped; "
        "expected a torch.nn.Module"
    )


def _check_plain_sgd(said: OptimizerSettings) -> None:
    wrong = [
        f"optimizer.name is {said.name!r}; expected 'sgd'" if said.name != "sgd" else "",
        f"optimizer.momentum is {said.momentum:g}; expected 0" if said.momentum else "",
        f"optimizer.weight_decay is {said.weight_decay:g}; expected 0" if said.weight_decay else "",
    ]
    if any(wrong):
        raise SettingError(f"peers take plain SGD steps: {', '.join(filter(None, wrong))}")
