"""Training on a device that queues work: right times, a bounded queue, the same numbers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from melisma.errors import SettingError
from melisma.fleet.task import OptimizerSettings, Task
from melisma.learning.batches import BatchStream, batches_of
from melisma.learning.benchmark import subset_benchmark
from melisma.learning.data.datasets import Split
from melisma.learning.pytorch import compute_device
from melisma.learning.pytorch.compute_device import (
    MAX_QUEUED_S,
    Gpu,
    LossQueue,
    Processor,
    available_devices,
    choose_device,
)
from melisma.learning.pytorch.torch_trainer import TorchTrainer
from melisma.learning.trainer import TrainingResult, synchronize
from melisma.learning.trainer_factory import trainer_for
from tests.learning.pytorch.asynchronous_device import AsynchronousDevice, ManualClock, Queueing

TASK = Task(
    name="a",
    model="tests.learning.pytorch.asynchronous_device:Queueing",
    data="mnist",
    deadline_s=1.0,
    batch=10,
    optimizer=OptimizerSettings(name="adam", lr=0.01),
)


def samples(count: int, seed: int = 0) -> Split:
    rng = np.random.default_rng(seed)
    return Split(rng.normal(size=(count, 4)).astype(np.float32), rng.integers(0, 3, count))


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> AsynchronousDevice:
    made = AsynchronousDevice(ManualClock())
    monkeypatch.setattr(Queueing, "device", made)
    # The queue of losses is timed by the device's clock.
    monkeypatch.setattr(compute_device.LossQueue.__init__, "__defaults__", (made.clock.now,))
    return made


def assert_same(one: TrainingResult, other: TrainingResult) -> None:
    assert (one.visits, one.loss) == (other.visits, other.loss)
    for name, array in one.parameters.items():
        np.testing.assert_array_equal(array, other.parameters[name])
        assert isinstance(array, np.ndarray)


@pytest.mark.parametrize(
    ("name", "available", "expected"),
    [
        ("auto", ["cuda", "mps", "cpu"], "cuda"),
        ("auto", ["mps", "cpu"], "mps"),
        ("auto", ["cpu"], "cpu"),
        ("cpu", ["cuda", "cpu"], "cpu"),
        ("mps", ["cuda", "mps", "cpu"], "mps"),
    ],
)
def test_a_device_is_chosen_by_name_or_the_fastest(
    name: str, available: list[str], expected: str
) -> None:
    chosen = choose_device(name, lambda: available)
    assert chosen.torch_device.type == expected
    assert chosen.is_asynchronous == isinstance(chosen, Gpu) == (expected != "cpu")


def test_an_impossible_device_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(SettingError, match=r"device is 'mps', but PyTorch .* finds only cuda, cpu"):
        choose_device("mps", lambda: ["cuda", "cpu"])
    with pytest.raises(SettingError, match="device is 'gpu'"):
        choose_device("gpu")
    if available_devices() == ["cpu"]:
        with pytest.raises(SettingError, match="finds only cpu"):
            trainer_for(TASK, "cuda")


def test_a_trainer_of_the_user_chooses_its_device_itself() -> None:

    task = replace(TASK, model="melisma.testing:FakeTrainer")
    trainer_for(task, "auto")
    with pytest.raises(SettingError, match="which chooses its device itself"):
        trainer_for(task, "cuda")


@pytest.mark.parametrize("model", ["lenet", "twonn"])
@pytest.mark.parametrize("name", ["cpu", "auto"])
def test_the_processor_gives_the_same_bits_as_before(model: str, name: str) -> None:
    if name == "auto" and available_devices() != ["cpu"]:
        pytest.skip("auto chooses a GPU here")

    images = Split(
        np.random.default_rng(1).integers(0, 256, (30, 28, 28), np.uint8),
        np.random.default_rng(2).integers(0, 10, 30),
    )
    task = replace(TASK, model=model)
    trainer = trainer_for(task, name)
    assert isinstance(trainer, TorchTrainer)
    assert isinstance(trainer.device, Processor)
    trained = trainer.train(trainer.initial(), batches_of(images, 2, 10, rng()), rng())

    # Plain PyTorch on the same batches.
    reference = TorchTrainer(task).model.train()
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.01)
    loss_sum = 0.0
    for batch in batches_of(images, 2, 10, rng()):
        optimizer.zero_grad()
        x = torch.from_numpy(batch.samples).float().div(255).unsqueeze(1)
        loss = torch.nn.functional.cross_entropy(reference(x), torch.from_numpy(batch.labels))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss_sum += loss.item() * len(batch)
    assert trained.loss == loss_sum / 60
    for key, tensor in reference.state_dict().items():
        np.testing.assert_array_equal(trained.parameters[key], tensor.numpy())


@pytest.mark.parametrize("free", [1 << 30, 0], ids=["shards stay", "no memory for shards"])
def test_an_asynchronous_device_trains_the_same_model(
    device: AsynchronousDevice, free: int
) -> None:
    device.free = free
    expected = TorchTrainer(TASK)
    start = expected.initial()
    on_device = TorchTrainer(TASK, device)
    assert_same(
        on_device.train(start, batches_of(samples(105), 3, 10, rng()), rng()),
        expected.train(start, batches_of(samples(105), 3, 10, rng()), rng()),
    )
    assert on_device.score(start, samples(50)) == expected.score(start, samples(50))


def stream_of(shards: list[Split], passes: int, *, repeat: bool = False) -> BatchStream:
    stream = BatchStream(10, rng(), repeat=repeat)
    stream.add_work(passes, [len(shard) for shard in shards])
    for shard in shards:
        stream.add_shard(shard)
    stream.close()
    return stream


def test_each_shard_is_moved_once_whatever_the_passes(device: AsynchronousDevice) -> None:
    shards = [samples(40, seed) for seed in range(3)]
    trainer = TorchTrainer(TASK, device)
    once = sum(shard.samples.nbytes + shard.labels.nbytes for shard in shards)
    trainer.train(trainer.initial(), stream_of(shards, 5), rng())
    # Beyond the shards, the numbers of the rows of each batch are moved.
    assert device.moved_bytes == once + 5 * 120 * 8


def test_shards_that_arrive_during_training_are_moved_once(device: AsynchronousDevice) -> None:
    shards = [samples(40, seed) for seed in range(3)]
    results = []
    for target in (device, "cpu"):
        trainer = TorchTrainer(TASK, target)
        stream = BatchStream(10, rng())
        stream.add_work(2, [40, 40, 40])
        stream.add_shard(shards[0])

        def arriving(stream: BatchStream = stream) -> Iterator[Split]:
            for number, batch in enumerate(stream):
                if number in (1, 2):
                    stream.add_shard(shards[number])
                    if number == 2:
                        stream.close()
                yield batch

        results.append(trainer.train(trainer.initial(), arriving(), rng()))
    assert_same(*results)
    once = sum(shard.samples.nbytes + shard.labels.nbytes for shard in shards)
    assert device.moved_bytes == once + 2 * 120 * 8


def test_shards_beyond_the_memory_are_moved_batch_by_batch(device: AsynchronousDevice) -> None:
    shard = samples(40)
    size_bytes = shard.samples.nbytes + shard.labels.nbytes
    device.free = 2 * size_bytes - 2  # half of it is for samples
    trainer = TorchTrainer(TASK, device)
    trainer.train(trainer.initial(), stream_of([shard], 5), rng())
    assert device.moved_bytes == 5 * size_bytes


@pytest.mark.parametrize("batch_s", [1e-4, 1e-3, 0.015, 0.5])
def test_the_queue_is_bounded_by_time(device: AsynchronousDevice, batch_s: float) -> None:
    device.batch_s = batch_s
    trainer = TorchTrainer(TASK, device)
    trainer.train(trainer.initial(), batches_of(samples(3000), 1, 10, rng()), rng())
    assert device.longest_queue_s <= max(MAX_QUEUED_S, batch_s) + 1e-9
    assert device.queued_s == 0


def test_small_batches_are_not_waited_for_one_by_one(device: AsynchronousDevice) -> None:
    trainer = TorchTrainer(TASK, device)
    trainer.train(trainer.initial(), batches_of(samples(3000), 1, 10, rng()), rng())
    assert device.waits < 300 / 10


@pytest.mark.parametrize("batch_s", [1e-3, 0.1])
def test_a_training_that_is_stopped_does_not_overrun_by_queued_work(
    device: AsynchronousDevice, batch_s: float
) -> None:
    device.batch_s = batch_s
    trainer, until_s = TorchTrainer(TASK, device), device.clock.now_s + 1.0
    trained = trainer.train(
        trainer.initial(),
        batches_of(samples(20000), 1, 10, rng(), lambda: device.clock.now_s >= until_s),
        rng(),
    )
    overrun_s = device.clock.now_s - until_s
    assert 0 <= overrun_s <= MAX_QUEUED_S + batch_s
    assert trained.visits * batch_s / 10 == pytest.approx(1.0 + overrun_s)


@pytest.mark.parametrize("count", [25, 400, 3000])
def test_a_benchmark_counts_queued_work(device: AsynchronousDevice, count: int) -> None:
    cost = subset_benchmark(
        TorchTrainer(TASK, device),
        [samples(count)],
        batch=10,
        rng=rng(),
        now_s=device.clock.now,
        throttle=lambda: None,
    )
    batches = -(-count // 10)
    assert cost.shard_s.mean == pytest.approx(batches * device.batch_s)
    assert cost.setup_s.mean == pytest.approx(0.0, abs=1e-9)


def test_waiting_for_a_trainer_without_a_queue_does_nothing() -> None:
    synchronize(TorchTrainer(TASK))

    class Plain:
        def initial(self) -> dict[str, NDArray[Any]]:
            return {}

    synchronize(Plain())  # type: ignore[arg-type]


def test_losses_are_summed_in_order() -> None:
    losses = LossQueue(Processor())
    for value, count in ((1.0, 2), (3.0, 1)):
        losses.add(torch.tensor(value), count)
    assert (losses.visits, losses.loss_sum) == (3, 5.0)
