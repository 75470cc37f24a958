"""Federated averaging as a plain PyTorch loop, and functions shared by simulated competitors.

`python -m benchmarks.competitors.plain_loop JOB.json` trains and writes when each round ended.
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


class Job(NamedTuple):
    """The training to do, its data, and the file for its results."""

    data: str
    out: str
    learners: int
    widths: list[int]
    rounds: int
    timed: int
    batch: int
    lr: float

    @classmethod
    def read(cls, path: str) -> "Job":
        return cls(**json.loads(Path(path).read_text()))

    def write(self, ended_s: Sequence[float], model: nn.Module, unseen_s: float = 0.0) -> None:
        """Write when rounds ended, the scores, and processor time that the caller cannot see."""
        results = {"ended_s": [*ended_s], **score(model, self.data), "unseen_s": unseen_s}
        Path(self.out).write_text(json.dumps(results))


def layers(widths: Sequence[int]) -> list[nn.Module]:
    """Return fully connected layers with ReLU between them."""
    modules: list[nn.Module] = []
    for before, after in pairwise(widths):
        modules += [nn.Linear(before, after), nn.ReLU()]
    return modules[:-1]


def initial_parameters(path: str, names: Sequence[str]) -> State:
    """Return the initial parameters, the same for all competitors."""
    with np.load(path) as file:
        return {name: torch.from_numpy(file[f"start-{n}"]) for n, name in enumerate(names)}


@cache
def learners(path: str, count: int) -> list[tuple[Tensor, Tensor]]:
    """Return the samples, scaled to 0..1, and the labels of each learner."""
    x, y = _tensors(path, "train")
    size = len(y) // count
    return list(zip(torch.split(x, size), torch.split(y, size), strict=True))


def train_pass(model: nn.Module, x: Tensor, y: Tensor, job: Job) -> None:
    """Train one pass in random order."""
    optimizer = torch.optim.SGD(model.parameters(), job.lr)
    for batch in torch.split(torch.randperm(len(y)), job.batch):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def score(model: nn.Module, path: str) -> dict[str, float]:
    """Return accuracy and loss on the test samples."""
    x, y = _tensors(path, "test")
    with torch.inference_mode():
        out = model(x)
        correct = (out.argmax(dim=1) == y).float().mean()
        return {"accuracy": float(correct), "loss": float(functional.cross_entropy(out, y))}


def main() -> None:
    """Train every learner in turn with one model, then average."""
    job = Job.read(sys.argv[1])
    model, own = nn.Sequential(*layers(job.widths)), learners(job.data, job.learners)
    parameters = initial_parameters(job.data, [*model.state_dict()])
    samples, ended_s = sum(len(y) for _, y in own), []
    for _ in range(job.rounds):
        mean = {name: torch.zeros_like(each) for name, each in parameters.items()}
        for x, y in own:
            model.load_state_dict(parameters)
            train_pass(model, x, y, job)
            for name, each in model.state_dict().items():
                mean[name].add_(each, alpha=len(y) / samples)
        parameters = mean
        ended_s.append(time.monotonic())
    model.load_state_dict(parameters)
    job.write(ended_s, model)


def _tensors(path: str, part: str) -> tuple[Tensor, Tensor]:
    with np.load(path) as file:
        x: Any = torch.from_numpy(file[f"{part}-x"])
        return x.flatten(1).float() / 255, torch.from_numpy(file[f"{part}-y"].astype(np.int64))


if __name__ == "__main__":
    main()
