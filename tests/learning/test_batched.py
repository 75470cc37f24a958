import subprocess
import sys
from collections.abc import Callable, Iterable
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
    stop_after,
    train_many,
)
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
    """What it computes hangs on numbers, which `vmap` cannot follow."""

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
        self,
        parameters: Arrays,
        samples: Split,
        passes: int,
        rng: np.random.Generator,
        stop: Callable[[], bool],
    ) -> TrainingResult:
        seen = 0
        while not stop():
            seen += 1
        return TrainingResult({"seen": parameters["seen"] + seen}, seen, 0.0)

    def score(self, parameters: Arrays, samples: Split) -> Score:
        return Score(0, 0.0, 0)


def own(kind: type) -> dict[str, Any]:
    return {"model": f"{__name__}:{kind.__name__}", "model_args": {}}


def images(count: int, seed: int) -> Split:
    rng = np.random.default_rng(seed)
    samples = rng.integers(0, 256, (count, 6, 6), dtype=np.uint8)
    return Split(samples, rng.integers(0, 10, count).astype(np.uint8))


def drawing(seed: int) -> Callable[[], np.random.Generator]:
    """The same generator each time, so that a test sees what was drawn from it."""
    rng = np.random.default_rng(seed)
    return lambda: rng


def works(
    made: Callable[[int, int], Split] = images, sizes: tuple[tuple[int, ...], ...] = SIZES
) -> list[TrainingWork]:
    return [
        TrainingWork(made(samples, seed), passes, drawing(seed), batches)
        for seed, (samples, passes, batches) in enumerate(sizes)
    ]


def one_by_one(trainer: Trainer, start: Arrays, some: list[TrainingWork]) -> list[TrainingResult]:
    return [
        trainer.train(start, work.samples, work.passes, work.rng(), stop_after(work.batches))
        for work in some
    ]


def assert_same(found: list[TrainingResult], expected: list[TrainingResult]) -> None:
    """Visits exactly; numbers as single precision allows."""
    assert [each.visits for each in found] == [each.visits for each in expected]
    for one, other in zip(found, expected, strict=True):
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


def each_of(results: Iterable[BatchedResults]) -> list[TrainingResult]:
    """Of each work, in their order."""
    found = {
        int(place): TrainingResult(
            {name: array[row] for name, array in some.parameters.items()},
            int(some.visits[row]),
            float(some.loss[row]),
        )
        for some in results
        for row, place in enumerate(some.indices)
    }
    assert sorted(found) == [*range(len(found))]
    return [found[place] for place in range(len(found))]


@pytest.mark.parametrize("said", OPTIMIZERS)
@pytest.mark.parametrize(
    "changes",
    [{}, {**own(Residual), "loss": "nll"}, own(Convolved)],
    ids=["layers", "residual", "convolved"],
)
def test_training_together_is_training_one_by_one(
    changes: dict[str, Any], said: OptimizerSettings
) -> None:
    task = replace(TASK, optimizer=said, **changes)
    trainer = trainer_for(task)
    start, mine, theirs = trainer.initial(), works(), works()
    assert can_train_together(task, trainer, mine)
    found = each_of(train_many(task, trainer, start, mine))
    assert_same(found, one_by_one(trainer, start, theirs))
    # Chance goes on from the same place.
    assert [each.rng().random() for each in mine] == [each.rng().random() for each in theirs]


@pytest.mark.parametrize("said", OPTIMIZERS)
@pytest.mark.parametrize("axes", [(), (1,)])
def test_quantities_are_learnt_together(axes: tuple[int, ...], said: OptimizerSettings) -> None:
    def made(count: int, seed: int) -> Split:
        x = np.random.default_rng(seed).normal(size=(count, 3))
        return Split(x, (x @ np.array([1.0, -2.0, 3.0])).reshape(count, *axes))

    args = {"in_features": 3, "out_features": 1}
    task = replace(TASK, model="torch.nn:Linear", model_args=args, loss="mse", optimizer=said)
    trainer = trainer_for(task)
    assert can_train_together(task, trainer, works(made))
    found = each_of(train_many(task, trainer, trainer.initial(), works(made)))
    assert_same(found, one_by_one(trainer, trainer.initial(), works(made)))


