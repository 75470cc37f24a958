"""Steps of the optimisers by name, through PyTorch's functional interface.

Its optimiser classes load a compiler when the first one is made: two seconds of a server's core,
and far more on a small device, for nothing that is used here.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from melisma.errors import SettingError, suggest
from melisma.fleet.task import OptimizerSettings


class FunctionalOptimizer(Protocol):
    """The state of an optimiser: of one cycle, or of all."""

    def step(self, weights: Sequence[Tensor]) -> None:
        """Move weights along their gradients."""

    def keep_first(self, count: int) -> None:
        """Go on with the first so many along the first axis of every weight."""


class Sgd:
    """Stochastic gradient descent, with momentum where there is some."""

    def __init__(self, said: OptimizerSettings) -> None:
        self._said = said
        self._momenta: list[Tensor | None] = []

    def step(self, weights: Sequence[Tensor]) -> None:
        """As `torch.optim.SGD`."""
        moved, gradients = _trainable(weights)
        self._momenta = self._momenta or [None] * len(moved)
        with torch.no_grad():
            sgd(
                moved,
                gradients,
                self._momenta,
                lr=self._said.lr,
                momentum=self._said.momentum,
                weight_decay=self._said.weight_decay,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )

    def keep_first(self, count: int) -> None:
        """Their momenta."""
        self._momenta = [each if each is None else each[:count] for each in self._momenta]


class Adam:
    """Adam with the usual constants."""

    def __init__(self, said: OptimizerSettings) -> None:
        self._said = said
        self._state: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])

    def step(self, weights: Sequence[Tensor]) -> None:
        """As `torch.optim.Adam`."""
        moved, gradients = _trainable(weights)
        if not self._state[0]:
            self._state = (
                [torch.zeros_like(weight) for weight in moved],
                [torch.zeros_like(weight) for weight in moved],
                [torch.tensor(0.0) for _ in moved],
            )
        means, squares, steps = self._state
        with torch.no_grad():
            adam(
                moved,
                gradients,
                means,
                squares,
                [],
                steps,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=self._said.lr,
                weight_decay=self._said.weight_decay,
                eps=1e-8,
                maximize=False,
            )

    def keep_first(self, count: int) -> None:
        """Their moments; all have made the same number of steps."""
        means, squares, steps = self._state
        self._state = [each[:count] for each in means], [each[:count] for each in squares], steps


OPTIMIZERS: dict[str, Callable[[OptimizerSettings], FunctionalOptimizer]] = {
    "sgd": Sgd,
    "adam": Adam,
}


def optimizer_for(said: OptimizerSettings) -> FunctionalOptimizer:
    """The optimiser of that name, at its beginning."""
    if said.name not in OPTIMIZERS:
        expected = suggest(said.name, OPTIMIZERS)
        raise SettingError(f"optimizer.name is {said.name!r}; {expected}")
    return OPTIMIZERS[said.name](said)


def is_plain_sgd(said: OptimizerSettings) -> bool:
    """Whether a step keeps no state: w (1 - lr weight_decay) - lr g."""
    return OPTIMIZERS[said.name] is Sgd and not said.momentum


def _trainable(weights: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Weights that have a gradient, and the gradients."""
    pairs = [(weight, weight.grad) for weight in weights if weight.grad is not None]
    return [weight for weight, _ in pairs], [gradient for _, gradient in pairs]
