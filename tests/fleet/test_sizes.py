import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from melisma.errors import SettingError
from melisma.fleet.sizes import DATA, MODELS, ModelSize, data_size, dense, model_size


def conv(channels: int, filters: int, kernel: int, padding: int) -> list[nn.Module]:
    return [nn.Conv2d(channels, filters, kernel, padding=padding), nn.MaxPool2d(2), nn.ReLU()]


def linear(*widths: int) -> list[nn.Module]:
    return [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]


NETWORKS: dict[str, list[nn.Module]] = {
    "twonn": linear(784, 50, 20, 10),
    # Tables 6.1 to 6.3 of Mays' thesis.
    "threenn": linear(784, 500, 300, 100, 10),
    "convnet": [*conv(1, 6, 3, 0), *conv(6, 16, 3, 0), nn.Flatten(), *linear(400, 200, 100, 10)],
    "fashionnet": [
        *conv(1, 16, 3, 1),
        *conv(16, 32, 3, 1),
        nn.Flatten(),
        *linear(1568, 1000, 500, 10),
    ],
    "cnn": [*conv(1, 32, 3, 1), *conv(32, 64, 3, 1), nn.Flatten(), *linear(3136, 512, 10)],
    "lenet": [*conv(1, 20, 5, 1), *conv(20, 50, 5, 0), nn.Flatten(), *linear(800, 128, 84, 10)],
    "alexnet": [
        nn.Conv2d(3, 64, 3, stride=2, padding=1),
        nn.MaxPool2d(2),
        *conv(64, 192, 3, 1),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.Conv2d(384, 256, 3, padding=1),
        *conv(256, 256, 3, 1),
        nn.Flatten(),
        *linear(1024, 512, 256, 10),
    ],
}


def counted(layers: list[nn.Module]) -> ModelSize:
    """Parameters of a network, and multiplications as its layers report them for one image."""
    network = nn.Sequential(*layers)
    seen: list[int] = []

    def count(layer: nn.Module, _: Any, output: Tensor) -> None:
        (weight,) = (each for name, each in layer.named_parameters() if name == "weight")
        # Each output needs as many multiplications as its filter, or its row, has weights.
        seen.append(output.numel() * weight[0].numel())

    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    flat = isinstance(layers[0], nn.Linear)
    coloured = isinstance(layers[0], nn.Conv2d) and layers[0].in_channels == 3
    image = torch.zeros(1, 3, 32, 32) if coloured else torch.zeros(1, 1, 28, 28)
    result = network(image.flatten(1) if flat else image)
    assert result.shape == (1, 10)
    return ModelSize(sum(each.numel() for each in network.parameters()), sum(seen))


def test_every_model_that_we_name_is_checked() -> None:
    assert set(NETWORKS) == set(MODELS)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_size_is_that_of_the_real_network(name: str) -> None:
    assert model_size(name, {}) == counted(NETWORKS[name])


@pytest.mark.parametrize("layers", [[784, 10], [784, 50, 20, 10], [784, 300, 124, 60, 10]])
def test_an_mlp_is_as_large_as_its_layers(layers: list[int]) -> None:
    assert model_size("mlp", {"layers": layers}) == counted(linear(*layers))


def test_bytes_and_operations_follow() -> None:
    size = dense(3, 2)
    assert (size.parameters, size.multiplications) == (8, 6)
    assert size.model_bytes == 32
    assert size.sample_ops == 36


def test_the_operations_are_those_that_pytorch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    network, images = nn.Sequential(*linear(784, 50, 20, 10)), torch.zeros(8, 784)
    images.requires_grad_()
    with FlopCounterMode(display=False) as counter:
        network(images).sum().backward()
    assert counter.get_total_flops() == 8 * model_size("twonn", {}).sample_ops


def test_data_sets_have_their_size() -> None:
    assert data_size("mnist").samples == 60_000
    assert data_size("mnist").sample_bytes == 28 * 28 + 1
    assert data_size("cifar-10").samples == 50_000
    assert data_size("cifar-10").sample_bytes == 32 * 32 * 3 + 1
    assert set(DATA) == {"mnist", "fashion-mnist", "kmnist", "cifar-10"}


def test_an_unknown_name_says_which_are_known_and_what_to_say_instead() -> None:
    with pytest.raises(
        SettingError, match=r"'vgg'.*model_bytes and sample_ops in \[task.*cnn,.*mlp.*twonn"
    ):
        model_size("vgg", {})
    with pytest.raises(
        SettingError,
        match=r"'emnist'.*samples and sample_bytes in \[task.sizes\]; did you mean mnist",
    ):
        data_size("emnist")


@pytest.mark.parametrize(
    "wrong", [None, 784, [], [784], [784, 0], [784, -1], [784, 1.5], [True, 10], ["a", 2], [1, 1e3]]
)
def test_widths_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(SettingError, match=r"model_args.layers is .* such as \[784, 50, 10\]"):
        model_size("mlp", {"layers": wrong} if wrong is not None else {})


def test_a_width_that_no_machine_could_hold_is_refused() -> None:
    with pytest.raises(SettingError, match=r"model_args.layers"):
        model_size("mlp", {"layers": [784, 10**400]})
    assert math.isfinite(float(model_size("mlp", {"layers": [2**53 - 1] * 3}).sample_ops))
