"""A model with buffers."""

from torch import nn


class Net(nn.Sequential):
    """A linear layer and its normalisation."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 2), nn.BatchNorm1d(2))
