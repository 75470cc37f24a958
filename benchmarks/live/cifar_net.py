"""The convolutional network of Flower's and PyTorch's CIFAR-10 tutorials, as a custom model."""

from torch import nn

from melisma.learning.pytorch.models import Convolutional, convolution


def build() -> nn.Module:
    """Return two convolutions of 5 by 5 and three fully connected layers."""
    return Convolutional([convolution(3, 6, 5), convolution(6, 16, 5)], 400, 120, 84, 10)
