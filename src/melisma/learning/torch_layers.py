"""Linear layers and activations of many learners at once, forward and backward by hand.

What flows between layers is (learners, numbers, samples), so that products read weights and samples
as they lie. A plain step is one with the product that makes the gradient.
"""

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor, nn

from melisma.fleet.task import Optimizer
from melisma.learning.optimizers import is_plain

LAYERS = (nn.Flatten, nn.Linear, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh)


class Layers:
    """The layers of a model; `TypeError` for others than `LAYERS`."""

    def __init__(self, model: nn.Module, said: Optimizer) -> None:
        layers = [*model] if isinstance(model, nn.Sequential) else [model]
        for layer in layers:
            if type(layer) not in LAYERS:
                raise TypeError(f"{type(layer).__name__} is not for many learners")
        self._layers = [layer for layer in layers if not isinstance(layer, nn.Flatten)]
        self._held = [len([*layer.parameters()]) for layer in self._layers]
        self._plain = is_plain(said)
        self._lr, self._kept = said.lr, 1 - said.lr * said.weight_decay
        self._flows: list[Tensor] = []
        self._room = torch.empty(0)
        self._scale = 1.0

    def forward(self, weights: Sequence[Tensor], samples: Tensor) -> Tensor:
        """What comes out of the last layer."""
        self._flows = [self._numbers(samples).mT]
        for layer, own in self._with_weights(weights):
            self._flows.append(self._out(layer, own))
        return self._flows[-1]

    def backward(self, weights: Sequence[Tensor], slope: Tensor) -> None:
        """Move weights or, where steps are not plain, give them gradients."""
        for layer, own in reversed(self._with_weights(weights)):
            out, x = self._flows.pop(), self._flows[-1]
            if own:
                # Before the weights move.
                below = torch.bmm(own[0].mT, slope) if len(self._flows) > 1 else slope
                self._learn(own, slope, x)
                slope = below
            else:
                slope = _backward(layer, slope, x, out)

    def _numbers(self, samples: Tensor) -> Tensor:
        """As `models.shaped`, but that the first layer scales bytes."""
        learners, size = samples.shape[:2]
        if samples.dtype != torch.uint8:
            return samples.reshape(learners, size, -1)
        if samples.dim() == 5:
            samples = samples.movedim(-1, 2)
        # In the same memory each time: to touch some for the first time costs more than to copy.
        if self._room.numel() < samples.numel():
            self._room, self._scale = torch.empty(samples.numel()), 1 / 255
        numbers = self._room[: samples.numel()].view(samples.shape)
        return numbers.copy_(samples).view(learners, size, -1)

    def _with_weights(self, weights: Sequence[Tensor]) -> list[tuple[nn.Module, Sequence[Tensor]]]:
        left = iter(weights)
        held = [[*islice(left, count)] for count in self._held]
        return [*zip(self._layers, held, strict=True)]

    def _scaled(self) -> float:
        return self._scale if len(self._flows) == 1 else 1.0

    def _out(self, layer: nn.Module, own: Sequence[Tensor]) -> Tensor:
        x = self._flows[-1]
        if isinstance(layer, nn.ReLU):
            # What it was before is not asked for again.
            return torch.relu_(x)
        if not own:
            out: Tensor = layer(x)
            return out
        weight, *bias = own
        if not bias:
            return torch.bmm(weight, x).mul_(self._scaled())
        return torch.baddbmm(bias[0].unsqueeze(2), weight, x, alpha=self._scaled())

    def _learn(self, own: Sequence[Tensor], slope: Tensor, x: Tensor) -> None:
        weight, *bias = own
        if weight.requires_grad and self._plain:
            alpha = -self._lr * self._scaled()
            weight.baddbmm_(slope, x.mT, beta=self._kept, alpha=alpha)
        elif weight.requires_grad:
            weight.grad = torch.bmm(slope, x.mT).mul_(self._scaled())
        for each in bias:
            if each.requires_grad and self._plain:
                kept = each if self._kept == 1 else each.mul_(self._kept)
                kept.sub_(slope.sum(2), alpha=self._lr)
            elif each.requires_grad:
                each.grad = slope.sum(2)


def _backward(layer: nn.Module, slope: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """Of an activation."""
    if isinstance(layer, nn.ReLU):
        return slope.mul_(out.sign_())
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (before,) = torch.autograd.grad(layer(x), x, slope)
    return before
