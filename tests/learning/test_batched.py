import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from melisma.errors import DataError
from melisma.fleet.task import OptimizerSettings, Task
from melisma.learning.batched import (
    BatchedResults,
    TrainingWork,
    can_train_together,
    train_many,
    train_one,
)
from melisma.learning.batches import batch_indices
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.pytorch import torch_batched
from melisma.learning.pytorch.torch_trainer import TorchTrainer
from melisma.learning.trainer import Score, Trainer, TrainingResult
from melisma.learning.trainer_factory import trainer_for

TASK = Task(
    name="digits",
    model="mlp",
    model_args={"layers": [36, 12, 10]},
    data="mnist",
    deadline_s=1.0,
    batch=8,
)
# Samples, passes and batches: short last batches, an early stop, none at all, nothing to train on.
SIZES = ((20, 2, 99), (16, 1, 99), (21, 3, 5), (9, 1, 0), (0, 2, 9), (3, 2, 1), (40, 1, 99))


class Residual(nn.Module):
    """No plain stack of layers, and one weight that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(36, 36), nn.Linear(36, 10)
        self.outer.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return torch.log_softmax(self.outer(flat + torch.tanh(self.inner(flat))), dim=1)


class Convolved(nn.Sequential):
    def __init__(self) -> None:
        convolution = nn.Conv2d(1, 3, 3)
        super().__init__(convolution, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 10))


class Dropped(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 10))


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.BatchNorm1d(36), nn.Linear(36, 10))


class Centred(nn.Module):
    """A sample's output depends on the others of its batch, which no buffer shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 10)

    def forward(self, x: Tensor) -> Tensor:
        flat: Tensor = self.layer(x.flatten(1))
        return flat - flat.mean(0)


class Deciding(nn.Module):
    """A model whose computation depends on values, which `vmap` cannot follow."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(36, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1))
        return out if out.sum().item() > 0 else 2 * out


class Tied(nn.Sequential):
    def __init__(self) -> None:
        layer = nn.Linear(36, 36)
        super().__init__(nn.Flatten(), layer, nn.ReLU(), layer)


class Counting:
    """A trainer of one's own."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def initial(self) -> dict[str, Any]:
        return {"seen": np.zeros(1)}

    def train(
        self, parameters: Arrays, batches: Iterator[Split], rng: np.random.Generator
    ) -> TrainingResult:
        seen = sum(map(len, batches))
        return TrainingResult({"seen": parameters["seen"] + seen}, seen, 0.0)

    def score(self, parameters: Arrays, samples: Split) -> Score:
        return Score(0, 0.0, 0)


def own(kind: type) -> dict[str, Any]:
    return {"model": f"{__name__}:{kind.__name__}", "model_args": {}}


def images(count: int, seed: int) -> Split:
    rng = np.random.default_rng(seed)
    samples = rng.integers(0, 256, (count, 6, 6), dtype=np.uint8)
    return Split(samples, rng.integers(0, 10, count).astype(np.uint8))


def same_generator(seed: int) -> Callable[[], np.random.Generator]:
    """Return a function that always returns one generator, so that a test can inspect it."""
    rng = np.random.default_rng(seed)
    return lambda: rng


def make_works(
    make_samples: Callable[[int, int], Split] = images, sizes: tuple[tuple[int, ...], ...] = SIZES
) -> list[TrainingWork]:
    return [
        TrainingWork(make_samples(samples, seed), passes, same_generator(seed), batches)
        for seed, (samples, passes, batches) in enumerate(sizes)
    ]


def one_by_one(
    trainer: Trainer, start: Arrays, works: list[TrainingWork], task: Task = TASK
) -> list[TrainingResult]:
    return [train_one(task, trainer, start, work) for work in works]


