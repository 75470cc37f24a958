"""Plain SGD with PyTorch one step at a time; parameters and gradients are one array each.

A step equals that of `torch.optim.SGD` bit for bit: parameters are updated one by one, because
an operation on one long array need not round like operations on its parts.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from melisma.errors import DataError, SettingError
from melisma.fleet.task import Task
from melisma.learning.batches import batch_indices
from melisma.learning.data.datasets import Split
from melisma.learning.pytorch.models import to_model_input
from melisma.learning.pytorch.torch_trainer import TorchTrainer
from melisma.learning.stepper import StepperState
from melisma.learning.trainer import Score


class TorchStepper:
    """A `Stepper` that takes over the model of the trainer."""

    def __init__(
        self, task: Task, trainer: TorchTrainer, samples: Split, rng: np.random.Generator
    ) -> None:
        self._trainer, self._model = trainer, trainer.model
        _check_model(task.model, self._model)
        size = sum(weight.numel() for weight in self._model.parameters())
        self.vector = np.empty(size, np.float32)
        self.gradient_sum = np.zeros(size, np.float32)
        self.visits = self._taken = 0
        self._sum, self._gradient = torch.from_numpy(self.gradient_sum), torch.zeros(size)
        self._trainable = _flatten_into(self._model, torch.from_numpy(self.vector), self._gradient)
        self._x, self._y = trainer.tensors(samples)
        self._batches = batch_indices(len(samples), sys.maxsize, task.batch, rng)
        # Seeded as `TorchTrainer.train` seeds torch, so that both give the same numbers.
        seed = int(rng.bit_generator.seed_seq.generate_state(1)[0])
        self._rng_state = torch.Generator().manual_seed(seed).get_state()
        self._model.train()

    def step(self, rate: float) -> float:
        """Take one step of plain SGD on the next batch."""
        batch = torch.from_numpy(next(self._batches))
        self._gradient.zero_()
        with self._own_rng_state():
            loss = self._trainer.loss(self._model(to_model_input(self._x[batch])), self._y[batch])
            loss.backward()
        with torch.no_grad():
            for weight, gradient in self._trainable:
                weight.add_(gradient, alpha=-rate)
            self._sum.add_(self._gradient)
        self.visits += len(batch)
        self._taken += 1
        return float(loss.item())

    def score(self, samples: Split) -> Score:
        """Evaluate the parameters on the samples."""
        try:
            return self._trainer.score(self.arrays(), samples)
        finally:
            self._model.train()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return copies of the parameters by name."""
        state = self._model.state_dict()
        return {name: tensor.numpy().copy() for name, tensor in state.items()}

    def state(self) -> StepperState:
        """Return the number of batches taken, and the random state of PyTorch."""
        state = self._rng_state.numpy().tobytes()
        return StepperState(batches=self._taken, visits=self.visits, rng_state=state)

    def restore(self, state: StepperState) -> None:
        """Skip the batches that were taken: their order follows from the seed."""
        expected = self._rng_state.numel()
        if len(state.rng_state) != expected:
            found = len(state.rng_state)
            raise DataError(f"{found} bytes of random state; this PyTorch expects {expected}")
        for _ in range(self._taken, state.batches):
            next(self._batches)
        self._taken, self.visits = state.batches, state.visits
        self._rng_state = torch.frombuffer(bytearray(state.rng_state), dtype=torch.uint8)

    @contextmanager
    def _own_rng_state(self) -> Iterator[None]:
        """Use the random state of the last step; restore the global state afterwards.

        Measured: 8 microseconds, a third of the time of `fork_rng`.
        """
        global_state = torch.get_rng_state()
        torch.set_rng_state(self._rng_state)
        try:
            yield
            self._rng_state = torch.get_rng_state()
        finally:
            torch.set_rng_state(global_state)


def _flatten_into(model: nn.Module, flat: Tensor, gradient: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Move parameters and gradients into the arrays; return the trainable ones as pairs."""
    trainable, start = [], 0
    for weight in model.parameters():
        end = start + weight.numel()
        view = flat[start:end].view(weight.shape)
        weight.data = view.copy_(weight.detach())
        if weight.requires_grad:
            weight.grad = gradient[start:end].view(weight.shape)
            trainable.append((weight.data, weight.grad))
        start = end
    return trainable


def _check_model(name: str, model: nn.Module) -> None:
    """Raise `SettingError` unless the model holds float32 parameters only, some trainable."""
    problem = f"peers exchange parameters as one vector of float32: model {name} has"
    for buffer, _ in model.named_buffers():
        raise SettingError(f"{problem} a buffer, {buffer}; expected parameters only")
    for parameter, weight in model.named_parameters():
        if weight.dtype != torch.float32:
            raise SettingError(f"{problem} {parameter} in {weight.dtype}; expected torch.float32")
    if not any(weight.requires_grad for weight in model.parameters()):
        raise SettingError(f"{problem} no parameters to train")
