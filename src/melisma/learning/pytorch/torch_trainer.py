"""Training with PyTorch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from melisma.errors import DataError, SettingError, suggest
from melisma.fleet.rng import generator
from melisma.fleet.task import Task
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays, state_arrays
from melisma.learning.pytorch.compute_device import ComputeDevice, LossQueue, choose_device
from melisma.learning.pytorch.models import build_model, to_model_input
from melisma.learning.pytorch.optimizers import (
    FunctionalOptimizer,
    add_proximal_gradient,
    optimizer_for,
)
from melisma.learning.pytorch.resident_data import ResidentData
from melisma.learning.trainer import Score, TrainingResult, TrainingState


def _mse(out: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    # Without reshape, torch would broadcast labels of shape (n,) and outputs of shape (n, 1).
    return functional.mse_loss(out, labels.reshape(out.shape), reduction=reduction)


# Loss of outputs and labels: the mean, or with `reduction="none"` one value for each label.
Loss = Callable[..., Any]
LOSSES: dict[str, Loss] = {
    "cross_entropy": functional.cross_entropy,
    "nll": functional.nll_loss,
    "mse": _mse,
}
SCORE_BATCH = 1000  # samples per evaluation step


@dataclass(frozen=True, eq=False)
class _Restored:
    """The state from which the next training goes on; `origin` are its first weights, for prox."""

    optimizer: FunctionalOptimizer
    origin: list[Tensor]
    rng_states: dict[str, Tensor]
    visits: int
    loss_sum: float


class TorchTrainer:
    """Trains one task with PyTorch, by default on the CPU.

    `device` is a name of `choose_device`. Parameters come and go as arrays of the CPU.
    """

    def __init__(self, task: Task, device: ComputeDevice | str = "cpu") -> None:
        if task.loss not in LOSSES:
            raise SettingError(f"loss is {task.loss!r}; {suggest(task.loss, LOSSES)}")
        if task.loss == "mse" and task.stop.accuracy is not None:
            raise SettingError("stop.accuracy has no meaning with loss mse; use stop.loss")
        self._task, self.loss = task, LOSSES[task.loss]
        self._optimizer, self.prox = optimizer_for(task.optimizer), task.prox
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(task.seed)
            self.model = build_model(task.model, task.model_args)
        self._initial = self._arrays()
        self.device = choose_device(device) if isinstance(device, str) else device
        self.model.to(self.device.torch_device)
        self._losses: LossQueue | None = None
        self._origin: list[Tensor] = []
        self._restored: _Restored | None = None

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """Parameters of the built model by name, cached: the lookup takes as long as a step."""
        return dict(self.model.named_parameters())

    def initial(self) -> dict[str, NDArray[Any]]:
        """Return the initial parameters and buffers, such as those of BatchNorm."""
        return {name: array.copy() for name, array in self._initial.items()}

    def trainable(self) -> list[str]:
        """Return the names of the parameters that training changes; others are averaged."""
        named = self.model.named_parameters(remove_duplicate=False)
        return [name for name, weight in named if weight.requires_grad]

    def train(
        self,
        parameters: Arrays,
        batches: Iterator[Split],
        rng: np.random.Generator,
    ) -> TrainingResult:
        """Train as `Trainer` defines; the optimizer is reset unless the task keeps its state."""
        restored, self._restored = self._restored, None
        self.load_for_training(parameters)
        if restored is not None:
            self._optimizer = restored.optimizer
        elif not self._task.optimizer.keep:
            self._optimizer = optimizer_for(self._task.optimizer)
        # Not `self.weights`: a model may replace its parameters when training begins.
        weights = list(self.model.parameters())
        origin = [weight.detach().clone() for weight in weights] if self.prox else []
        self._origin = origin = origin if restored is None else restored.origin
        data = ResidentData(self.device, self.samples_tensor, self.labels_tensor)
        with _torch_seeded_by(rng):
            if restored is not None:
                self.device.set_rng_states(restored.rng_states)
            # The first batch is requested when the parameters are loaded.
            self.device.synchronize()
            losses = self._losses = LossQueue(self.device)
            if restored is not None:
                losses.visits, losses.loss_sum = restored.visits, restored.loss_sum
            for batch in batches:
                x, y = data.tensors(batch)
                self.model.zero_grad()
                # No variable holds the input: memory freed late costs page faults, 5 % of LeNet.
                loss = self.loss(self.model(_training_input(x)), y)
                loss.backward()
                add_proximal_gradient(weights, origin, self.prox)
                self._optimizer.step(weights)
                losses.add(loss, len(batch))
            losses.drain()
        return training_result(self._arrays(), losses.visits, losses.loss_sum)

    def checkpoint(self) -> TrainingState:
        """Return copies of parameters, optimizer state and generators of the running training."""
        if self._losses is None:
            raise SettingError("there is no training to save; call checkpoint during train")
        self._losses.drain()
        tensors = {f"optimizer.{name}": t for name, t in self._optimizer.state().items()}
        tensors |= {f"origin.{number}": start for number, start in enumerate(self._origin)}
        tensors |= {f"rng.{name}": state for name, state in self.device.rng_states().items()}
        extra = {name: array.copy() for name, array in state_arrays(tensors).items()}
        return TrainingState(self._arrays(), extra, self._losses.visits, self._losses.loss_sum)

    def restore(self, state: TrainingState) -> None:
        """Let the next training continue from a state; raise `DataError` if it does not fit."""
        weights = list(self.model.parameters())
        # Copied into memory of torch.
        tensors = {name: torch.from_numpy(array).clone() for name, array in state.extra.items()}
        optimizer = optimizer_for(self._task.optimizer)
        optimizer.load_state(_below("optimizer.", tensors), weights)
        saved = _below("origin.", tensors)
        origin = [saved[str(number)] for number in range(len(saved))]
        if [start.shape for start in origin] != [w.shape for w in weights if self.prox]:
            raise DataError("a saved training began with weights of another model, or another prox")
        rng_states = _below("rng.", tensors)
        if _forms(rng_states) != _forms(self.device.rng_states()):
            raise DataError("a saved training drew from the generators of another device")
        self._restored = _Restored(
            optimizer,
            [start.to(self.device.torch_device) for start in origin],
            rng_states,
            state.visits,
            state.loss_sum,
        )

    def optimizer_state(self) -> dict[str, NDArray[Any]]:
        """Return copies of the optimizer's state by name."""
        state = state_arrays(self._optimizer.state())
        return {name: array.copy() for name, array in state.items()}

    def load_optimizer_state(self, state: Arrays) -> None:
        """Let the next training begin with this state; raise `DataError` if it does not fit."""
        optimizer = optimizer_for(self._task.optimizer)
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in state.items()}
        optimizer.load_state(tensors, list(self.model.parameters()))
        self._optimizer = optimizer

    def synchronize(self) -> None:
        """Wait until the device has done all queued operations."""
        self.device.synchronize()

    def score(self, parameters: Arrays, samples: Split) -> Score:
        """Return sums over the samples, evaluated in batches."""
        self._load(parameters)
        self.model.eval()
        x, y = self.tensors(samples)
        total = Score(0, 0.0, 0)
        with torch.inference_mode(), _torch_seeded_by(generator(self._task.seed, "score")):
            for start in range(0, len(samples), SCORE_BATCH):
                batch = torch.arange(start, min(start + SCORE_BATCH, len(samples)))
                labels = self.device.move(y[batch])
                out = self.model(to_model_input(self.device.move(x[batch])))
                loss = self.loss(out, labels).item()
                total += Score(len(batch), loss * len(batch), *self._count_correct(out, labels))
        return total

    def _count_correct(self, out: Tensor, labels: Tensor) -> tuple[int, int]:
        """Return the numbers of correct and of all labels; both are 0 for regression."""
        if self._task.loss == "mse":
            return 0, 0
        return int((out.argmax(dim=1) == labels).sum()), labels.numel()

    def load_for_training(self, parameters: Arrays) -> None:
        """Load the parameters into the model and switch it to training mode."""
        self._load(parameters)
        self.model.train()

    def tensors(self, split: Split) -> tuple[Tensor, Tensor]:
        """Return samples and labels as tensors."""
        return self.samples_tensor(split.samples), self.labels_tensor(split.labels)

    def samples_tensor(self, samples: NDArray[Any]) -> Tensor:
        """Return samples as uint8, float32 or, for other integers such as words, int64."""
        return _tensor(samples, _sample_dtype(samples))

    def labels_tensor(self, labels: NDArray[Any]) -> Tensor:
        """Return labels as int64, or as float32 for loss mse."""
        if self._task.loss != "mse" and labels.dtype.kind == "f":
            raise DataError(
                f"labels are {labels.dtype}; loss {self._task.loss} needs integers; "
                "use loss = 'mse' for regression"
            )
        return _tensor(labels, np.float32 if self._task.loss == "mse" else np.int64)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        arrays = state_arrays(self.model.state_dict())
        return {name: array.copy() for name, array in arrays.items()}

    def _load(self, parameters: Arrays) -> None:
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in parameters.items()}
        self.model.load_state_dict(tensors)