def test_words_with_several_labels_each_and_some_that_do_not_count_are_learnt_together() -> None:
    def made(count: int, seed: int) -> Split:
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 4, (count, 5))
        labels[rng.random(labels.shape) < 0.3] = -100
        return Split(rng.integers(0, 9, (count, 4)), labels)

    args = {"num_embeddings": 9, "embedding_dim": 5}
    task = replace(TASK, model="torch.nn:Embedding", model_args=args)
    trainer = trainer_for(task)
    assert can_train_together(task, trainer, works(made))
    found = each_of(train_many(task, trainer, trainer.initial(), works(made)))
    assert_same(found, one_by_one(trainer, trainer.initial(), works(made)))


@pytest.mark.parametrize("kind", [Dropped, Normed, Centred, Deciding, Tied])
def test_what_cannot_train_together_trains_one_by_one(kind: type) -> None:
    task = replace(TASK, **own(kind))
    trainer = trainer_for(task)
    start = trainer.initial()
    some = [each for each in SIZES if each[0] != 9]
    torch.manual_seed(3)
    assert not can_train_together(task, trainer, works(sizes=tuple(some)))
    found = each_of(train_many(task, trainer, start, works(sizes=tuple(some))))
    torch.manual_seed(3)
    assert_same(found, one_by_one(trainer, start, works(sizes=tuple(some))))


def test_an_optimiser_that_is_kept_goes_from_learner_to_learner() -> None:
    task = replace(TASK, optimizer=OptimizerSettings(momentum=0.9, keep=True))
    one, other = trainer_for(task), trainer_for(task)
    assert not can_train_together(task, one, works())
    found = each_of(train_many(task, one, one.initial(), works()))
    assert_same(found, one_by_one(other, one.initial(), works()))


def test_a_trainer_of_ones_own_is_asked_learner_by_learner() -> None:
    task = replace(TASK, **own(Counting))
    trainer = Counting(task)
    assert not can_train_together(task, trainer, works())
    found = each_of(train_many(task, trainer, trainer.initial(), works()))
    assert [each.visits for each in found] == [batches for _, _, batches in SIZES]


def test_a_trainer_of_ones_own_needs_no_torch() -> None:
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


def test_training_together_loads_no_compiler() -> None:
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
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "2", "False"]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_works_give_the_same_bits_in_as_many_chunks_as_it_takes(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_batched, "STACK_LEARNERS", 4)
    trainer, before = trainer_for(TASK), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        one, other = (
            each_of(train_many(TASK, trainer, trainer.initial(), works(sizes=SIZES * 4)))
            for _ in range(2)
        )
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for found, again in zip(one, other, strict=True):
        assert (found.visits, repr(found.loss)) == (again.visits, repr(again.loss))
        assert all(
            np.array_equal(found.parameters[k], again.parameters[k]) for k in found.parameters
        )
    assert_same(one, one_by_one(trainer, trainer.initial(), works(sizes=SIZES * 4)))


def test_learners_are_trained_as_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_batched, "STACK_LEARNERS", 4)
    trainer, some = trainer_for(TASK), works(sizes=SIZES * 4)
    results = train_many(TASK, trainer, trainer.initial(), some)
    first = next(results)
    assert some[-1].rng().random() == np.random.default_rng(len(some) - 1).random()
    # In between the trainer may be used for something else.
    trainer.train(trainer.initial(), images(20, 1), 1, np.random.default_rng(2), lambda: False)
    expected = one_by_one(trainer, trainer.initial(), works(sizes=SIZES * 4)[:-1])
    assert_same(each_of([first, *results])[:-1], expected)


def test_what_was_given_is_not_changed_and_results_are_apart() -> None:
    trainer = trainer_for(TASK)
    start = trainer.initial()
    results = each_of(train_many(TASK, trainer, start, works()))
    assert all(np.array_equal(start[name], array) for name, array in trainer.initial().items())
    kept = results[1].parameters["1.weight"].copy()
    results[0].parameters["1.weight"][:] = 0
    assert np.array_equal(results[1].parameters["1.weight"], kept)


