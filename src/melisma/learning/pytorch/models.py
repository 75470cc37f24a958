"""The models of the papers by name, and models of the user by `package.module:Class`."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from torch import Tensor, nn, uint8

from melisma.errors import SettingError
from melisma.fleet.sizes import suggest_known
from melisma.user_code import call_user_code, is_import_path


def dense(*widths: int) -> list[nn.Module]:
    """Return fully connected layers of these widths, with ReLU between them."""
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(widths)):
        layers += [nn.ReLU()] if number else []
        layers.append(nn.Linear(before, after))
    return layers


def convolution(channels: int, filters: int, kernel: int, padding: int = 0) -> list[nn.Module]:
    """Return a convolution, ReLU, and a pooling that halves both sides."""
    return [nn.Conv2d(channels, filters, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]


def alexnet() -> nn.Module:
    """Return an AlexNet for colour images of 32 by 32, such as those of CIFAR-10.

    Five convolutions and three fully connected layers, as in Krizhevsky, Sutskever and Hinton
    2012, but with 3 by 3 kernels, narrower last layers, no normalisation and no dropout. Papers
    that train "AlexNet" on CIFAR-10 seldom define it; this variant is our own.
    """
    convolutions = [
        [nn.Conv2d(3, 64, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
        convolution(64, 192, 3, 1),
        # Without pooling.
        convolution(192, 384, 3, 1)[:2],
        convolution(384, 256, 3, 1)[:2],
        convolution(256, 256, 3, 1),
    ]
    return Convolutional(convolutions, 1024, 512, 256, 10)


class Mlp(nn.Sequential):
    """Fully connected layers on flattened samples."""

    def __init__(self, layers: list[int]) -> None:
        super().__init__(nn.Flatten(), *dense(*layers))


class Convolutional(nn.Sequential):
    """Convolutions, then fully connected layers."""

    def __init__(self, convolutions: list[list[nn.Module]], *widths: int) -> None:
        flat = [layer for layers in convolutions for layer in layers]
        super().__init__(*flat, nn.Flatten(), *dense(*widths))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "twonn": lambda: Mlp([784, 50, 20, 10]),
    "threenn": lambda: Mlp([784, 500, 300, 100, 10]),
    "mlp": Mlp,
    "convnet": lambda: Convolutional(
        [convolution(1, 6, 3), convolution(6, 16, 3)], 400, 200, 100, 10
    ),
    "fashionnet": lambda: Convolutional(
        [convolution(1, 16, 3, 1), convolution(16, 32, 3, 1)], 1568, 1000, 500, 10
    ),
    "cnn": lambda: Convolutional(
        [convolution(1, 32, 3, 1), convolution(32, 64, 3, 1)], 3136, 512, 10
    ),
    "lenet": lambda: Convolutional(
        [convolution(1, 20, 5, 1), convolution(20, 50, 5)], 800, 128, 84, 10
    ),
    "alexnet": alexnet,
}


def build_model(name: str, args: Mapping[str, Any] | None = None) -> nn.Module:
    """Build the model of that name; raise `SettingError` if it or its arguments are invalid."""
    model = (
        call_user_code("model", name, **(args or {}))
        if is_import_path(name)
        else _build_named(name, args or {})
    )
    if not isinstance(model, nn.Module):
        raise SettingError(f"model {name} is a {type(model).__name__}; expected a torch.nn.Module")
    return model


def _build_named(name: str, args: Mapping[str, Any]) -> nn.Module:
    if name not in MODELS:
        expected = suggest_known(name, MODELS, "package.module:Class")
        raise SettingError(f"unknown model {name!r}; {expected}")
    try:
        return MODELS[name](**args)
    except (TypeError, ValueError) as error:
        raise SettingError(f"model {name} with {args or 'no arguments'}: {error}") from error


def to_model_input(samples: Tensor) -> Tensor:
    """Return uint8 images as floats from 0 to 1, channels first; other samples unchanged."""
    if samples.dtype != uint8:
        return samples
    numbers = samples.float() / 255
    return numbers.unsqueeze(1) if samples.dim() == 3 else numbers.movedim(-1, 1)
