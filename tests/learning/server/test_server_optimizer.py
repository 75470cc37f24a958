"""Server optimisers: each step as in its paper, and only for trainable arrays."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from melisma.errors import SettingError
from melisma.fleet.server_settings import ServerSettings
from melisma.fleet.task import Task
from melisma.learning.pytorch.torch_trainer import TorchTrainer
from melisma.learning.server.server_optimizer import STEPS, ServerOptimizer, trainable_arrays
from tests.live.tiny_task import Linear

CHANGES = [np.array([1.0, -2.0, 0.0]), np.array([0.5, 1.0, 3.0]), np.array([-4.0, 0.1, 0.2])]


def settings(name: str, **values: float) -> ServerSettings:
    return msgspec.convert({"name": name} | values, ServerSettings)


def run(chosen: ServerSettings) -> list[NDArray[Any]]:
    """Return the parameters after each of the changes."""
    optimizer, present = ServerOptimizer(chosen, ["w"]), {"w": np.zeros(3)}
    steps = []
    for change in CHANGES:
        present = optimizer.apply(present, {"w": present["w"] + change})
        steps.append(present["w"])
    return steps


def test_mean_is_the_mean_of_updates_and_a_learning_rate_scales_its_change() -> None:
    np.testing.assert_array_equal(run(settings("mean"))[-1], np.sum(CHANGES, axis=0))
    np.testing.assert_allclose(run(settings("mean", lr=0.5))[-1], 0.5 * np.sum(CHANGES, axis=0))


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_equals_that_of_torch_with_changes_as_negative_gradients(nesterov: bool) -> None:
    weight = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    peer = torch.optim.SGD([weight], lr=0.3, momentum=0.8, nesterov=nesterov)
    ours = run(settings("nesterov" if nesterov else "momentum", lr=0.3, momentum=0.8))
    for change, parameters in zip(CHANGES, ours, strict=True):
        weight.grad = torch.from_numpy(-change)
        peer.step()
        np.testing.assert_allclose(parameters, weight.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("name", ["adam", "yogi"])
def test_adaptive_steps_follow_algorithm_2_of_the_paper(name: str) -> None:
    lr, beta1, beta2, tau = 0.1, 0.9, 0.99, 1e-3
    x, mean, square = np.zeros(3), np.zeros(3), np.full(3, tau**2)
    for change, parameters in zip(CHANGES, run(settings(name, lr=lr)), strict=True):
        mean = beta1 * mean + (1 - beta1) * change
        if name == "adam":
            square = beta2 * square + (1 - beta2) * change**2
        else:
            square -= (1 - beta2) * change**2 * np.sign(square - change**2)
        x = x + lr * mean / (np.sqrt(square) + tau)
        np.testing.assert_allclose(parameters, x, rtol=1e-12)


@pytest.mark.parametrize("name", STEPS)
def test_undo_makes_the_next_step_independent_of_the_one_before(name: str) -> None:
    optimizer, present = ServerOptimizer(settings(name), ["w"]), {"w": np.zeros(3)}
    present = optimizer.apply(present, {"w": CHANGES[0]})
    optimizer.apply(present, {"w": np.full(3, 1e6)})
    optimizer.undo()
    again = optimizer.apply(present, {"w": present["w"] + CHANGES[1]})["w"]
    np.testing.assert_array_equal(again, run(settings(name))[1])


def test_buffers_are_averaged_and_other_types_stay() -> None:
    optimizer = ServerOptimizer(settings("adam"), ["w"])
    present: dict[str, Any] = {
        "w": np.zeros(2, np.float32),
        "mean": np.zeros(2),
        "count": np.array([3]),
    }
    mean: dict[str, Any] = {
        "w": np.ones(2, np.float32),
        "mean": np.full(2, 7.0),
        "count": np.array([3]),
    }
    new = optimizer.apply(present, mean)
    assert new["mean"].tolist() == [7.0, 7.0]
    assert new["count"].tolist() == [3]
    assert new["w"].dtype == np.float32
    assert (new["w"] != 1.0).all()
    assert mean["w"].tolist() == [1.0, 1.0]


def test_a_torch_trainer_names_its_parameters_and_not_its_buffers() -> None:
    task = Task(name="t", model="tests.learning.server.normalised:Net", data="mnist", deadline_s=1)
    trainer = TorchTrainer(task)
    assert trainable_arrays(trainer) == ("0.weight", "0.bias", "1.weight", "1.bias")
    assert {*trainer.initial()} - {*trainable_arrays(trainer)} == {
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    }


def test_all_arrays_of_a_trainer_without_trainable_are_optimised() -> None:
    task = Task(name="t", model="tiny_task:Linear", data="mnist", deadline_s=1)
    assert trainable_arrays(Linear(task)) == ("weight", "bias")


def test_an_unknown_trainable_array_is_an_error() -> None:
    class Wrong(Linear):
        def trainable(self) -> list[str]:
            return ["weights"]

    task = Task(name="t", model="tiny_task:Linear", data="mnist", deadline_s=1)
    with pytest.raises(SettingError, match="'weights'; expected names of its parameters"):
        trainable_arrays(Wrong(task))


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("adam", {"momentum": 0.9}, 'momentum is 0.9, which name = "adam" does not use'),
        ("mean", {"eps": 1.0}, "expected lr"),
        ("momentum", {"momentum": 1.0}, "Expected `float` < 1.0"),
        ("sgd", {}, "Invalid enum value 'sgd'"),
    ],
)
def test_settings_of_another_optimiser_are_refused(
    name: str, values: dict[str, float], problem: str
) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        settings(name, **values)