def assert_same(results: list[TrainingResult], expected: list[TrainingResult]) -> None:
    """Visits exactly; numbers as single precision allows."""
    assert [each.visits for each in results] == [each.visits for each in expected]
    for one, other in zip(results, expected, strict=True):
        np.testing.assert_allclose(one.loss, other.loss, rtol=1e-5)
        assert list(one.parameters) == list(other.parameters)
        for name, array in other.parameters.items():
            assert one.parameters[name].dtype == array.dtype
            np.testing.assert_allclose(one.parameters[name], array, rtol=1e-4, atol=2e-6)


OPTIMIZERS = [
    OptimizerSettings(),
    OptimizerSettings(weight_decay=0.1),
    OptimizerSettings(momentum=0.9, weight_decay=0.01),
    OptimizerSettings(name="adam", lr=1e-3, weight_decay=0.01),
]


def results_by_work(batches: Iterable[BatchedResults]) -> list[TrainingResult]:
    """Return the result of each work, in their order."""
    results = {
        int(index): TrainingResult(
            {name: array[row] for name, array in batch.parameters.items()},
            int(batch.visits[row]),
            float(batch.loss[row]),
        )
        for batch in batches
        for row, index in enumerate(batch.indices)
    }
    assert sorted(results) == [*range(len(results))]
    return [results[index] for index in range(len(results))]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "changes",
    [{}, {**own(Residual), "loss": "nll"}, own(Convolved)],
    ids=["layers", "residual", "convolved"],
)
def test_batched_training_equals_one_by_one_training(
    changes: dict[str, Any], optimizer: OptimizerSettings
) -> None:
    task = replace(TASK, optimizer=optimizer, **changes)
    trainer = trainer_for(task)
    start, mine, theirs = trainer.initial(), make_works(), make_works()
    assert can_train_together(task, trainer, mine)
    results = results_by_work(train_many(task, trainer, start, mine))
    assert_same(results, one_by_one(trainer, start, theirs))
    # The generators are in the same state afterwards.
    assert [each.rng().random() for each in mine] == [each.rng().random() for each in theirs]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("axes", [(), (1,)])
def test_regression_is_trained_in_a_batch(
    axes: tuple[int, ...], optimizer: OptimizerSettings
) -> None:
    def make_samples(count: int, seed: int) -> Split:
        x = np.random.default_rng(seed).normal(size=(count, 3))
        return Split(x, (x @ np.array([1.0, -2.0, 3.0])).reshape(count, *axes))

    args = {"in_features": 3, "out_features": 1}
    task = replace(TASK, model="torch.nn:Linear", model_args=args, loss="mse", optimizer=optimizer)
    trainer = trainer_for(task)
    assert can_train_together(task, trainer, make_works(make_samples))
    results = results_by_work(
        train_many(task, trainer, trainer.initial(), make_works(make_samples))
    )
    assert_same(results, one_by_one(trainer, trainer.initial(), make_works(make_samples)))


def test_samples_with_several_labels_and_ignored_labels_are_trained_in_a_batch() -> None:
    def make_samples(count: int, seed: int) -> Split:
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 4, (count, 5))
        labels[rng.random(labels.shape) < 0.3] = -100
        return Split(rng.integers(0, 9, (count, 4)), labels)

    args = {"num_embeddings": 9, "embedding_dim": 5}
    task = replace(TASK, model="torch.nn:Embedding", model_args=args)
    trainer = trainer_for(task)
    assert can_train_together(task, trainer, make_works(make_samples))
    results = results_by_work(
        train_many(task, trainer, trainer.initial(), make_works(make_samples))
    )
    assert_same(results, one_by_one(trainer, trainer.initial(), make_works(make_samples)))


@pytest.mark.parametrize("kind", [Dropped, Normed, Centred, Deciding, Tied])
def test_models_that_cannot_be_batched_are_trained_one_by_one(kind: type) -> None:
    task = replace(TASK, **own(kind))
    trainer = trainer_for(task)
    start = trainer.initial()
    selected = [each for each in SIZES if each[0] != 9]
    torch.manual_seed(3)
    assert not can_train_together(task, trainer, make_works(sizes=tuple(selected)))
    results = results_by_work(train_many(task, trainer, start, make_works(sizes=tuple(selected))))
    torch.manual_seed(3)
    assert_same(results, one_by_one(trainer, start, make_works(sizes=tuple(selected))))


