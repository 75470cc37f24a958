"""Known sizes of models and data sets, and operations per sample, for plans without a benchmark.

Operations are floating-point operations to train on one sample: two for each multiplication of the
forward pass, and four for the backward pass. Parameters have 32 bits.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from melisma.errors import SettingError, nearest_word, suggest

Size = TypeVar("Size")
DOTTED_NAME = re.compile(r"\w+(?:\.\w+)+")


@dataclass(frozen=True)
class ModelSize:
    """Parameters of a model, and multiplications of its forward pass for one sample."""

    parameters: int
    multiplications: int

    @property
    def model_bytes(self) -> int:
        """Bytes of all parameters, 32 bits each."""
        return 4 * self.parameters

    @property
    def sample_ops(self) -> int:
        """Floating-point operations to train on one sample once, forward and backward."""
        return 6 * self.multiplications

    def __add__(self, other: "ModelSize") -> "ModelSize":
        return ModelSize(
            self.parameters + other.parameters, self.multiplications + other.multiplications
        )


@dataclass(frozen=True)
class DataSize:
    """Training samples of a data set, and bytes of one sample with its label."""

    samples: int
    sample_bytes: int


def dense(*widths: int) -> ModelSize:
    """Return the size of fully connected layers of these widths."""
    pairs = list(pairwise(widths))
    weights = sum(a * b for a, b in pairs)
    return ModelSize(weights + sum(b for _, b in pairs), weights)


def convolution(channels: int, filters: int, kernel: int, side: int) -> ModelSize:
    """Return the size of a square convolution whose output is `side` by `side`."""
    weights = channels * filters * kernel**2
    return ModelSize(weights + filters, weights * side**2)


MODELS = {
    "twonn": dense(784, 50, 20, 10),
    "threenn": dense(784, 500, 300, 100, 10),
    "convnet": convolution(1, 6, 3, 26) + convolution(6, 16, 3, 11) + dense(400, 200, 100, 10),
    "fashionnet": convolution(1, 16, 3, 28)
    + convolution(16, 32, 3, 14)
    + dense(1568, 1000, 500, 10),
    "cnn": convolution(1, 32, 3, 28) + convolution(32, 64, 3, 14) + dense(3136, 512, 10),
    "lenet": convolution(1, 20, 5, 26) + convolution(20, 50, 5, 9) + dense(800, 128, 84, 10),
    "alexnet": convolution(3, 64, 3, 16)
    + convolution(64, 192, 3, 8)
    + convolution(192, 384, 3, 4)
    + convolution(384, 256, 3, 4)
    + convolution(256, 256, 3, 4)
    + dense(1024, 512, 256, 10),
}
DATA = {
    "mnist": DataSize(60_000, 785),
    "fashion-mnist": DataSize(60_000, 785),
    "kmnist": DataSize(60_000, 785),
    "cifar-10": DataSize(50_000, 3_073),
}


def model_size(
    name: str, args: dict[str, Any], missing: str = "model_bytes and sample_ops"
) -> ModelSize:
    """Return the size of a model by name; `mlp` takes its `layers` from the arguments.

    `missing` names the keys of `[task.sizes]` that an error message asks for.
    """
    if name == "mlp":
        layers = args.get("layers")
        if not isinstance(layers, list) or len(layers) < 2 or not all(map(_is_width, layers)):
            raise SettingError(
                f"model_args.layers is {layers!r}; expected widths such as [784, 50, 10] for mlp"
            )
        return dense(*layers)
    return _look_up(MODELS, "model", name, missing, also=("mlp",))


def data_size(name: str, missing: str = "samples and sample_bytes") -> DataSize:
    """Return the size of a data set by name; `missing` as in `model_size`."""
    return _look_up(DATA, "data", name, missing)


def suggest_known(name: str, known: Iterable[str], also: str = "") -> str:
    """Return the end of a message about an unknown model or data set, as `suggest` does.

    A dotted name that resembles no known one is probably `package.module:name` without its colon.
    """
    words = list(known)
    if DOTTED_NAME.fullmatch(name) and nearest_word(name, words) is None:
        module, _, attribute = name.rpartition(".")
        return f"did you mean {module}:{attribute}?"
    return suggest(name, words, also)


def _is_width(width: object) -> bool:
    return type(width) is int and 0 < width < 2**53


def _look_up(
    table: Mapping[str, Size], kind: str, name: str, missing: str, also: tuple[str, ...] = ()
) -> Size:
    if name in table:
        return table[name]
    problem = f"the size of {kind} {name!r} is unknown: give {missing} in [task.sizes]"
    # A name with a colon refers to user code, so a similar known name does not help.
    if ":" in name:
        raise SettingError(problem)
    known = sorted((*table, *also))
    if nearest_word(name, known) is None:
        raise SettingError(f"{problem}; {suggest_known(name, known)}")
    raise SettingError(
        f"unknown {kind} {name!r}; {suggest(name, known)} Known: {', '.join(known)}; for any other "
        f"give {missing} in [task.sizes]"
    )
