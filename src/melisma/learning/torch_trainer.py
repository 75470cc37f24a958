"""Training with PyTorch."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from melisma.errors import SettingError
from melisma.fleet.task import Task
from melisma.learning.data import Split
from melisma.learning.models import build, shaped
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import Score, Trained

LOSSES: dict[str, Callable[[], nn.Module]] = {
    "cross_entropy": nn.CrossEntropyLoss,
    "nll": nn.NLLLoss,
}
OPTIMIZERS = ("sgd", "adam")
SCORED = 1000  # samples at a time


class TorchTrainer:
    """Trains one task with PyTorch on the processor."""

    def __init__(self, task: Task) -> None:
        if task.loss not in LOSSES:
            raise SettingError(f"loss is {task.loss!r}; expected one of {', '.join(LOSSES)}")
        if task.optimizer.name not in OPTIMIZERS:
            known = ", ".join(OPTIMIZERS)
            raise SettingError(
                f"optimizer.name is {task.optimizer.name!r}; expected one of {known}"
            )
        self._task, self._loss = task, LOSSES[task.loss]()
        with torch.random.fork_rng():
            torch.manual_seed(task.seed)
            self._model = build(task.model, task.model_args)
        self._initial = self._arrays()
        self._state: dict[str, Any] | None = None

    def initial(self) -> dict[str, NDArray[Any]]:
        """Parameters to begin with; buffers such as BatchNorm's are among them."""
        return {name: array.copy() for name, array in self._initial.items()}

    def train(
        self,
        parameters: Arrays,
        samples: Split,
        passes: int,
        rng: np.random.Generator,
        stop: Callable[[], bool],
    ) -> Trained:
        """As `Trainer` says; the optimiser begins anew unless the task keeps its state."""
        self._load(parameters)
        self._model.train()
        optimizer = self._optimizer()
        x, y = _tensors(samples)
        visits, loss_sum = 0, 0.0
        for _ in range(passes):
            for batch in _parts(rng.permutation(len(samples)), self._task.batch):
                if stop():
                    return self._trained(optimizer, visits, loss_sum)
                optimizer.zero_grad()
                loss = self._loss(self._model(shaped(x[batch])), y[batch])
                loss.backward()
                optimizer.step()
                visits, loss_sum = visits + len(batch), loss_sum + loss.item() * len(batch)
        return self._trained(optimizer, visits, loss_sum)

    def score(self, parameters: Arrays, samples: Split) -> Score:
        """Sums over the samples, some at a time."""
        self._load(parameters)
        self._model.eval()
        x, y = _tensors(samples)
        total = Score(0, 0.0, 0)
        with torch.inference_mode():
            for some in _parts(np.arange(len(samples)), SCORED):
                out = self._model(shaped(x[some]))
                right = int((out.argmax(dim=1) == y[some]).sum())
                total += Score(len(some), self._loss(out, y[some]).item() * len(some), right)
        return total

    def _trained(self, optimizer: torch.optim.Optimizer, visits: int, loss_sum: float) -> Trained:
        if self._task.optimizer.keep:
            self._state = optimizer.state_dict()
        return Trained(self._arrays(), visits, loss_sum / visits if visits else float("nan"))

    def _optimizer(self) -> torch.optim.Optimizer:
        said, weights = self._task.optimizer, self._model.parameters()
        optimizer: torch.optim.Optimizer
        if said.name == "adam":
            optimizer = torch.optim.Adam(weights, said.lr, weight_decay=said.weight_decay)
        else:
            optimizer = torch.optim.SGD(weights, said.lr, said.momentum, 0, said.weight_decay)
        if self._state is not None:
            optimizer.load_state_dict(self._state)
        return optimizer

    def _arrays(self) -> dict[str, NDArray[Any]]:
        state = self._model.state_dict()
        return {name: tensor.detach().numpy().copy() for name, tensor in state.items()}

    def _load(self, parameters: Arrays) -> None:
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in parameters.items()}
        self._model.load_state_dict(tensors)


def _parts(order: NDArray[np.int64], size: int) -> Iterator[Tensor]:
    return (torch.from_numpy(order[start : start + size]) for start in range(0, len(order), size))


def _tensors(samples: Split) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(samples.samples), torch.from_numpy(samples.labels.astype(np.int64))
