from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor, nn

from melisma.errors import DataError, SettingError
from melisma.fleet.sizes import MODELS as SIZES
from melisma.fleet.sizes import model_size
from melisma.fleet.task import OptimizerSettings, StopSettings, Task
from melisma.learning.batches import batches_of
from melisma.learning.data.datasets import Split
from melisma.learning.data.shards import decode_shard, encode_shard
from melisma.learning.parameters import Arrays
from melisma.learning.pytorch.models import MODELS, build_model
from melisma.learning.pytorch.torch_trainer import TorchTrainer
from melisma.learning.trainer import TrainingResult

TASK = Task(name="digits", model="twonn", data="mnist", deadline_s=15.0, passes=2)


def train(
    trainer: TorchTrainer,
    parameters: Arrays,
    samples: Split,
    passes: int = 1,
    batches: int | None = None,
) -> TrainingResult:
    """Train the first batches of some passes."""
    rng = generator()
    stream = islice(batches_of(samples, passes, TASK.batch, rng), batches)
    return trainer.train(parameters, stream, rng)


def blobs(count: int = 600, seed: int = 0) -> Split:
    """Return images of ten classes, each with other bright rows."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count).astype(np.uint8)
    samples = rng.integers(0, 60, (count, 28, 28)).astype(np.uint8)
    for row in range(2):
        samples[np.arange(count), 4 + 2 * labels + row] += 150
    return Split(samples, labels)


def to_colour(split: Split) -> Split:
    """Return the images with a border, in three equal colours."""
    framed = np.pad(split.samples, ((0, 0), (2, 2), (2, 2)))
    return Split(np.repeat(framed[..., None], 3, axis=3), split.labels)


def generator() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "mlp"])
def test_models_have_as_many_parameters_as_the_sizes_of_the_fleet_package(name: str) -> None:
    count = sum(weights.numel() for weights in build_model(name).parameters())
    assert count == SIZES[name].parameters


def test_an_mlp_has_the_parameters_of_its_layers() -> None:
    args = {"layers": [784, 300, 124, 60, 10]}
    count = sum(weights.numel() for weights in build_model("mlp", args).parameters())
    assert count == model_size("mlp", args).parameters


class ReplacesWeights(nn.Module):
    """Replaces its weights when training begins."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(784, 10))

    def train(self, mode: bool = True) -> "ReplacesWeights":
        self.w = nn.Parameter(self.w.detach().clone())
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.w


def test_weights_that_a_model_replaces_are_trained() -> None:
    trainer = TorchTrainer(replace(TASK, model=f"{__name__}:ReplacesWeights"))
    first, second = (train(trainer, trainer.initial(), blobs(64)).parameters["w"] for _ in range(2))
    assert first.any()
    assert np.array_equal(first, second)


@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("name", MODELS)
def test_every_model_learns(name: str) -> None:
    args = {"layers": [784, 30, 10]} if name == "mlp" else {}
    samples, test, passes, lr = blobs(), blobs(200, 1), 3, 2e-3
    if name == "alexnet":
        # The deepest model is slow, and with lr = 2e-3 some seeds do not learn.
        samples, test, passes, lr = to_colour(blobs(400)), to_colour(blobs(100, 1)), 2, 1e-3
    adam = OptimizerSettings(name="adam", lr=lr)
    trainer = TorchTrainer(replace(TASK, model=name, model_args=args, optimizer=adam))
    before = trainer.score(trainer.initial(), test)
    trained = train(trainer, trainer.initial(), samples, passes)
    after = trainer.score(trained.parameters, test)
    assert trained.visits == passes * len(samples)
    assert after.accuracy > max(0.5, before.accuracy)
    assert after.loss < before.loss


def test_the_same_seed_gives_the_same_parameters() -> None:
    one, other = (
        train(TorchTrainer(TASK), TorchTrainer(TASK).initial(), blobs()) for _ in range(2)
    )
    assert all(np.array_equal(one.parameters[k], other.parameters[k]) for k in one.parameters)
    assert one.loss == other.loss


