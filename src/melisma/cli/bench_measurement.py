"""What `melisma bench` does: measure with a few shards, predict others, and see.

The reference of FLOPS is one core of this machine, timed on the very shards that are predicted;
so it can be had only where another device is emulated by a share of that core.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from melisma import axon
from melisma.cli.bench_device import Emulated, Pacing, paced
from melisma.errors import SettingError
from melisma.fleet.emulation import LinkShaper
from melisma.fleet.estimates import Estimate
from melisma.fleet.rng import generator
from melisma.fleet.task import Task
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
from melisma.learning.task_sizes import limit_samples
from melisma.learning.trainer import Trainer
from melisma.learning.trainer_factory import check_model_fits, trainer_for, use_one_thread


@dataclass(frozen=True)
class Guess:
    """A prediction from so many shards, and by how much of what it took it is off."""

    shards: int
    predicted_s: float
    error_percent: float
    shard_s: float
    spread_s: float
    setup_s: float = 0.0


@dataclass(frozen=True)
class Part:
    """So many further shards, what they took, and what was predicted."""

    shards: int
    actual_s: float
    sb: tuple[Guess, ...]


@dataclass(frozen=True)
class Flops:
    """The rate of matrix products, and what it predicts; None without a reference."""

    flops: float
    predicted_s: float | None = None
    error_percent: float | None = None


@dataclass(frozen=True)
class Report:
    """All that was measured; `share` of one core, None for this device as it is."""

    task: str
    device: str | None
    share: float | None
    train: Part
    flops: Flops
    download: Part | None


@dataclass(frozen=True)
class _Work:
    """A trainer, shards to measure with, and others to predict."""

    task: Task
    trainer: Trainer
    few: list[Split]
    others: list[Split]

    def rng(self, purpose: str) -> np.random.Generator:
        return generator(self.task.seed, f"bench {purpose}")

    @property
    def other_shards(self) -> float:
        """Whole shards that the others amount to; the last of all may be short."""
        return sum(map(len, self.others)) / self.task.shard_samples

    def warm_up(self) -> None:
        """One batch: a framework loads what it needs when it first trains."""
        asked = iter((False,))
        parameters = self.trainer.initial()
        self.trainer.train(
            parameters, self.few[0], 1, self.rng("warm-up"), lambda: next(asked, True)
        )

    def trained_s(self, pacing: Pacing) -> float:
        """Seconds to train the others, in one go."""

        def go_on() -> bool:
            pacing.throttle()
            return False

        parameters, samples = self.trainer.initial(), concatenate(self.others)
        began_s = pacing.now_s()
        self.trainer.train(parameters, samples, 1, self.rng("others"), go_on)
        return pacing.now_s() - began_s


def report(
    path: str, task: Task, device: Emulated | None, counts: list[int], others: int
) -> Report:
    """Measure on this device, or on one that it emulates."""
    with _importable(Path(path).resolve().parent):
        data = limit_samples(task, load_dataset(task.data, task.data_args))
        trainer = trainer_for(task)
    check_model_fits(trainer, data)
    parts = _drawn(task, data, counts[-1], others)
    splits = [Split(data.train.samples[part], data.train.labels[part]) for part in parts]
    work = _Work(task, trainer, splits[: counts[-1]], splits[counts[-1] :])
    share, reference = None, None
    if device is not None:
        use_one_thread()
        work.warm_up()
        reference = ReferenceDevice(_rate(1.0), work.trained_s(paced(1.0)))
        share = device.core_share(reference.seconds / sum(map(len, work.others)))
    train = _train(work, counts, share)
    return Report(
        task.name,
        device.name if device else None,
        share,
        train,
        _flops(share, reference, train.actual_s),
        _download(data, parts, counts, device) if task.mode == "parallelized" else None,
    )


def _train(work: _Work, counts: list[int], share: float | None) -> Part:
    costs = [_cost(work, count, paced(share)) for count in counts]
    actual_s = work.trained_s(paced(share))
    guesses = [
        _guess(count, cost.seconds(work.other_shards), actual_s, cost.shard_s, cost.setup_s)
        for count, cost in zip(counts, costs, strict=True)
    ]
    return Part(len(work.others), actual_s, tuple(guesses))


def _cost(work: _Work, count: int, pacing: Pacing) -> TrainCost:
    return subset_benchmark(
        work.trainer,
        work.few[:count],
        rng=work.rng(f"subset of {count}"),
        now_s=pacing.now_s,
        throttle=pacing.throttle,
        shard_samples=work.task.shard_samples,
    )


def _rate(share: float | None) -> float:
    pacing = paced(share)
    return measure_flops(pacing.now_s, pacing.throttle)


def _flops(share: float | None, reference: ReferenceDevice | None, actual_s: float) -> Flops:
    rate = _rate(share)
    if reference is None:
        return Flops(rate)
    predicted_s = reference.predict_s(rate)
    return Flops(rate, predicted_s, _error(predicted_s, actual_s))


def _download(
    data: DataSet, parts: list[NDArray[np.int64]], counts: list[int], device: Emulated | None
) -> Part:
    with TemporaryDirectory(prefix="melisma-bench-") as name:
        folder = ShardFolder(Path(name), data.train, parts)
        worker = axon.Worker(port=0, files=folder.path)
        with worker.start() as address, axon.connect(address) as remote:
            fetch = fetching(remote, folder.shards, device.link() if device else None)
            fetch(0)
            costs = [download_benchmark(fetch, count, time.perf_counter) for count in counts]
            others = range(counts[-1], len(parts))
            began_s = time.perf_counter()
            for place in others:
                fetch(place)
            actual_s = time.perf_counter() - began_s
    sizes = np.array([shard.size_bytes for shard in folder.shards])
    whole = float(sizes[others.start :].sum() / sizes.max())
    guesses = [
        _guess(count, float(cost.mean) * whole, actual_s, cost)
        for count, cost in zip(counts, costs, strict=True)
    ]
    return Part(len(others), actual_s, tuple(guesses))


def fetching(
    worker: axon.Remote, shards: list[Shard], link: LinkShaper | None
) -> Callable[[int], int]:
    """Fetches a shard by its place in the list, over the link; how many bytes that were."""

    def fetch(place: int) -> int:
        if link is not None:
            link.begin()
        total_bytes = 0
        for piece in axon.fetch(worker, shards[place].sha256):
            total_bytes += len(piece)
            if link is not None:
                link.transfer(len(piece))
        return total_bytes

    return fetch


def _guess(
    shards: int, predicted_s: float, actual_s: float, cost: Estimate, setup: Estimate | None = None
) -> Guess:
    return Guess(
        shards,
        predicted_s,
        _error(predicted_s, actual_s),
        float(cost.mean),
        float(cost.spread),
        float(setup.mean) if setup else 0.0,
    )


def _error(predicted_s: float, actual_s: float) -> float:
    return 100 * (predicted_s / actual_s - 1)


def _drawn(task: Task, data: DataSet, few: int, others: int) -> list[NDArray[np.int64]]:
    """Shards to measure with, then the others; a short one comes last."""
    parts = shuffle_into_shards(
        len(data.train), task.shard_samples, generator(task.seed, "bench shards")
    )
    if len(parts) <= few:
        raise SettingError(
            f"--shards goes up to {few}, but the data have {len(parts)} shards; at least one more "
            "is needed to predict: make shard_samples smaller"
        )
    return parts[: few + others]


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Modules beside the task's file can be imported."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
