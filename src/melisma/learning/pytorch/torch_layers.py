"""Linear layers and activations of many learners at once, forward and backward by hand.

What flows between layers is (learners, numbers, samples), so that products read weights and samples
as they lie. A plain step is one with the product that makes the gradient.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor, nn

from melisma.fleet.task import OptimizerSettings
from melisma.learning.pytorch.optimizers import is_plain_sgd

ACTIVATIONS = (nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh)


class StackedLayer(Protocol):
    """One layer of every learner."""

    def forward(self, x: Tensor, scale: float) -> Tensor:
        """What comes out, where what comes in is to be scaled first."""

    def backward(self, slope: Tensor) -> Tensor:
        """The slope of what came in; weights move or, where steps are not plain, get gradients."""


class StackedLayers:
    """The layers of a model; `TypeError` where it has any others."""

    def __init__(self, model: nn.Module, said: OptimizerSettings) -> None:
        # One that goes its own way through its layers is not known by them.
        in_order = type(model).forward is nn.Sequential.forward
        layers = [*model] if in_order and isinstance(model, nn.Sequential) else [model]
        for layer in layers:
            if type(layer) not in (nn.Flatten, nn.Linear, nn.ReLU, *ACTIVATIONS):
                raise TypeError(f"{type(layer).__name__} is not for many learners")
        self._model = [
            (each, len([*each.parameters()])) for each in layers if type(each) is not nn.Flatten
        ]
        self._said = said
        self._layers: list[StackedLayer] = []
        self._room = self._numbers = torch.empty(0)

    def set_weights(self, weights: Sequence[Tensor], *, alike: bool = False) -> None:
        """Have these weights, learners first, from now on; at first they may be alike."""
        left, self._layers = iter(weights), []
        for layer, count in self._model:
            own = islice(left, count)
            if type(layer) is nn.Linear:
                self._layers.append(_Linear(self._said, not self._layers, alike, *own))
            else:
                self._layers.append(_Relu() if type(layer) is nn.ReLU else _Activation(layer))

    def forward(self, samples: Tensor) -> Tensor:
        """What comes out of the last layer."""
        if samples.dtype == torch.uint8:
            flow, scale = self._converted(samples), 1 / 255
        else:
            flow, scale = samples.flatten(2).mT, 1.0
        for layer in self._layers:
            flow, scale = layer.forward(flow, scale), 1.0
        return flow

    def backward(self, slope: Tensor) -> None:
        """Have all learn, by the slope of what came out."""
        for layer in reversed(self._layers):
            slope = layer.backward(slope)

    def _converted(self, samples: Tensor) -> Tensor:
        """As `models.shaped`, but for the scale of bytes."""
        if samples.dim() == 5:
            samples = samples.movedim(-1, 2)
        if self._numbers.shape != samples.shape:
            # In memory that was used before: to touch some for the first time costs more.
            if self._room.numel() < samples.numel():
                self._room = torch.empty(samples.numel())
            self._numbers = self._room[: samples.numel()].view(samples.shape)
            self._flow = self._numbers.flatten(2).mT
        self._numbers.copy_(samples)
        return self._flow


class _Linear:
    def __init__(
        self, said: OptimizerSettings, first: bool, alike: bool, weight: Tensor, *bias: Tensor
    ) -> None:
        self._plain, self._first = is_plain_sgd(said), first
        self._lr, self._kept = said.lr, 1 - said.lr * said.weight_decay
        self._own, self._own_bias = weight, bias
        # The same numbers, as products take them.
        self._weight, self._across = weight.detach(), weight.detach().mT
        self._bias = [each.detach().unsqueeze(2) for each in bias]
        # While all are alike, one is read for all: it stays near.
        self._read = self._weight[:1].expand_as(weight) if alike else self._weight

    def forward(self, x: Tensor, scale: float) -> Tensor:
        self._x, self._scale = x, scale
        if not self._bias:
            return torch.bmm(self._read, x).mul_(scale)
        return torch.baddbmm(self._bias[0], self._read, x, alpha=scale)

    def backward(self, slope: Tensor) -> Tensor:
        # Before the weights move; nobody asks for the slope of samples.
        below = slope if self._first else torch.bmm(self._across, slope)
        self._learn(slope)
        return below

    def _learn(self, slope: Tensor) -> None:
        x, self._read = self._x.mT, self._weight
        if self._own.requires_grad and self._plain:
            alpha = -self._lr * self._scale
            self._weight.baddbmm_(slope, x, beta=self._kept, alpha=alpha)
        elif self._own.requires_grad:
            self._own.grad = torch.bmm(slope, x).mul_(self._scale)
        for own, bias in zip(self._own_bias, self._bias, strict=True):
            if own.requires_grad and self._plain:
                kept = bias if self._kept == 1 else bias.mul_(self._kept)
                kept.sub_(slope.sum(2, keepdim=True), alpha=self._lr)
            elif own.requires_grad:
                own.grad = slope.sum(2)


class _Relu:
    def forward(self, x: Tensor, scale: float) -> Tensor:
        # What it was before is not asked for again.
        self._out = torch.relu_(_scale(x, scale))
        return self._out

    def backward(self, slope: Tensor) -> Tensor:
        return slope.mul_(self._out.sign_())


class _Activation:
    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer

    def forward(self, x: Tensor, scale: float) -> Tensor:
        self._x = _scale(x, scale)
        out: Tensor = self._layer(self._x)
        return out

    def backward(self, slope: Tensor) -> Tensor:
        with torch.enable_grad():
            x = self._x.detach().requires_grad_()
            (before,) = torch.autograd.grad(self._layer(x), x, slope)
        return before


def _scale(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1 else x * scale