def test_a_kept_optimizer_state_passes_from_learner_to_learner() -> None:
    task = replace(TASK, optimizer=OptimizerSettings(momentum=0.9, keep=True))
    one, other = trainer_for(task), trainer_for(task)
    assert not can_train_together(task, one, make_works())
    results = results_by_work(train_many(task, one, one.initial(), make_works()))
    assert_same(results, one_by_one(other, one.initial(), make_works()))


def test_a_custom_trainer_is_called_for_each_learner() -> None:
    task = replace(TASK, **own(Counting))
    trainer = Counting(task)
    assert not can_train_together(task, trainer, make_works())
    results = results_by_work(train_many(task, trainer, trainer.initial(), make_works()))
    assert [each.visits for each in results] == [
        sum(
            len(rows)
            for rows in islice(batch_indices(samples, passes, 8, np.random.default_rng(1)), batches)
        )
        for samples, passes, batches in SIZES
    ]


def test_a_custom_trainer_needs_no_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None
from melisma.fleet.task import Task
from melisma.learning.batched import train_many
task = Task(name="a", model="own:Own", data="mnist", deadline_s=1.0)
print(list(train_many(task, None, {}, [])))
"""
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_batched_training_imports_no_compiler() -> None:
    code = """
import sys
import numpy as np
from melisma.fleet.task import Task
from melisma.learning.batched import TrainingWork, can_train_together, train_many
from melisma.learning.data.datasets import Split
from melisma.learning.trainer_factory import trainer_for
task = Task(name="t", model="convnet", data="mnist", deadline_s=1.0)
trainer = trainer_for(task)
samples = Split(np.zeros((40, 28, 28), np.uint8), np.zeros(40, np.uint8))
works = [TrainingWork(samples, 1, lambda: np.random.default_rng(1), 9)] * 2
print(can_train_together(task, trainer, works))
print(sum(len(some.indices) for some in train_many(task, trainer, trainer.initial(), works)))
print("torch._dynamo" in sys.modules)
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == ["True", "2", "False"]


@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_bitwise_equal_for_every_number_of_chunks(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_batched, "STACK_LEARNERS", 4)
    trainer, before = trainer_for(TASK), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        one, other = (
            results_by_work(
                train_many(TASK, trainer, trainer.initial(), make_works(sizes=SIZES * 4))
            )
            for _ in range(2)
        )
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for result, again in zip(one, other, strict=True):
        assert (result.visits, repr(result.loss)) == (again.visits, repr(again.loss))
        assert all(
            np.array_equal(result.parameters[k], again.parameters[k]) for k in result.parameters
        )
    assert_same(one, one_by_one(trainer, trainer.initial(), make_works(sizes=SIZES * 4)))


def test_learners_are_trained_when_their_results_are_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_batched, "STACK_LEARNERS", 4)
    trainer, works = trainer_for(TASK), make_works(sizes=SIZES * 4)
    results = train_many(TASK, trainer, trainer.initial(), works)
    first = next(results)
    assert works[-1].rng().random() == np.random.default_rng(len(works) - 1).random()
    # In between the trainer may be used for something else.
    train_one(TASK, trainer, trainer.initial(), make_works()[0])
    expected = one_by_one(trainer, trainer.initial(), make_works(sizes=SIZES * 4)[:-1])
    assert_same(results_by_work([first, *results])[:-1], expected)


def test_inputs_are_not_changed_and_results_share_no_memory() -> None:
    trainer = trainer_for(TASK)
    start = trainer.initial()
    results = results_by_work(train_many(TASK, trainer, start, make_works()))
    assert all(np.array_equal(start[name], array) for name, array in trainer.initial().items())
    kept = results[1].parameters["1.weight"].copy()
    results[0].parameters["1.weight"][:] = 0
    assert np.array_equal(results[1].parameters["1.weight"], kept)