def test_samples_of_another_form_train_one_by_one_and_labels_that_do_not_fit_are_named() -> None:
    trainer = trainer_for(TASK)
    assert isinstance(trainer, TorchTrainer)
    flat = Split(np.ones((9, 36), np.float32), np.ones(9, np.uint8))
    mixed = [*works(), TrainingWork(flat, 1, drawing(1), 9)]
    assert not can_train_together(TASK, trainer, mixed)
    assert len(each_of(train_many(TASK, trainer, trainer.initial(), mixed))) == len(mixed)
    wrong = [TrainingWork(Split(flat.samples, np.ones(9)), 1, drawing(1), 9)] * 2
    with pytest.raises(DataError, match="needs integers"):
        each_of(train_many(TASK, trainer, trainer.initial(), wrong))


def test_labels_that_do_not_count_are_left_out_by_hand_too() -> None:
    def made(count: int, seed: int) -> Split:
        split, rng = images(count, seed), np.random.default_rng(seed)
        ignored = rng.random(count) < 0.3
        return Split(split.samples, np.where(ignored, -100, split.labels.astype(np.int64)))

    trainer = trainer_for(TASK)
    assert can_train_together(TASK, trainer, works(made))
    found = each_of(train_many(TASK, trainer, trainer.initial(), works(made)))
    assert_same(found, one_by_one(trainer, trainer.initial(), works(made)))
    # A batch of which no label counts has no mean, and nobody learns by it.
    assert any(np.isnan(each.loss) for each in found)


class Bent(nn.Sequential):
    """Every activation, a layer without a bias, and one that is not trained."""

    def __init__(self) -> None:
        bends = nn.LeakyReLU(0.2), nn.GELU(), nn.SiLU(), nn.Sigmoid(), nn.Tanh(), nn.ReLU()
        layers = [each for bend in bends for each in (nn.Linear(36, 36), bend)]
        last = nn.Linear(36, 10)
        layers[2].requires_grad_(False)
        last.bias.requires_grad_(False)
        super().__init__(nn.Flatten(), nn.Linear(36, 36, bias=False), *layers, last)


@pytest.mark.parametrize("said", OPTIMIZERS)
def test_every_activation_is_trained_by_hand(said: OptimizerSettings) -> None:
    task = replace(TASK, optimizer=said, **own(Bent))
    trainer = trainer_for(task)
    assert isinstance(trainer, TorchTrainer)
    assert (
        torch_batched.choose_stacked_model(task, trainer, works()) is torch_batched.LayerwiseModel
    )
    found = each_of(train_many(task, trainer, trainer.initial(), works()))
    assert_same(found, one_by_one(trainer, trainer.initial(), works()))


@pytest.mark.parametrize("shape", [(6, 6), (3, 4, 3)], ids=["grey", "colour"])
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_learners_may_share_samples_of_which_each_has_some_rows(
    shape: tuple[int, ...], kind: type
) -> None:
    rng = np.random.default_rng(5)
    shared = Split(rng.integers(0, 9, (50, *shape)).astype(kind), rng.integers(0, 10, 50))
    rows = [rng.integers(0, 50, samples) for samples, _, _ in SIZES]
    both = [*zip(rows, SIZES, strict=True)]
    mine = [TrainingWork(shared, size[1], drawing(1), size[2], each) for each, size in both]
    apart = [
        TrainingWork(Split(shared.samples[each], shared.labels[each]), size[1], drawing(1), size[2])
        for each, size in both
    ]
    trainer = trainer_for(TASK)
    assert can_train_together(TASK, trainer, mine)
    found = each_of(train_many(TASK, trainer, trainer.initial(), mine))
    assert_same(found, one_by_one(trainer, trainer.initial(), apart))


def test_a_batch_may_be_longer_than_all_samples() -> None:
    task = replace(TASK, batch=10**9)
    trainer = trainer_for(task)
    found = each_of(train_many(task, trainer, trainer.initial(), works()))
    assert_same(found, one_by_one(trainer, trainer.initial(), works()))
