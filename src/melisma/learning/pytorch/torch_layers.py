"""Linear layers and activations of a stack of learners, with a hand-written backward pass.

Activations have shape (learners, features, samples), so that products read weights and samples
without a copy. A step of plain SGD is fused with the product that computes the gradient.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor, nn

from melisma.fleet.task import OptimizerSettings

ACTIVATIONS = (nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh)


class StackedLayer(Protocol):
    """One layer of all learners."""

    def forward(self, x: Tensor, scale: float) -> Tensor:
        """Return the output for the input `x * scale`."""

    def backward(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the input; update the weights (plain SGD) or set gradients."""


class StackedLayers:
    """The layers of a model; `TypeError` if it has unsupported ones.

    With the settings of plain SGD as `fused` a backward pass updates the weights, else it sets
    their gradients.
    """

    def __init__(self, model: nn.Module, fused: OptimizerSettings | None) -> None:
        # A model with its own forward may not call its layers in order.
        in_order = type(model).forward is nn.Sequential.forward
        layers = [*model] if in_order and isinstance(model, nn.Sequential) else [model]
        for layer in layers:
            if type(layer) not in (nn.Flatten, nn.Linear, nn.ReLU, *ACTIVATIONS):
                raise TypeError(f"layer {type(layer).__name__} cannot be stacked")
        self._model = [
            (layer, len([*layer.parameters()])) for layer in layers if type(layer) is not nn.Flatten
        ]
        self._fused = fused
        self._layers: list[StackedLayer] = []
        self._buffer = self._floats = torch.empty(0)

    def set_weights(self, weights: Sequence[Tensor], *, alike: bool = False) -> None:
        """Use these weights, learners on the first axis; `alike` if all learners are equal."""
        remaining, self._layers = iter(weights), []
        for layer, count in self._model:
            own = islice(remaining, count)
            if type(layer) is nn.Linear:
                self._layers.append(_Linear(self._fused, not self._layers, alike, *own))
            else:
                self._layers.append(_Relu() if type(layer) is nn.ReLU else _Activation(layer))

    def forward(self, samples: Tensor) -> Tensor:
        """Return the output of the last layer."""
        if samples.dtype == torch.uint8:
            x, scale = self._to_floats(samples), 1 / 255
        else:
            x, scale = samples.flatten(2).mT, 1.0
        for layer in self._layers:
            x, scale = layer.forward(x, scale), 1.0
        return x

    def backward(self, gradient: Tensor) -> None:
        """Run the backward pass of all layers from the gradient of the output."""
        for layer in reversed(self._layers):
            gradient = layer.backward(gradient)

    def _to_floats(self, samples: Tensor) -> Tensor:
        """Convert as `models.to_model_input`, but without the scaling to 0..1."""
        if samples.dim() == 5:
            samples = samples.movedim(-1, 2)
        if self._floats.shape != samples.shape:
            # Reuse memory: touching new pages costs more than the conversion.
            if self._buffer.numel() < samples.numel():
                self._buffer = torch.empty(samples.numel())
            self._floats = self._buffer[: samples.numel()].view(samples.shape)
            self._flat = self._floats.flatten(2).mT
        self._floats.copy_(samples)
        return self._flat


class _Linear:
    def __init__(
        self,
        fused: OptimizerSettings | None,
        first: bool,
        alike: bool,
        weight: Tensor,
        *bias: Tensor,
    ) -> None:
        self._plain, self._first = fused is not None, first
        if fused is not None:
            self._lr, self._decay_factor = fused.lr, 1 - fused.lr * fused.weight_decay
        self._own, self._own_bias = weight, bias
        # Views of the same memory, in the form that products need.
        self._weight, self._across = weight.detach(), weight.detach().mT
        self._bias = [values.detach().unsqueeze(2) for values in bias]
        # While all learners are equal, read the weights of one: they stay in the cache.
        self._read = self._weight[:1].expand_as(weight) if alike else self._weight

    def forward(self, x: Tensor, scale: float) -> Tensor:
        self._x, self._scale = x, scale
        if not self._bias:
            return torch.bmm(self._read, x).mul_(scale)
        return torch.baddbmm(self._bias[0], self._read, x, alpha=scale)

    def backward(self, gradient: Tensor) -> Tensor:
        # Before the weights change; the gradient of the samples is not needed.
        input_gradient = gradient if self._first else torch.bmm(self._across, gradient)
        self._update(gradient)
        return input_gradient

    def _update(self, gradient: Tensor) -> None:
        x, self._read = self._x.mT, self._weight
        if self._own.requires_grad and self._plain:
            alpha = -self._lr * self._scale
            self._weight.baddbmm_(gradient, x, beta=self._decay_factor, alpha=alpha)
        elif self._own.requires_grad:
            self._own.grad = torch.bmm(gradient, x).mul_(self._scale)
        for own, bias in zip(self._own_bias, self._bias, strict=True):
            if own.requires_grad and self._plain:
                kept = bias if self._decay_factor == 1 else bias.mul_(self._decay_factor)
                kept.sub_(gradient.sum(2, keepdim=True), alpha=self._lr)
            elif own.requires_grad:
                own.grad = gradient.sum(2)


class _Relu:
    def forward(self, x: Tensor, scale: float) -> Tensor:
        # In place: the input is not needed again.
        self._out = torch.relu_(_scale(x, scale))
        return self._out

    def backward(self, gradient: Tensor) -> Tensor:
        return gradient.mul_(self._out.sign_())


class _Activation:
    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer

    def forward(self, x: Tensor, scale: float) -> Tensor:
        self._x = _scale(x, scale)
        out: Tensor = self._layer(self._x)
        return out

    def backward(self, gradient: Tensor) -> Tensor:
        with torch.enable_grad():
            x = self._x.detach().requires_grad_()
            (input_gradient,) = torch.autograd.grad(self._layer(x), x, gradient)
        return input_gradient


def _scale(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1 else x * scale
