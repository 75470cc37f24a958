"""A small model and task for live nodes."""

from msgspec.structs import replace

from melisma.fleet.task import Task
from melisma.peer.algorithms import LocalSgd

NET = """
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn


class Net(nn.Sequential):
    # Initialised without the random state of PyTorch, which threads share; steps can take long,
    # and longer while a file exists.
    def __init__(self, width: int = 16, pause_s: float = 0.0, slow_file: str = "") -> None:
        super().__init__(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))
        rng, self.pause_s, self.slow_file = np.random.default_rng(1), pause_s, slow_file
        for weight in self.parameters():
            weight.data = torch.from_numpy(rng.normal(0, 0.3, weight.shape).astype(np.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            slow = self.slow_file and Path(self.slow_file).exists()
            time.sleep(0.3 if slow else self.pause_s)
        return super().forward(x)
"""
TASK = Task(name="blobs", model="net:Net", data="tiny_task:blobs", deadline_s=1.0, batch=16)
SLOW = replace(TASK, model_args={"pause_s": 0.002})
ROUNDS = LocalSgd(learning_rate=0.1, steps=20)
PATIENCE_S = 10.0
"""Nodes that start one after another on a busy machine do not lose each other in this time."""
