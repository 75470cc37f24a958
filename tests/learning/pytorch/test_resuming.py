"""A training that another trainer continues is the one that was not interrupted."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from melisma.errors import DataError, SettingError
from melisma.fleet.task import OptimizerSettings, Task
from melisma.learning.batches import batches_of
from melisma.learning.data.datasets import Split
from melisma.learning.pytorch.torch_trainer import TorchTrainer
from melisma.learning.trainer import ResumableTrainer, TrainingState
from melisma.testing import check_trainer
from tests.learning.pytorch.asynchronous_device import AsynchronousDevice, ManualClock

OPTIMIZERS = {
    "sgd": OptimizerSettings(name="sgd", lr=0.05, weight_decay=0.01),
    "momentum": OptimizerSettings(name="sgd", lr=0.05, momentum=0.9),
    "adam": OptimizerSettings(name="adam", lr=0.01, weight_decay=0.01),
}


class Dropping(nn.Sequential):
    """Dropout, BatchNorm and a weight that is never used."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3), nn.Identity()
        )
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))


def make_task(**changed: Any) -> Task:
    settings: dict[str, Any] = {"model": f"{__name__}:Dropping", "batch": 7, "deadline_s": 1.0}
    return Task(name="t", data="mnist", **settings | changed)


def samples() -> Split:
    rng = np.random.default_rng(5)
    return Split(rng.random((40, 4), np.float32), rng.integers(0, 3, 40))


class KilledError(Exception):
    """The process is killed."""


def train(trainer: TorchTrainer, kill_at: int | None = None, keep_at: int | None = None) -> Any:
    """Train 3 passes; return the result, or the state before batch `keep_at`, if it is killed."""
    rng, kept = np.random.default_rng(1), None

    def batches() -> Iterator[Split]:
        nonlocal kept
        for number, batch in enumerate(batches_of(samples(), 3, 7, rng)):
            if number == keep_at:
                kept = trainer.checkpoint()
            if number == kill_at:
                raise KilledError
            yield batch

    try:
        return trainer.train(trainer.initial(), batches(), rng)
    except KilledError:
        return kept


def resume(trainer: TorchTrainer, state: TrainingState) -> Any:
    """Continue with the batches that come after those that were trained."""
    rng = np.random.default_rng(1)
    whole = [*batches_of(samples(), 3, 7, rng)]
    done = np.cumsum([0, *map(len, whole)]).tolist().index(state.visits)
    trainer.restore(state)
    return trainer.train(state.parameters, iter(whole[done:]), np.random.default_rng(1))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("prox", [0.0, 0.1])
@pytest.mark.parametrize("keep_at", [0, 1, 8, 17])
def test_a_resumed_training_equals_one_that_was_not_interrupted(
    name: str, prox: float, keep_at: int
) -> None:
    task = make_task(optimizer=OPTIMIZERS[name], prox=prox)
    expected = train(TorchTrainer(task))
    state = train(TorchTrainer(task), kill_at=17, keep_at=keep_at)
    torch.rand(3)  # another process has another generator
    resumed = resume(TorchTrainer(task), state)
    assert (resumed.visits, resumed.loss) == (expected.visits, expected.loss)
    for parameter, array in expected.parameters.items():
        assert np.array_equal(resumed.parameters[parameter], array), parameter


def test_a_checkpoint_changes_neither_the_training_nor_itself() -> None:
    task = make_task(optimizer=OPTIMIZERS["momentum"], prox=0.1)
    one, other = TorchTrainer(task), TorchTrainer(task)
    assert isinstance(one, ResumableTrainer)
    expected, saved = train(one), train(other, keep_at=9)
    for parameter, array in expected.parameters.items():
        assert np.array_equal(saved.parameters[parameter], array)
    state = train(other, kill_at=10, keep_at=3)
    copies = {name: array.copy() for name, array in (state.parameters | state.extra).items()}
    resume(other, state)
    for name, array in (state.parameters | state.extra).items():
        assert np.array_equal(copies[name], array), name


