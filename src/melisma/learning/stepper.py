"""Plain SGD one step at a time, for peers; all parameters are one vector.

Changing the vector in place between two steps changes the model. PyTorch is imported only for a
task that needs it.
"""

import sys
from dataclasses import dataclass, field
from math import nan
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from melisma.errors import DataError, SettingError
from melisma.fleet.task import OptimizerSettings, Task
from melisma.learning.compression import Vector
from melisma.learning.data.datasets import Split
from melisma.learning.trainer import Score
from melisma.learning.trainer_factory import trainer_for


class StepperState(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a stepper in its random numbers; its parameters are kept elsewhere."""

    batches: int
    visits: int
    rng_state: bytes = b""


class Stepper(Protocol):
    """A model that is trained step by step on its own samples.

    `vector` holds all parameters, one after the other. `gradient_sum` is the sum of the gradients
    since the caller last set it to 0. Both are changed in place. `visits` counts samples trained.
    """

    vector: Vector
    gradient_sum: Vector
    visits: int

    def step(self, rate: float) -> float:
        """Apply `vector -= rate * gradient` of the next batch; return its loss before the step.

        Batches never end; every pass over the samples is in a new random order.
        """

    def score(self, samples: Split) -> Score:
        """Evaluate the parameters on the samples."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of the parameters by name, as in a saved model."""

    def state(self) -> StepperState:
        """Return the position between two steps."""

    def restore(self, state: StepperState) -> None:
        """Continue from the position of another stepper that was created with the same arguments.

        Raise `DataError` if the state is invalid.
        """


@dataclass(eq=False)
class NullStepper:
    """Computes nothing, for timing only; counts visits in batches of at most `samples`."""

    batch: int
    samples: int
    vector: Vector = field(default_factory=lambda: np.empty(0, np.float32), init=False)
    gradient_sum: Vector = field(default_factory=lambda: np.empty(0, np.float32), init=False)
    visits: int = field(default=0, init=False)

    def step(self, rate: float) -> float:  # noqa: ARG002 - an argument of Stepper
        """Count the visits of one batch; return NaN as its loss."""
        self.visits += min(self.batch, self.samples)
        return nan

    def score(self, samples: Split) -> Score:  # noqa: ARG002 - an argument of Stepper
        """Return a score of no samples."""
        return Score(0, 0.0, 0)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return no arrays."""
        return {}

    def state(self) -> StepperState:
        """Return the visits."""
        return StepperState(batches=0, visits=self.visits)

    def restore(self, state: StepperState) -> None:
        """Set the visits."""
        self.visits = state.visits


def stepper_for(task: Task, samples: Split, rng: np.random.Generator) -> Stepper:
    """Return a stepper of the task on these samples, with the trainer's initial parameters.

    Raise `SettingError` unless the task uses plain SGD and its model holds float32 parameters
    only; raise `DataError` without samples.
    """
    _check_plain_sgd(task.optimizer)
    _check_orchestrated(task)
    if not len(samples):
        raise DataError("there are no samples to train on; expected at least one")
    trainer = trainer_for(task)
    # A trainer of the user may not need PyTorch: do not import it just to check.
    if "melisma.learning.pytorch.torch_trainer" in sys.modules:
        from melisma.learning.pytorch.torch_stepper import TorchStepper
        from melisma.learning.pytorch.torch_trainer import TorchTrainer

        if type(trainer) is TorchTrainer:
            return TorchStepper(task, trainer, samples, rng)
    raise SettingError(
        f"peers take plain SGD steps: model {task.model} is a trainer and has no single steps; "
        "expected a torch.nn.Module"
    )


def _check_orchestrated(task: Task) -> None:
    """Raise `SettingError` for a setting that only a run with an orchestrator has."""
    default = Task(name=task.name, model=task.model, data=task.data, deadline_s=1.0)
    for key in ("prox", "normalize", "server", "aggregation", "sample", "start", "checkpoints"):
        if getattr(task, key) != getattr(default, key):
            raise SettingError(f"{key} is for runs with an orchestrator; remove it for peers")


def _check_plain_sgd(settings: OptimizerSettings) -> None:
    wrong = [
        f"optimizer.name is {settings.name!r}; expected 'sgd'" if settings.name != "sgd" else "",
        f"optimizer.momentum is {settings.momentum:g}; expected 0" if settings.momentum else "",
        f"optimizer.weight_decay is {settings.weight_decay:g}; expected 0"
        if settings.weight_decay
        else "",
    ]
    if any(wrong):
        raise SettingError(f"peers take plain SGD steps: {', '.join(filter(None, wrong))}")
