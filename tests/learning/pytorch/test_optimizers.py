import subprocess
import sys

import pytest
import torch

from melisma.errors import SettingError
from melisma.fleet.task import OPTIMIZER_NAMES, OptimizerSettings
from melisma.learning.pytorch.optimizers import OPTIMIZERS, optimizer_for


def steps(step: object, weights: list[torch.Tensor]) -> list[torch.Tensor]:
    for turn in range(5):
        loss = sum(
            ((weight - turn) ** 2).sum() * (1 + index) for index, weight in enumerate(weights)
        )
        for weight in weights:
            weight.grad = None
        loss.backward()  # type: ignore[union-attr]
        step()  # type: ignore[operator]
    return [weight.detach().clone() for weight in weights]


def weights() -> list[torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=rng, requires_grad=True) for shape in ((3, 2), (2,))]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_sgd_steps_equal_those_of_torch(momentum: float, decay: float) -> None:
    mine, theirs = weights(), weights()
    settings = OptimizerSettings(name="sgd", lr=0.05, momentum=momentum, weight_decay=decay)
    ours = optimizer_for(settings)
    reference = torch.optim.SGD(theirs, 0.05, momentum, 0, decay)
    one = steps(lambda: ours.step(mine), mine)
    other = steps(reference.step, theirs)
    for result, expected in zip(one, other, strict=True):
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_steps_equal_those_of_torch(decay: float) -> None:
    mine, theirs = weights(), weights()
    ours = optimizer_for(OptimizerSettings(name="adam", lr=0.01, weight_decay=decay))
    reference = torch.optim.Adam(theirs, 0.01, weight_decay=decay)
    one = steps(lambda: ours.step(mine), mine)
    other = steps(reference.step, theirs)
    for result, expected in zip(one, other, strict=True):
        torch.testing.assert_close(result, expected)


def test_weights_without_a_gradient_do_not_change() -> None:
    used, idle = weights()
    before = idle.detach().clone()
    used.grad = torch.ones_like(used)
    optimizer_for(OptimizerSettings(name="sgd", lr=1.0)).step([used, idle])
    assert torch.equal(idle, before)


def test_the_error_about_an_unknown_optimizer_lists_the_known_ones() -> None:
    with pytest.raises(SettingError, match="'lion'; expected one of sgd, adam"):
        optimizer_for(OptimizerSettings(name="lion"))


def test_plans_know_the_names_of_all_optimizers() -> None:
    assert tuple(OPTIMIZERS) == OPTIMIZER_NAMES


def test_training_imports_no_compiler() -> None:
    code = """
import sys
import numpy as np
from melisma.fleet.task import Task
from melisma.learning.batches import batches_of
from melisma.learning.data.datasets import Split
from melisma.learning.pytorch.torch_trainer import TorchTrainer
trainer = TorchTrainer(Task(name="t", model="twonn", data="mnist", deadline_s=1.0))
samples = Split(np.zeros((40, 28, 28), np.uint8), np.zeros(40, np.uint8))
rng = np.random.default_rng(1)
trainer.train(trainer.initial(), batches_of(samples, 1, 32, rng), rng)
print("torch._dynamo" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"
