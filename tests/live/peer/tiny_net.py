"""A small model and task for live nodes."""

from msgspec.structs import replace

from melisma.fleet.task import Task
from melisma.peer.algorithms import LocalSgd

NET = """
import os
import signal
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


class MortalNet(nn.Sequential):
    # Kills its process after the number of steps in a file that is named by the process.
    def __init__(self, inputs: int, outputs: int, kills: str, pause_s: float = 0.0) -> None:
        super().__init__(nn.Flatten(), nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))
        self.kill_file, self.pause_s, self.steps = Path(kills) / str(os.getpid()), pause_s, 0
        rng = np.random.default_rng(1)
        for weight in self.parameters():
            weight.data = torch.from_numpy(rng.normal(0, 0.1, weight.shape).astype(np.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self.pause_s)
            self.steps += 1
            if self.kill_file.exists() and self.steps >= int(self.kill_file.read_text()):
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)
"""
TASK = Task(name="blobs", model="net:Net", data="tiny_task:blobs", deadline_s=1.0, batch=16)
SLOW = replace(TASK, model_args={"pause_s": 0.002})
ROUNDS = LocalSgd(learning_rate=0.1, steps=20)
PATIENCE_S = 10.0
"""Nodes that start one after another on a busy machine do not lose each other in this time."""