def test_samples_of_another_shape_train_one_by_one_and_invalid_labels_are_named() -> None:
    trainer = trainer_for(TASK)
    assert isinstance(trainer, TorchTrainer)
    flat = Split(np.ones((9, 36), np.float32), np.ones(9, np.uint8))
    mixed = [*make_works(), TrainingWork(flat, 1, same_generator(1), 9)]
    assert not can_train_together(TASK, trainer, mixed)
    assert len(results_by_work(train_many(TASK, trainer, trainer.initial(), mixed))) == len(mixed)
    wrong = [TrainingWork(Split(flat.samples, np.ones(9)), 1, same_generator(1), 9)] * 2
    with pytest.raises(DataError, match="needs integers"):
        results_by_work(train_many(TASK, trainer, trainer.initial(), wrong))


def test_ignored_labels_are_ignored_by_the_layerwise_model() -> None:
    def make_samples(count: int, seed: int) -> Split:
        split, rng = images(count, seed), np.random.default_rng(seed)
        ignored = rng.random(count) < 0.3
        return Split(split.samples, np.where(ignored, -100, split.labels.astype(np.int64)))

    trainer = trainer_for(TASK)
    assert can_train_together(TASK, trainer, make_works(make_samples))
    results = results_by_work(
        train_many(TASK, trainer, trainer.initial(), make_works(make_samples))
    )
    assert_same(results, one_by_one(trainer, trainer.initial(), make_works(make_samples)))
    # A batch of which no label counts has no mean, and nobody learns by it.
    assert any(np.isnan(each.loss) for each in results)


class Bent(nn.Sequential):
    """Every activation, a layer without a bias, and one that is not trained."""

    def __init__(self) -> None:
        bends = nn.LeakyReLU(0.2), nn.GELU(), nn.SiLU(), nn.Sigmoid(), nn.Tanh(), nn.ReLU()
        layers = [each for bend in bends for each in (nn.Linear(36, 36), bend)]
        last = nn.Linear(36, 10)
        layers[2].requires_grad_(False)
        last.bias.requires_grad_(False)
        super().__init__(nn.Flatten(), nn.Linear(36, 36, bias=False), *layers, last)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_activation_is_trained_by_the_layerwise_model(optimizer: OptimizerSettings) -> None:
    task = replace(TASK, optimizer=optimizer, **own(Bent))
    trainer = trainer_for(task)
    assert isinstance(trainer, TorchTrainer)
    assert (
        torch_batched.choose_stacked_model(task, trainer, make_works())
        is torch_batched.LayerwiseModel
    )
    results = results_by_work(train_many(task, trainer, trainer.initial(), make_works()))
    assert_same(results, one_by_one(trainer, trainer.initial(), make_works()))


@pytest.mark.parametrize("shape", [(6, 6), (3, 4, 3)], ids=["grey", "colour"])
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_learners_may_share_samples_and_train_on_different_rows(
    shape: tuple[int, ...], kind: type
) -> None:
    rng = np.random.default_rng(5)
    shared = Split(rng.integers(0, 9, (50, *shape)).astype(kind), rng.integers(0, 10, 50))
    rows = [rng.integers(0, 50, samples) for samples, _, _ in SIZES]
    both = [*zip(rows, SIZES, strict=True)]
    mine = [TrainingWork(shared, size[1], same_generator(1), size[2], each) for each, size in both]
    apart = [
        TrainingWork(
            Split(shared.samples[each], shared.labels[each]), size[1], same_generator(1), size[2]
        )
        for each, size in both
    ]
    trainer = trainer_for(TASK)
    assert can_train_together(TASK, trainer, mine)
    results = results_by_work(train_many(TASK, trainer, trainer.initial(), mine))
    assert_same(results, one_by_one(trainer, trainer.initial(), apart))


def test_a_batch_may_be_longer_than_all_samples() -> None:
    task = replace(TASK, batch=10**9)
    trainer = trainer_for(task)
    results = results_by_work(train_many(task, trainer, trainer.initial(), make_works()))
    assert_same(results, one_by_one(trainer, trainer.initial(), make_works(), task))
