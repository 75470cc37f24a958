"""TwoNN in plain PyTorch, for the Flower app: the same model, batches and steps as in Melisma."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def initial(config: Any) -> list[Any]:
    torch.manual_seed(config["seed"])
    return _arrays(_model())


def train(arrays: list[Any], path: Path, config: Any) -> tuple[list[Any], int]:
    """Train several passes over one client's samples in random order."""
    model = _model_with(arrays)
    optimizer = torch.optim.SGD(model.parameters(), config["lr"])
    x, y = _tensors(path)
    for _ in range(config["passes"]):
        for batch in torch.randperm(len(y)).split(config["batch"]):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[batch].float() / 255), y[batch]).backward()
            optimizer.step()
    return _arrays(model), len(y)


def accuracy(arrays: list[Any], path: Path) -> float:
    x, y = _tensors(path)
    with torch.inference_mode():
        predicted = _model_with(arrays)(x.float() / 255).argmax(dim=1)
    return float((predicted == y).float().mean())


def _model() -> nn.Module:
    layers = [nn.Linear(784, 50), nn.ReLU(), nn.Linear(50, 20), nn.ReLU(), nn.Linear(20, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def _model_with(arrays: list[Any]) -> nn.Module:
    model = _model()
    names = model.state_dict()
    tensors = (torch.from_numpy(np.array(array)) for array in arrays)
    model.load_state_dict(dict(zip(names, tensors, strict=True)))
    return model


def _arrays(model: nn.Module) -> list[Any]:
    return [tensor.detach().numpy().copy() for tensor in model.state_dict().values()]


def _tensors(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(path) as file:
        return torch.from_numpy(file["samples"]), torch.from_numpy(file["labels"].astype(np.int64))
