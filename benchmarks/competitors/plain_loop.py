"""Federated averaging as a plain PyTorch loop, and what the peers of a simulation share.

`python -m benchmarks.competitors.plain_loop ORDER.json` trains and writes when each round ended.
"""

import json
import sys
import time
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

State = dict[str, Tensor]


class Order(NamedTuple):
    """What is to be trained, on which data, and where the times go."""

    data: str
    out: str
    learners: int
    widths: list[int]
    rounds: int
    timed: int
    batch: int
    lr: float

    @classmethod
    def read(cls, path: str) -> "Order":
        return cls(**json.loads(Path(path).read_text()))

    def write(self, ended_s: Sequence[float], model: nn.Module, unseen_s: float = 0.0) -> None:
        """When rounds ended, how good the model is, and processor time that nobody else tells."""
        said = {"ended_s": [*ended_s], **score(model, self.data), "unseen_s": unseen_s}
        Path(self.out).write_text(json.dumps(said))


def layers(widths: Sequence[int]) -> list[nn.Module]:
    """Fully connected, with ReLU between them."""
    found: list[nn.Module] = []
    for before, after in pairwise(widths):
        found += [nn.Linear(before, after), nn.ReLU()]
    return found[:-1]


def beginning(path: str, names: Sequence[str]) -> State:
    """The parameters that everybody begins with."""
    with np.load(path) as file:
        return {name: torch.from_numpy(file[f"start-{n}"]) for n, name in enumerate(names)}


@cache
def learners(path: str, count: int) -> list[tuple[Tensor, Tensor]]:
    """Samples as numbers from 0 to 1, and labels, of each learner."""
    x, y = _tensors(path, "train")
    size = len(y) // count
    return list(zip(torch.split(x, size), torch.split(y, size), strict=True))


def trained(model: nn.Module, x: Tensor, y: Tensor, order: Order) -> None:
    """One pass in random order."""
    optimizer = torch.optim.SGD(model.parameters(), order.lr)
    for batch in torch.split(torch.randperm(len(y)), order.batch):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def score(model: nn.Module, path: str) -> dict[str, float]:
    """Accuracy and loss on the test samples."""
    x, y = _tensors(path, "test")
    with torch.inference_mode():
        out = model(x)
        right = (out.argmax(dim=1) == y).float().mean()
        return {"accuracy": float(right), "loss": float(functional.cross_entropy(out, y))}


def main() -> None:
    """Every learner in turn with one model, and the mean of what comes out."""
    order = Order.read(sys.argv[1])
    model, own = nn.Sequential(*layers(order.widths)), learners(order.data, order.learners)
    whole = beginning(order.data, [*model.state_dict()])
    samples, ended_s = sum(len(y) for _, y in own), []
    for _ in range(order.rounds):
        mean = {name: torch.zeros_like(each) for name, each in whole.items()}
        for x, y in own:
            model.load_state_dict(whole)
            trained(model, x, y, order)
            for name, each in model.state_dict().items():
                mean[name].add_(each, alpha=len(y) / samples)
        whole = mean
        ended_s.append(time.monotonic())
    model.load_state_dict(whole)
    order.write(ended_s, model)


def _tensors(path: str, part: str) -> tuple[Tensor, Tensor]:
    with np.load(path) as file:
        x: Any = torch.from_numpy(file[f"{part}-x"])
        return x.flatten(1).float() / 255, torch.from_numpy(file[f"{part}-y"].astype(np.int64))


if __name__ == "__main__":
    main()
