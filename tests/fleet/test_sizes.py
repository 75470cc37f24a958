import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile

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


def count_size(layers: list[nn.Module]) -> ModelSize:
    """Count parameters, and multiplications for one image as its layers report them."""
    network = nn.Sequential(*layers)
    multiplications: list[int] = []

    def count(layer: nn.Module, _: Any, output: Tensor) -> None:
        (weight,) = (parameter for name, parameter in layer.named_parameters() if name == "weight")
        # Each output needs one multiplication per weight of its filter or row.
        multiplications.append(output.numel() * weight[0].numel())

    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    flat = isinstance(layers[0], nn.Linear)
    coloured = isinstance(layers[0], nn.Conv2d) and layers[0].in_channels == 3
    image = torch.zeros(1, 3, 32, 32) if coloured else torch.zeros(1, 1, 28, 28)
    result = network(image.flatten(1) if flat else image)
    assert result.shape == (1, 10)
    return ModelSize(
        sum(parameter.numel() for parameter in network.parameters()), sum(multiplications)
    )


def test_every_known_model_is_checked() -> None:
    assert set(NETWORKS) == set(MODELS)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_size_equals_that_of_the_real_network(name: str) -> None:
    assert model_size(name, {}) == count_size(NETWORKS[name])


@pytest.mark.parametrize("layers", [[784, 10], [784, 50, 20, 10], [784, 300, 124, 60, 10]])
def test_the_size_of_an_mlp_follows_from_its_layers(layers: list[int]) -> None:
    assert model_size("mlp", {"layers": layers}) == count_size(linear(*layers))


def test_bytes_and_operations_follow_from_the_counts() -> None:
    size = dense(3, 2)
    assert (size.parameters, size.multiplications) == (8, 6)
    assert size.model_bytes == 32
    assert size.sample_ops == 36


def test_the_operations_equal_the_count_of_pytorch() -> None:
    # Not `FlopCounterMode`, which imports the compiler of PyTorch: that takes several seconds.
    network, images = nn.Sequential(*linear(784, 50, 20, 10)), torch.zeros(8, 784)
    images.requires_grad_()
    with profile(with_flops=True) as profiler:
        network(images).sum().backward()
    counted = {event.key: event.flops for event in profiler.key_averages() if event.flops}
    assert set(counted) == {"aten::addmm", "aten::mm"}
    assert sum(counted.values()) == 8 * model_size("twonn", {}).sample_ops


def test_data_sets_have_their_known_sizes() -> None:
    assert data_size("mnist").samples == 60_000
    assert data_size("mnist").sample_bytes == 28 * 28 + 1
    assert data_size("cifar-10").samples == 50_000
    assert data_size("cifar-10").sample_bytes == 32 * 32 * 3 + 1
    assert set(DATA) == {"mnist", "fashion-mnist", "kmnist", "cifar-10"}


def test_an_unknown_name_is_reported_with_known_names_and_the_missing_keys() -> None:
    with pytest.raises(
        SettingError, match=r"'vgg'.*model_bytes and sample_ops in \[task.*cnn,.*mlp.*twonn"
    ):
        model_size("vgg", {})
    with pytest.raises(
        SettingError,
        match=r"'emnist'; did you mean mnist\? .*samples and sample_bytes in \[task.sizes\]",
    ):
        data_size("emnist")


@pytest.mark.parametrize(
    "layers",
    [None, 784, [], [784], [784, 0], [784, -1], [784, 1.5], [True, 10], ["a", 2], [1, 1e3]],
)
def test_invalid_widths_are_an_error(layers: Any) -> None:
    with pytest.raises(SettingError, match=r"model_args.layers is .* such as \[784, 50, 10\]"):
        model_size("mlp", {"layers": layers} if layers is not None else {})


def test_a_width_beyond_double_precision_is_an_error() -> None:
    with pytest.raises(SettingError, match=r"model_args.layers"):
        model_size("mlp", {"layers": [784, 10**400]})
    assert math.isfinite(float(model_size("mlp", {"layers": [2**53 - 1] * 3}).sample_ops))
