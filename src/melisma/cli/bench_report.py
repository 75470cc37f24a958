"""The measurements of `melisma bench`: time a few shards, predict others, time those too.

The reference device of FLOPS is one core of this machine, timed on the shards that are predicted.
It exists only if the measured device is emulated by a share of that core.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from melisma import axon
from melisma.cli.bench_device import BenchDevice, Pacing, start_pacing
from melisma.errors import SettingError
from melisma.fleet.emulation import LinkShaper
from melisma.fleet.estimates import Estimate
from melisma.fleet.files.task_file import naming_task_file
from melisma.fleet.rng import generator
from melisma.fleet.task import Task
from melisma.learning.batches import batches_of
from melisma.learning.benchmark import (
    ReferenceDevice,
    TrainCost,
    download_benchmark,
    measure_flops,
    subset_benchmark,
)
from melisma.learning.data.datasets import DataSet, Split, load_dataset
from melisma.learning.data.partition import shuffle_into_shards
from melisma.learning.data.shards import Shard, ShardFolder, concatenate
from melisma.learning.loaded_task import add_task_path
from melisma.learning.task_sizes import limit_samples
from melisma.learning.trainer import Trainer
from melisma.learning.trainer_factory import check_model_fits, trainer_for, use_one_thread

# With larger errors or spreads, the plan of the first cycle is wrong by as much. The targets of the
# benchmark are errors of 5 %; a busy machine varies more than that.
MAX_ERROR_PERCENT, MAX_SPREAD_PERCENT = 10.0, 25.0


@dataclass(frozen=True)
class Prediction:
    """A prediction from `shards` shards, and its error relative to the actual time."""

    shards: int
    predicted_s: float
    error_percent: float
    shard_s: float
    spread_s: float
    setup_s: float = 0.0

    @property
    def spread_percent(self) -> float:
        """The spread of single shards in percent of their mean."""
        return 100 * self.spread_s / self.shard_s if self.shard_s > 0 else 0.0


@dataclass(frozen=True)
class BenchPart:
    """The actual time of `shards` other shards, and its predictions; the last has most shards.

    It is `reliable` if the last prediction and the spread of its shards are within the limits.
    """

    shards: int
    actual_s: float
    predictions: tuple[Prediction, ...]
    reliable: bool

    @classmethod
    def from_predictions(
        cls, shards: int, actual_s: float, predictions: Sequence[Prediction]
    ) -> "BenchPart":
        """Judge the last prediction."""
        last = predictions[-1]
        small_error = abs(last.error_percent) <= MAX_ERROR_PERCENT
        reliable = small_error and last.spread_percent <= MAX_SPREAD_PERCENT
        return cls(shards, actual_s, tuple(predictions), reliable)


@dataclass(frozen=True)
class FlopsPrediction:
    """The rate of matrix products, and its prediction; None without a reference."""

    flops: float
    predicted_s: float | None = None
    error_percent: float | None = None


@dataclass(frozen=True)
class BenchReport:
    """All measurements; `share` is that of one core, None for this machine without pacing."""

    task: str
    device: str | None
    share: float | None
    train: BenchPart
    flops: FlopsPrediction
    download: BenchPart | None


@dataclass(frozen=True)
class _Workload:
    """A trainer, shards to measure, and other shards to predict."""

    task: Task
    trainer: Trainer
    benchmark_shards: list[Split]
    other_shards: list[Split]

    def rng(self, purpose: str) -> np.random.Generator:
        return generator(self.task.seed, f"bench {purpose}")

    @property
    def other_shard_count(self) -> float:
        """The other shards, counted in whole ones: the last may be short."""
        return sum(map(len, self.other_shards)) / self.task.shard_samples

    def warm_up(self) -> None:
        """Train one batch, because a framework loads modules when it first trains."""
        rng = self.rng("warm-up")
        batches = batches_of(self.benchmark_shards[0], 1, self.task.batch, rng)
        self.trainer.train(self.trainer.initial(), islice(batches, 1), rng)

    def train_others_s(self, pacing: Pacing) -> float:
        """Train the other shards in one call, and return the seconds."""

        def stop() -> bool:
            pacing.throttle()
            return False

        parameters, samples = self.trainer.initial(), concatenate(self.other_shards)
        rng = self.rng("others")
        batches = batches_of(samples, 1, self.task.batch, rng, stop)
        began_s = pacing.now_s()
        self.trainer.train(parameters, batches, rng)
        return pacing.now_s() - began_s


def run_bench(
    path: str, task: Task, device: BenchDevice | None, counts: list[int], others: int
) -> BenchReport:
    """Measure on this machine, or on a device that it emulates."""
    add_task_path(task, path)
    with naming_task_file(path):
        data = limit_samples(task, load_dataset(task.data, task.data_args))
        trainer = trainer_for(task)
        check_model_fits(trainer, data)
    parts = _draw_shards(task, data, counts[-1], others)
    splits = [Split(data.train.samples[part], data.train.labels[part]) for part in parts]
    work = _Workload(task, trainer, splits[: counts[-1]], splits[counts[-1] :])
    share, reference = None, None
    if device is not None:
        use_one_thread()
        work.warm_up()
        reference = ReferenceDevice(_flops_rate(1.0), work.train_others_s(start_pacing(1.0)))
        share = device.core_share(reference.seconds / sum(map(len, work.other_shards)))
    train = _bench_training(work, counts, share)
    return BenchReport(
        task.name,
        device.name if device else None,
        share,
        train,
        _predict_by_flops(share, reference, train.actual_s),
        _bench_download(data, parts, counts, device) if task.mode == "parallelized" else None,
    )


def _bench_training(work: _Workload, counts: list[int], share: float | None) -> BenchPart:
    costs = [_subset_cost(work, count, start_pacing(share)) for count in counts]
    actual_s = work.train_others_s(start_pacing(share))
    predictions = [
        _prediction(
            count, cost.seconds(work.other_shard_count), actual_s, cost.shard_s, cost.setup_s
        )
        for count, cost in zip(counts, costs, strict=True)
    ]
    return BenchPart.from_predictions(len(work.other_shards), actual_s, predictions)


def _subset_cost(work: _Workload, count: int, pacing: Pacing) -> TrainCost:
    return subset_benchmark(
        work.trainer,
        work.benchmark_shards[:count],
        batch=work.task.batch,
        rng=work.rng(f"subset of {count}"),
        now_s=pacing.now_s,
        throttle=pacing.throttle,
        shard_samples=work.task.shard_samples,
    )


def _flops_rate(share: float | None) -> float:
    pacing = start_pacing(share)
    return measure_flops(pacing.now_s, pacing.throttle)


def _predict_by_flops(
    share: float | None, reference: ReferenceDevice | None, actual_s: float
) -> FlopsPrediction:
    rate = _flops_rate(share)
    if reference is None:
        return FlopsPrediction(rate)
    predicted_s = reference.predict_s(rate)
    return FlopsPrediction(rate, predicted_s, _error_percent(predicted_s, actual_s))


def _bench_download(
    data: DataSet, parts: list[NDArray[np.int64]], counts: list[int], device: BenchDevice | None
) -> BenchPart:
    with TemporaryDirectory(prefix="melisma-bench-") as name:
        folder = ShardFolder(Path(name), data.train, parts)
        worker = axon.Worker(port=0, files=lambda name, _: folder.path(name))
        with worker.start() as address, axon.connect(address) as remote:
            fetch = shard_fetcher(remote, folder.shards, device.link() if device else None)
            fetch(0)
            costs = [download_benchmark(fetch, count, time.perf_counter) for count in counts]
            others = range(counts[-1], len(parts))
            began_s = time.perf_counter()
            for index in others:
                fetch(index)
            actual_s = time.perf_counter() - began_s
    sizes = np.array([shard.size_bytes for shard in folder.shards])
    whole = float(sizes[others.start :].sum() / sizes.max())
    predictions = [
        _prediction(count, float(cost.mean) * whole, actual_s, cost)
        for count, cost in zip(counts, costs, strict=True)
    ]
    return BenchPart.from_predictions(len(others), actual_s, predictions)


def shard_fetcher(
    worker: axon.Remote, shards: list[Shard], link: LinkShaper | None
) -> Callable[[int], int]:
    """Return a function that fetches a shard by its index over the link and returns its bytes."""

    def fetch(index: int) -> int:
        if link is not None:
            link.begin()
        total_bytes = 0
        for piece in axon.fetch(worker, shards[index].sha256):
            total_bytes += len(piece)
            if link is not None:
                link.transfer(len(piece))
        return total_bytes

    return fetch


def _prediction(
    shards: int, predicted_s: float, actual_s: float, cost: Estimate, setup: Estimate | None = None
) -> Prediction:
    return Prediction(
        shards,
        predicted_s,
        _error_percent(predicted_s, actual_s),
        float(cost.mean),
        float(cost.spread),
        float(setup.mean) if setup else 0.0,
    )


def _error_percent(predicted_s: float, actual_s: float) -> float:
    return 100 * (predicted_s / actual_s - 1)


def _draw_shards(task: Task, data: DataSet, count: int, others: int) -> list[NDArray[np.int64]]:
    """Return the shards to measure, then the others; a short one is the last."""
    parts = shuffle_into_shards(
        len(data.train), task.shard_samples, generator(task.seed, "bench shards")
    )
    if len(parts) <= count:
        raise SettingError(
            f"--shards goes up to {count}, but the data have {len(parts)} shards, and predictions "
            "need at least one more; use smaller shard_samples"
        )
    return parts[: count + others]
