"""Models in plain PyTorch, for the Flower app: the same layers, batches and steps as in Melisma.

A client with `samples-per-s` is paced: after each batch it sleeps until a device of that speed
would have trained the samples so far, as emulated devices of Melisma do.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

MIN_SLEEP_S = 0.05  # as emulated devices of Melisma: shorter sleeps are collected


def initial(config: Any) -> list[Any]:
    torch.manual_seed(config["seed"])
    return _arrays(MODELS[config["task"]]())


def train(
    arrays: list[Any], path: Path, config: Any, samples_per_s: float | None = None
) -> tuple[list[Any], int]:
    """Train several passes over one client's samples in random order."""
    model = _model_with(config["task"], arrays)
    optimizer = torch.optim.SGD(model.parameters(), config["lr"], config.get("momentum", 0.0))
    x, y = _tensors(path)
    began, trained = time.monotonic(), 0
    for _ in range(config["passes"]):
        for batch in torch.randperm(len(y)).split(config["batch"]):
            optimizer.zero_grad()
            functional.cross_entropy(model(_to_input(x[batch])), y[batch]).backward()
            optimizer.step()
            trained += len(batch)
            if samples_per_s is not None:
                _sleep_until(began + trained / samples_per_s, MIN_SLEEP_S)
    if samples_per_s is not None:
        _sleep_until(began + trained / samples_per_s)
    return _arrays(model), len(y)


def accuracy(arrays: list[Any], path: Path, config: Any) -> float:
    model, (x, y) = _model_with(config["task"], arrays), _tensors(path)
    with torch.inference_mode():
        predicted = torch.cat([model(_to_input(part)).argmax(dim=1) for part in x.split(1000)])
    return float((predicted == y).float().mean())


def _sleep_until(at: float, min_s: float = 0.0) -> None:
    left_s = at - time.monotonic()
    if left_s > min_s:
        time.sleep(left_s)


def _to_input(samples: torch.Tensor) -> torch.Tensor:
    """Return images as numbers from 0 to 1, with the channels of colour images first."""
    numbers = samples.float() / 255
    return numbers.movedim(-1, 1) if samples.dim() == 4 else numbers


def _twonn() -> nn.Module:
    layers = [nn.Linear(784, 50), nn.ReLU(), nn.Linear(50, 20), nn.ReLU(), nn.Linear(20, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def _cifar_net() -> nn.Module:
    convolutions = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
    convolutions += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    layers = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    return nn.Sequential(*convolutions, nn.Flatten(), *layers)


MODELS = {"mnist": _twonn, "cifar": _cifar_net}


def _model_with(task: str, arrays: list[Any]) -> nn.Module:
    model = MODELS[task]()
    names = model.state_dict()
    tensors = (torch.from_numpy(np.array(array)) for array in arrays)
    model.load_state_dict(dict(zip(names, tensors, strict=True)))
    return model


def _arrays(model: nn.Module) -> list[Any]:
    return [tensor.detach().numpy().copy() for tensor in model.state_dict().values()]


def _tensors(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(path) as file:
        return torch.from_numpy(file["samples"]), torch.from_numpy(file["labels"].astype(np.int64))
