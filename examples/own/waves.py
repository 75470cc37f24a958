"""A custom model and custom data: estimate the speed of a wave from a few of its points."""

from typing import Any

import numpy as np
from torch import Tensor, nn

Pair = tuple[Any, Any]


def load(points: int = 32, count: int = 6000) -> tuple[Pair, Pair]:
    """Return samples and labels for training and for testing."""
    rng = np.random.default_rng(0)
    speed = rng.uniform(1.0, 5.0, (count, 1))
    start = rng.uniform(0.0, 0.5, (count, 1))
    waves = np.sin(start + speed * np.linspace(0.0, 2.0, points)).astype(np.float32)
    speeds = speed[:, 0].astype(np.float32)
    half = count * 5 // 6
    return (waves[:half], speeds[:half]), (waves[half:], speeds[half:])


class Net(nn.Module):
    """A network that maps the points of a wave to its speed."""

    def __init__(self, points: int = 32, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(points, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.out = nn.Linear(width, 1)

    def forward(self, waves: Tensor) -> Tensor:
        speeds: Tensor = self.out(self.layers(waves))
        return speeds