def _training_input(samples: Tensor) -> Tensor:
    """Return the input of a model, in memory of torch.

    Products may round differently in memory that NumPy has aligned.
    """
    return samples.clone() if samples.dtype == torch.float32 else to_model_input(samples)


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def training_result(
    parameters: dict[str, NDArray[Any]], visits: int, loss_sum: float
) -> TrainingResult:
    """Return the result of a training; its mean loss is NaN without visits."""
    return TrainingResult(parameters, visits, loss_sum / visits if visits else nan)


@contextmanager
def _torch_seeded_by(rng: np.random.Generator) -> Iterator[None]:
    """Seed torch (dropout and the like) from the seed of `rng`, without drawing from `rng`."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(int(rng.bit_generator.seed_seq.generate_state(1)[0]))
        yield


def _sample_dtype(samples: NDArray[Any]) -> type[np.generic]:
    if samples.dtype == np.uint8:
        return np.uint8
    return np.int64 if samples.dtype.kind in "iu" else np.float32


def _tensor(array: NDArray[Any], dtype: type[np.generic]) -> Tensor:
    """Return a tensor; copy only if the dtype differs or the array is read-only."""
    fits = array.dtype == dtype and array.flags.carray
    return torch.from_numpy(array if fits else np.require(array, dtype, ["C", "W", "A"]))
