import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from melisma.errors import DataError, SettingError
from melisma.fleet.task import OptimizerSettings, Task
from melisma.learning.batches import batch_indices, batches_of
from melisma.learning.data.datasets import Split
from melisma.learning.pytorch.models import to_model_input
from melisma.learning.pytorch.torch_trainer import TorchTrainer
from melisma.learning.stepper import NullStepper, Stepper, stepper_for
from melisma.learning.trainer_factory import trainer_for

TASK = Task(name="digits", model="twonn", data="mnist", deadline_s=15.0, batch=16)
MODELS: dict[str, dict[str, Any]] = {
    "lenet": {"model": "lenet"},
    # Parameter sizes that are not multiples of a SIMD width.
    "mlp": {"model": "mlp", "model_args": {"layers": [784, 31, 17, 10]}},
}


def images(count: int = 100) -> Split:
    random = np.random.default_rng(0)
    samples = random.integers(0, 256, (count, 28, 28)).astype(np.uint8)
    return Split(samples, random.integers(0, 10, count).astype(np.uint8))


def rng(seed: int = 5) -> np.random.Generator:
    return np.random.default_rng(seed)


def rates(count: int) -> list[float]:
    return [0.1 / (1 + 0.3 * step**0.5) for step in range(count)]


class Dropping(nn.Module):
    """Uses dropout as a function, not as a module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.layer(x.flatten(1)), 0.5, self.training)


class Half(nn.Linear):
    def __init__(self) -> None:
        super().__init__(784, 10, dtype=torch.float16)


class Frozen(nn.Sequential):
    """Only its last layer is trained."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 20), nn.Linear(20, 10))
        for weight in [*self.parameters()][: 2 * layers]:
            weight.requires_grad_(False)


class UserTrainer:
    """A class with the methods of a trainer."""

    def __init__(self, task: Task) -> None: ...
    def initial(self) -> None: ...
    def train(self, parameters: Any, batches: Any, rng: Any) -> None: ...
    def score(self) -> None: ...


def own(kind: type) -> Task:
    return replace(TASK, model=f"{__name__}:{kind.__name__}")


@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("model", MODELS)
def test_steps_equal_those_of_torch_bit_for_bit(model: str) -> None:
    task = replace(TASK, **MODELS[model])
    steps = stepper_for(task, images(), rng())
    reference = TorchTrainer(task)
    optimizer = torch.optim.SGD(reference.model.parameters(), lr=1.0)
    x, y = reference.tensors(images())
    # More than one pass of seven batches.
    for rate, batch in zip(rates(10), batch_indices(100, 9, 16, rng()), strict=False):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        loss = reference.loss(reference.model(to_model_input(x[batch])), y[batch])
        loss.backward()
        optimizer.step()
        assert steps.step(rate) == loss.item()
    expected = reference.model.state_dict()
    arrays = steps.arrays()
    assert list(arrays) == list(expected)
    for name, weight in expected.items():
        assert arrays[name].tobytes() == weight.numpy().tobytes()


@pytest.mark.parametrize("task", [TASK, own(Dropping), own(Frozen)])
def test_a_pass_of_steps_equals_a_pass_of_training(task: Task) -> None:
    trainer, steps = trainer_for(task), stepper_for(task, images(), rng())
    same = rng()
    batches = batches_of(images(), 2, task.batch, same)
    trained = trainer.train(trainer.initial(), batches, same)
    losses = [steps.step(0.1) for _ in range(14)]
    assert steps.visits == trained.visits == 200
    weights = [16] * 6 + [4]
    assert np.average(losses, weights=weights * 2) == pytest.approx(trained.loss)
    for name, array in steps.arrays().items():
        assert np.array_equal(array, trained.parameters[name])


def test_the_vector_starts_with_the_initial_parameters_of_the_trainer() -> None:
    steps, start = stepper_for(TASK, images(), rng()), trainer_for(TASK).initial()
    flat = np.concatenate([array.reshape(-1) for array in start.values()])
    assert steps.vector.dtype == steps.gradient_sum.dtype == np.float32
    assert np.array_equal(steps.vector, flat)
    assert steps.gradient_sum.shape == flat.shape
    assert not steps.gradient_sum.any()
    assert steps.visits == 0


def test_gradient_sum_is_the_sum_of_gradients_since_it_was_set_to_0() -> None:
    steps = stepper_for(TASK, images(), rng())
    for _ in range(2):
        before = steps.vector.copy()
        for _ in range(5):
            steps.step(0.5)
        np.testing.assert_allclose(before - 0.5 * steps.gradient_sum, steps.vector, atol=1e-6)
        assert steps.gradient_sum.any()
        steps.gradient_sum[:] = 0


def test_the_vector_and_the_model_share_memory() -> None:
    one, other = (stepper_for(TASK, images(), rng(seed)) for seed in (1, 2))
    for _ in range(3):
        one.step(0.1)
    vector = other.vector
    vector[:] = one.vector
    assert one.score(images()) == other.score(images())
    assert all(np.array_equal(other.arrays()[name], one.arrays()[name]) for name in one.arrays())
    other.step(0.1)
    assert other.vector is vector
    assert not np.array_equal(vector, one.vector)