def test_training_ends_with_the_batches_and_reports_its_visits() -> None:
    trainer = TorchTrainer(TASK)
    stopped = train(trainer, trainer.initial(), blobs(), 2, batches=5)
    assert stopped.visits == 5 * 32
    empty = train(trainer, trainer.initial(), blobs(), 2, batches=0)
    assert empty.visits == 0
    start = trainer.initial()
    assert not np.array_equal(stopped.parameters["1.weight"], empty.parameters["1.weight"])
    assert np.isnan(empty.loss)
    assert empty.parameters.keys() == start.keys()


def test_training_does_not_change_the_given_parameters() -> None:
    trainer = TorchTrainer(TASK)
    start = trainer.initial()
    copies = {name: array.copy() for name, array in start.items()}
    train(trainer, start, blobs())
    assert all(np.array_equal(start[name], copies[name]) for name in start)


def test_optimizer_state_is_kept_only_if_the_task_sets_keep() -> None:
    def second_training(keep: bool) -> Any:
        trainer = TorchTrainer(replace(TASK, optimizer=OptimizerSettings(momentum=0.9, keep=keep)))
        start = trainer.initial()
        train(trainer, start, blobs())
        return train(trainer, start, blobs()).parameters["1.weight"]

    fresh = TorchTrainer(replace(TASK, optimizer=OptimizerSettings(momentum=0.9)))
    once = train(fresh, fresh.initial(), blobs()).parameters["1.weight"]
    assert np.array_equal(second_training(keep=False), once)
    assert not np.array_equal(second_training(keep=True), once)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "crossentropy"}, "loss is 'crossentropy'; did you mean cross_entropy"),
        (
            {"optimizer": OptimizerSettings(name="adamm")},
            "optimizer.name is 'adamm'; did you mean adam",
        ),
        ({"model": "resnet"}, "unknown model 'resnet'; did you mean lenet"),
        (
            {"model": "no.such.module:Net"},
            "model no.such.module:Net: ModuleNotFoundError: No module named",
        ),
        ({"model": "torch.nn:NoSuch"}, "model torch.nn:NoSuch: torch.nn has no NoSuch"),
        ({"model": "torch.nn.Linear"}, "unknown model 'torch.nn.Linear'; did you mean torch.nn:Li"),
        (
            {"model": "tests.live.tiny_task:Liner"},
            "tests.live.tiny_task has no Liner; did you mean Linear?",
        ),
        (
            {"loss": "mse", "stop": StopSettings(accuracy=0.9)},
            "stop.accuracy has no meaning with loss mse",
        ),
        ({"model": "collections:OrderedDict"}, "is a OrderedDict; expected a torch.nn.Module"),
        ({"model_args": {"hidden": 5}}, "model twonn with {'hidden': 5}"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        TorchTrainer(replace(TASK, **changes))


def test_a_model_of_the_user_is_built_by_its_import_path() -> None:
    args = {"in_features": 3, "out_features": 2}
    assert isinstance(build_model("torch.nn:Linear", args), nn.Linear)


LINEAR = replace(
    TASK, model="torch.nn:Linear", model_args={"in_features": 3, "out_features": 1}, loss="mse"
)


@pytest.mark.parametrize("shape", [(400,), (400, 1)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_regression_learns_with_mse_and_has_no_accuracy(
    shape: tuple[int, ...], dtype: type[np.floating[Any]]
) -> None:
    x = np.random.default_rng(0).normal(size=(400, 3)).astype(dtype)
    samples = Split(x, (x @ np.array([1, -2, 3], dtype) + 5).reshape(shape))
    trainer = TorchTrainer(LINEAR)
    trained = train(trainer, trainer.initial(), samples, 5)
    np.testing.assert_allclose(trained.parameters["weight"], [[1, -2, 3]], atol=1e-3)
    np.testing.assert_allclose(trained.parameters["bias"], [5], atol=1e-3)
    score = trainer.score(trained.parameters, samples)
    assert score.loss < 1e-5
    assert score.correct == 0
    assert np.isnan(score.accuracy)
    assert np.isnan((score + score).accuracy)


def test_integer_samples_are_passed_as_integers() -> None:
    """Such as word indices for an embedding."""
    args = {"num_embeddings": 9, "embedding_dim": 4}
    trainer = TorchTrainer(replace(TASK, model="torch.nn:Embedding", model_args=args))
    words = np.arange(20, dtype=np.uint16) % 9
    score = trainer.score(trainer.initial(), Split(words, (words % 4).astype(np.int32)))
    assert score.labels == 20


def test_accuracy_counts_each_of_several_labels_of_a_sample() -> None:
    args = {"in_channels": 1, "out_channels": 3, "kernel_size": 1}
    trainer = TorchTrainer(replace(TASK, model="torch.nn:Conv1d", model_args=args))
    start = {"weight": np.zeros((3, 1, 1), np.float32), "bias": np.eye(3, dtype=np.float32)[1]}
    labels = np.array([[0, 1, 1, 2], [1, 1, 1, 1]])
    score = trainer.score(start, Split(np.ones((2, 1, 4), np.float32), labels))
    assert (score.samples, score.correct, score.labels) == (2, 6, 8)
    assert (score + score).accuracy == 0.75


def test_labels_that_the_loss_cannot_use_are_refused() -> None:
    trainer = TorchTrainer(TASK)
    samples = Split(blobs(10).samples, np.zeros(10))
    with pytest.raises(DataError, match="labels are float64; loss cross_entropy needs integers"):
        trainer.score(trainer.initial(), samples)


def test_read_only_samples_are_trained_without_a_warning() -> None:
    """Decoded shards are read-only views; a warning of torch would fail the test."""
    trainer = TorchTrainer(TASK)
    samples = decode_shard(encode_shard(blobs(50)))
    assert train(trainer, trainer.initial(), samples).visits == 50


def test_random_numbers_in_a_model_depend_on_the_seed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.Dropout(0.5))
    trainer = TorchTrainer(TASK)
    monkeypatch.setattr(trainer, "model", model)
    start = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}

    def weight_sum(seed: int) -> float:
        rng = np.random.default_rng(seed)
        trained = trainer.train(start, batches_of(blobs(40), 1, 32, rng), rng)
        return float(trained.parameters["1.weight"].sum())

    first, other_seed, same_seed = weight_sum(1), weight_sum(2), weight_sum(1)
    assert first == same_seed
    assert first != other_seed


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


def test_a_model_with_random_numbers_has_the_same_score_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = TorchTrainer(TASK)
    monkeypatch.setattr(trainer, "model", nn.Sequential(Noise(), nn.Flatten(), nn.Linear(784, 10)))
    start = {name: t.numpy().copy() for name, t in trainer.model.state_dict().items()}
    before = torch.random.get_rng_state()
    one, other = (trainer.score(start, blobs(40)) for _ in range(2))
    assert one == other
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_proximal_term_pulls_towards_the_start() -> None:
    """One step from the start has no term; the second one has prox * (w - start)."""
    samples, labels = np.random.default_rng(1).normal(size=(4, 3)), np.array([0, 1, 0, 1])
    split = Split(samples.astype(np.float32), labels)
    args = {"layers": [3, 2]}
    results = []
    for prox, steps in ((0.0, 1), (0.7, 1), (0.0, 2), (0.7, 2)):
        task = Task(
            name="t",
            model="mlp",
            model_args=args,
            data="mnist",
            deadline_s=1.0,
            prox=prox,
            optimizer=OptimizerSettings(lr=0.5),
        )
        trainer, rng = TorchTrainer(task), np.random.default_rng(1)
        results.append(trainer.train(trainer.initial(), iter([split] * steps), rng).parameters)
    one, same, two, pulled = results
    start = TorchTrainer(task).initial()
    for name, array in one.items():
        np.testing.assert_array_equal(array, same[name])
        expected = two[name] - 0.5 * 0.7 * (array - start[name])
        np.testing.assert_allclose(pulled[name], expected, rtol=1e-5, atol=1e-7)