def test_a_state_is_used_by_one_training_only() -> None:
    task = make_task(optimizer=OPTIMIZERS["adam"])
    trainer = TorchTrainer(task)
    expected = train(trainer)
    resume(trainer, train(TorchTrainer(task), kill_at=5, keep_at=5))
    again = train(trainer)
    assert again.visits == expected.visits
    assert all(np.array_equal(again.parameters[n], a) for n, a in expected.parameters.items())


def test_a_kept_optimizer_is_continued_after_a_resumed_training() -> None:
    settings = OptimizerSettings(name="sgd", lr=0.05, momentum=0.9, keep=True)
    task = make_task(optimizer=settings)
    whole, resumed = TorchTrainer(task), TorchTrainer(task)
    train(whole)
    resume(resumed, train(TorchTrainer(task), kill_at=5, keep_at=5))
    one, other = train(whole), train(resumed)
    assert all(np.array_equal(other.parameters[n], a) for n, a in one.parameters.items())


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_an_optimizer_that_is_kept_goes_on_in_another_process(name: str) -> None:
    task = make_task(optimizer=replace(OPTIMIZERS[name], keep=True))
    whole, first, second = (TorchTrainer(task) for _ in range(3))
    train(whole)
    train(first)
    second.load_optimizer_state(first.optimizer_state())
    one, other = train(whole), train(second)
    assert all(np.array_equal(other.parameters[n], a) for n, a in one.parameters.items())
    anew = train(TorchTrainer(task))
    assert not all(np.array_equal(anew.parameters[n], a) for n, a in one.parameters.items())


def test_the_state_of_another_optimizer_is_refused() -> None:
    trainer = TorchTrainer(make_task(optimizer=OPTIMIZERS["momentum"]))
    with pytest.raises(DataError, match="saved"):
        trainer.load_optimizer_state({"square.0": np.zeros(3, np.float32)})


def test_a_checkpoint_waits_for_the_device() -> None:
    device = AsynchronousDevice(ManualClock())
    trainer = TorchTrainer(make_task(optimizer=OPTIMIZERS["momentum"]), device)
    state = train(trainer, kill_at=4, keep_at=4)
    assert state.visits == 4 * 7
    assert np.isfinite(state.loss_sum)
    assert not trainer._losses._queued  # type: ignore[union-attr]
    resumed, expected = resume(trainer, state), train(trainer)
    assert all(np.array_equal(resumed.parameters[n], a) for n, a in expected.parameters.items())


@pytest.mark.parametrize("saved", ["momentum", "adam"])
@pytest.mark.parametrize("damage", ["drop", "shape", "unknown", "other", "generator", "origin"])
def test_a_state_that_does_not_fit_is_refused_and_the_next_training_begins_anew(
    saved: str, damage: str
) -> None:
    task = make_task(optimizer=OPTIMIZERS[saved])
    state = train(TorchTrainer(task), kill_at=5, keep_at=5)
    first = {"momentum": "optimizer.momentum.0", "adam": "optimizer.square.0"}[saved]
    if damage == "drop":
        del state.extra[first]
    elif damage == "shape":
        state.extra[first] = np.zeros((5, 5), np.float32)
    elif damage == "unknown":
        state.extra["optimizer.surprise"] = np.zeros(2)
    elif damage == "other":
        task = make_task(optimizer=OPTIMIZERS["momentum" if saved == "adam" else "adam"])
    elif damage == "generator":
        del state.extra["rng.cpu"]
    else:
        state.extra["origin.0"] = np.zeros(2)
    trainer = TorchTrainer(task)
    with pytest.raises(DataError, match="saved"):
        trainer.restore(state)
    expected, result = train(TorchTrainer(task)), train(trainer)
    assert result.visits == expected.visits
    assert all(np.array_equal(result.parameters[n], a) for n, a in expected.parameters.items())


def test_without_a_training_there_is_no_checkpoint() -> None:
    with pytest.raises(SettingError, match="no training to save"):
        TorchTrainer(make_task()).checkpoint()


def test_the_trainer_of_pytorch_passes_the_check_of_trainers() -> None:
    check_trainer(TorchTrainer(make_task(optimizer=OPTIMIZERS["momentum"])), samples())
