"""Optimizers by name, through PyTorch's functional interface.

Creating the first of PyTorch's optimizer classes loads a compiler that is not used here: two
seconds on a server, and far more on a small device.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, takewhile
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from melisma.errors import DataError, SettingError, suggest
from melisma.fleet.task import OptimizerSettings


class FunctionalOptimizer(Protocol):
    """An optimizer and its state, which lasts for one cycle or for all."""

    def step(self, weights: Sequence[Tensor]) -> None:
        """Update the weights from their gradients."""

    def keep_first(self, count: int) -> None:
        """Keep the state of the first `count` rows along the first axis of every weight."""

    def state(self) -> dict[str, Tensor]:
        """Return the state by name, without copies; empty before the first step."""

    def load_state(self, state: Mapping[str, Tensor], weights: Sequence[Tensor]) -> None:
        """Go on with the state of an optimizer of weights of these shapes.

        Raise `DataError` if it is not the state of such an optimizer.
        """


class Sgd:
    """Stochastic gradient descent with optional momentum."""

    def __init__(self, settings: OptimizerSettings) -> None:
        self._settings = settings
        self._momenta: list[Tensor | None] = []

    def step(self, weights: Sequence[Tensor]) -> None:
        """Update the weights like `torch.optim.SGD`."""
        trainable, gradients = _trainable(weights)
        self._momenta = self._momenta or [None] * len(trainable)
        with torch.no_grad():
            sgd(
                trainable,
                gradients,
                self._momenta,
                lr=self._settings.lr,
                momentum=self._settings.momentum,
                weight_decay=self._settings.weight_decay,
                dampening=0.0,
                nesterov=False,
                maximize=False,
            )

    def keep_first(self, count: int) -> None:
        """Keep the momenta of the first rows."""
        self._momenta = [
            momentum if momentum is None else momentum[:count] for momentum in self._momenta
        ]

    def state(self) -> dict[str, Tensor]:
        """Return the momenta."""
        momenta = (momentum for momentum in self._momenta if momentum is not None)
        return _numbered("momentum", momenta)

    def load_state(self, state: Mapping[str, Tensor], weights: Sequence[Tensor]) -> None:
        """Go on with these momenta."""
        (momenta,) = _lists(state, ["momentum"])
        self._momenta = [*_fit(momenta, weights)]


class Adam:
    """Adam with the default constants of PyTorch."""

    def __init__(self, settings: OptimizerSettings) -> None:
        self._settings = settings
        self._state: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])

    def step(self, weights: Sequence[Tensor]) -> None:
        """Update the weights like `torch.optim.Adam`."""
        trainable, gradients = _trainable(weights)
        if not self._state[0]:
            self._state = (
                [torch.zeros_like(weight) for weight in trainable],
                [torch.zeros_like(weight) for weight in trainable],
                [torch.tensor(0.0) for _ in trainable],
            )
        means, squares, steps = self._state
        with torch.no_grad():
            adam(
                trainable,
                gradients,
                means,
                squares,
                [],
                steps,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=self._settings.lr,
                weight_decay=self._settings.weight_decay,
                eps=1e-8,
                maximize=False,
            )

    def keep_first(self, count: int) -> None:
        """Keep the moments of the first rows; all rows made the same number of steps."""
        means, squares, steps = self._state
        self._state = [mean[:count] for mean in means], [sq[:count] for sq in squares], steps

    def state(self) -> dict[str, Tensor]:
        """Return the moments and the numbers of steps."""
        parts = zip(("mean", "square", "steps"), self._state, strict=True)
        return {name: t for part, list_ in parts for name, t in _numbered(part, list_).items()}

    def load_state(self, state: Mapping[str, Tensor], weights: Sequence[Tensor]) -> None:
        """Go on with these moments and numbers of steps."""
        means, squares, steps = _lists(state, ["mean", "square", "steps"])
        if [m.shape for m in means] != [s.shape for s in squares] or len(steps) != len(means):
            raise DataError("the saved moments of the optimizer differ in their shapes")
        self._state = _fit(means, weights), _fit(squares, weights), steps


OPTIMIZERS: dict[str, Callable[[OptimizerSettings], FunctionalOptimizer]] = {
    "sgd": Sgd,
    "adam": Adam,
}


def optimizer_for(settings: OptimizerSettings) -> FunctionalOptimizer:
    """Return a new optimizer with these settings."""
    if settings.name not in OPTIMIZERS:
        expected = suggest(settings.name, OPTIMIZERS)
        raise SettingError(f"optimizer.name is {settings.name!r}; {expected}")
    return OPTIMIZERS[settings.name](settings)


def add_proximal_gradient(weights: Sequence[Tensor], origin: Sequence[Tensor], prox: float) -> None:
    """Add the gradient of prox / 2 * ||weights - origin||**2 (FedProx, Li et al. 2020).

    `origin` are the weights at the beginning of the cycle; stacked weights have one for all.
    """
    if not prox:
        return
    with torch.no_grad():
        for weight, start in zip(weights, origin, strict=True):
            if weight.grad is not None:
                weight.grad.add_(weight - start, alpha=prox)


def is_plain_sgd(settings: OptimizerSettings) -> bool:
    """Whether a step is w (1 - lr weight_decay) - lr g, without state."""
    return OPTIMIZERS[settings.name] is Sgd and not settings.momentum


def _numbered(name: str, tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{number}": tensor for number, tensor in enumerate(tensors)}


def _lists(state: Mapping[str, Tensor], names: Sequence[str]) -> list[list[Tensor]]:
    """Return the tensors of each name, in the order of their numbers."""
    lists = [
        [state[key] for key in takewhile(state.__contains__, (f"{name}.{n}" for n in count()))]
        for name in names
    ]
    if sum(map(len, lists)) != len(state):
        raise DataError(f"the saved state of the optimizer holds others than {', '.join(names)}")
    return lists


def _fit(tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of the shapes of weights, in order, on their device.

    Weights without a gradient have none. Raise `DataError` for tensors of other weights.
    """
    remaining, fitted = iter(weights), []
    for tensor in tensors:
        form = tensor.shape, tensor.dtype
        weight = next((w for w in remaining if (w.shape, w.dtype) == form), None)
        if weight is None:
            raise DataError("the saved state of the optimizer is that of another model")
        fitted.append(tensor.to(weight.device))
    return fitted


def _trainable(weights: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the weights that have a gradient, and their gradients."""
    pairs = [(weight, weight.grad) for weight in weights if weight.grad is not None]
    return [weight for weight, _ in pairs], [gradient for _, gradient in pairs]