def test_a_score_equals_that_of_the_trainer_and_changes_nothing() -> None:
    def take_steps(scored: bool) -> Stepper:
        steps = stepper_for(own(Dropping), images(), rng())
        for _ in range(4):
            steps.step(0.1)
            if scored:
                steps.score(images())
        return steps

    one, other = take_steps(scored=True), take_steps(scored=False)
    assert np.array_equal(one.vector, other.vector)
    assert one.score(images()) == trainer_for(own(Dropping)).score(one.arrays(), images())


def test_arrays_are_copies() -> None:
    steps = stepper_for(TASK, images(), rng())
    copies = steps.arrays()
    before = steps.vector.copy()
    for array in copies.values():
        array[:] = 7
    assert np.array_equal(steps.vector, before)


def test_random_numbers_in_a_model_depend_on_the_seed_alone() -> None:
    def vector_after_steps(seed: int, draws: int) -> Any:
        steps = stepper_for(own(Dropping), images(), rng(seed))
        for _ in range(3):
            torch.rand(draws)
            steps.step(0.1)
        return steps.vector

    assert np.array_equal(vector_after_steps(1, 0), vector_after_steps(1, 9))
    assert not np.array_equal(vector_after_steps(1, 0), vector_after_steps(2, 0))


def test_a_step_leaves_the_global_random_state_unchanged() -> None:
    steps = stepper_for(own(Dropping), images(), rng())
    before = torch.get_rng_state()
    steps.step(0.1)
    assert torch.equal(torch.get_rng_state(), before)


def test_frozen_parameters_stay_and_have_no_gradient() -> None:
    steps = stepper_for(own(Frozen), images(), rng())
    before, frozen = steps.vector.copy(), 784 * 20 + 20
    steps.step(0.1)
    assert np.array_equal(steps.vector[:frozen], before[:frozen])
    assert not steps.gradient_sum[:frozen].any()
    assert steps.gradient_sum[frozen:].any()


def test_the_last_batch_of_a_pass_may_be_short() -> None:
    steps = stepper_for(TASK, images(20), rng())
    visits = []
    for _ in range(4):
        steps.step(0.1)
        visits.append(steps.visits)
    assert visits == [16, 20, 36, 40]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            replace(TASK, optimizer=OptimizerSettings(name="adam")),
            "peers take plain SGD steps: optimizer.name is 'adam'; expected 'sgd'",
        ),
        (
            replace(TASK, optimizer=OptimizerSettings(momentum=0.9)),
            "peers take plain SGD steps: optimizer.momentum is 0.9; expected 0",
        ),
        (
            replace(TASK, optimizer=OptimizerSettings(weight_decay=0.01)),
            "peers take plain SGD steps: optimizer.weight_decay is 0.01; expected 0",
        ),
        (
            replace(TASK, model="torch.nn:BatchNorm1d", model_args={"num_features": 3}),
            "BatchNorm1d has a buffer, running_mean; expected parameters only",
        ),
        (own(Half), "Half has weight in torch.float16; expected torch.float32"),
        (replace(own(Frozen), model_args={"layers": 2}), "Frozen has no parameters to train"),
        (replace(TASK, model="torch.nn:Flatten"), "Flatten has no parameters to train"),
        (replace(TASK, prox=0.1), "prox is for runs with an orchestrator; remove it for peers"),
        (replace(TASK, sample=3), "sample is for runs with an orchestrator"),
        (
            own(UserTrainer),
            "UserTrainer is a trainer and has no single steps; expected a torch.nn.Module",
        ),
    ],
)
def test_tasks_without_plain_sgd_steps_are_refused(task: Task, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        stepper_for(task, images(), rng())


def test_a_stepper_without_samples_is_refused() -> None:
    with pytest.raises(DataError, match="no samples"):
        stepper_for(TASK, images(0), rng())


def test_a_stepper_needs_torch_only_for_a_torch_model() -> None:
    code = """
import sys
sys.modules["torch"] = None
import numpy as np
from melisma.errors import SettingError
from melisma.fleet.task import Task
from melisma.learning.data.datasets import Split
from melisma.learning.stepper import NullStepper, stepper_for
NullStepper(16, 100).step(0.1)
sys.modules["own"] = type(sys)("own")
sys.modules["own"].Own = type("Own", (), dict.fromkeys(("initial", "train", "score"), print)
    | {"__init__": lambda self, task: None})
for model in ("own:Own", "twonn"):
    try:
        task = Task(name="a", model=model, data="mnist", deadline_s=1.0)
        stepper_for(task, Split(np.zeros(1), np.zeros(1)), np.random.default_rng(1))
    except SettingError as error:
        print(error)
"""
    command = [sys.executable, "-c", code]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "is a trainer and has no single steps" in lines[0]
    assert "needs PyTorch, which is not installed" in lines[1]


def test_a_null_stepper_only_counts_visits() -> None:
    steps: Stepper = NullStepper(16, 100)
    losses = [steps.step(0.1) for _ in range(3)]
    assert np.isnan(losses).all()
    assert steps.visits == 48
    assert steps.vector.size == steps.gradient_sum.size == 0
    assert steps.vector.dtype == np.float32
    assert steps.arrays() == {}
    score = steps.score(images())
    assert score.samples == 0
    assert np.isnan([score.loss, score.accuracy]).all()
    few = NullStepper(16, 5)
    few.step(0.1)
    assert few.visits == 5
