"""The costs of training and fetching on this device, measured on a few shards (SB, thesis 3.2).

Training takes setup_s + shard_s * shards. A trainer requests one batch after the other: the time
before the first request and the time after the last, which is answered by the end of the batches,
are setup, the rest is training. One shard therefore separates the two costs, and each further shard
makes both more precise. FLOPS is the baseline of the thesis: the rate at which this device
multiplies matrices, relative to a reference device that was timed on the same work. Clocks are
arguments.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from melisma.errors import DataError, SettingError
from melisma.fleet.estimates import Estimate
from melisma.learning.batches import batches_of
from melisma.learning.data.datasets import Split
from melisma.learning.trainer import Trainer, synchronize

Clock = Callable[[], float]
Throttle = Callable[[], None]
Pace = Callable[[Iterator[Split]], Iterator[Split]]
MATRIX_SIDE, MATRIX_PRODUCTS = 512, 100
WARM_UPS = 2


@dataclass(frozen=True)
class TrainCost:
    """Seconds to train one whole shard once, and fixed seconds per training."""

    shard_s: Estimate
    setup_s: Estimate

    def seconds(self, shards: float) -> float:
        """Return the expected seconds of one training on `shards` shards."""
        return float(self.setup_s.mean + shards * self.shard_s.mean)


@dataclass(frozen=True)
class ReferenceDevice:
    """A timed device: its rate in FLOPS, and the seconds it took for a piece of work."""

    flops: float
    seconds: float

    def predict_s(self, flops: float) -> float:
        """Return the seconds that a device of `flops` would take for the same work."""
        return self.seconds * self.flops / flops


def subset_benchmark(  # noqa: PLR0913 - the work, its limits and the clock
    trainer: Trainer,
    shards: Sequence[Split],
    *,
    batch: int,
    rng: np.random.Generator,
    now_s: Clock,
    throttle: Throttle,
    pace: Pace = iter,
    until_s: float | None = None,
    shard_samples: int | None = None,
) -> TrainCost:
    """Return the cost of training, from one pass over each shard, each from fresh parameters.

    Two warm-up batches come first. `throttle` is called before and after every training and when a
    batch is requested; `pace` wraps the batches that the trainer gets. After `until_s` no training
    starts, and a running one stops after at least one batch; an incomplete shard counts only if no
    whole shard was trained. A whole shard has `shard_samples` samples; the default is the size of
    the largest shard given.
    """
    if not shards or not all(map(len, shards)):
        raise SettingError(
            f"a benchmark needs at least one shard, each with samples; found {[*map(len, shards)]}"
        )
    whole = shard_samples or max(map(len, shards))
    late_s = inf if until_s is None else until_s
    watch = _Stopwatch(trainer, batch, rng, now_s, throttle, pace, late_s)
    first = [watch.time_training(shards[0], most_batches=1)]
    while len(first) < WARM_UPS and not watch.is_late():
        first.append(watch.time_training(shards[0], most_batches=1))
    runs = [watch.time_training(shard) for shard in shards if not watch.is_late()]
    counted = [run for run in runs if run.complete] or runs or first[-1:]
    return TrainCost(
        Estimate.from_measurements([run.train_s * whole / run.visits for run in counted]),
        Estimate.from_measurements([run.setup_s for run in runs or first[-1:]]),
    )


def download_benchmark(fetch: Callable[[int], int], n: int, now_s: Clock) -> Estimate:
    """Return the seconds to fetch one shard, from n shards fetched one by one.

    `fetch` takes the number of a shard and returns its size in bytes; shards smaller than the
    largest do not count.
    """
    if n < 1:
        raise SettingError(f"a benchmark fetches at least 1 shard, not {n}")
    measured = []
    for number in range(n):
        began_s = now_s()
        size_bytes = fetch(number)
        measured.append((size_bytes, now_s() - began_s))
    most_bytes = max(size_bytes for size_bytes, _ in measured)
    return Estimate.from_measurements(
        [seconds for size_bytes, seconds in measured if size_bytes == most_bytes]
    )


def measure_flops(
    now_s: Clock, throttle: Throttle, *, side: int = MATRIX_SIDE, times: int = MATRIX_PRODUCTS
) -> float:
    """Return the FLOPS of products of two square float32 matrices."""
    left, right = np.random.default_rng(0).random((2, side, side), dtype=np.float32)
    product = left @ right
    throttle()
    began_s = now_s()
    for _ in range(times):
        np.matmul(left, right, out=product)
        throttle()
    return 2 * side**3 * times / (now_s() - began_s)


@dataclass(frozen=True)
class _TimedTraining:
    """One training: seconds from the first to the last request of a batch, and around them.

    A complete training visited all samples.
    """

    setup_s: float
    train_s: float
    visits: int
    complete: bool


@dataclass(frozen=True)
class _Stopwatch:
    """Times a trainer by the times at which it requests batches."""

    trainer: Trainer
    batch: int
    rng: np.random.Generator
    now_s: Clock
    throttle: Throttle
    pace: Pace
    until_s: float

    def is_late(self) -> bool:
        return self.now_s() >= self.until_s

    def time_training(self, samples: Split, most_batches: float = inf) -> _TimedTraining:
        request_times_s: list[float] = []

        def stop() -> bool:
            self.throttle()
            request_times_s.append(self.now_s())
            batches, late = len(request_times_s) - 1, request_times_s[-1] >= self.until_s
            return batches >= most_batches or (batches > 0 and late)

        def synchronize_batches() -> Iterator[Split]:
            yield from batches_of(samples, 1, self.batch, self.rng, stop)
            # The last batches may still be queued on an asynchronous device.
            synchronize(self.trainer)
            request_times_s[-1] = self.now_s()

        parameters = self.trainer.initial()
        batches = self.pace(synchronize_batches())
        self.throttle()
        began_s = self.now_s()
        trained = self.trainer.train(parameters, batches, self.rng)
        self.throttle()
        ended_s = self.now_s()
        if len(request_times_s) < 2 or not trained.visits:
            raise DataError(
                f"the trainer requested {len(request_times_s)} batches and reports "
                f"{trained.visits} visits; it has to train all batches that it is given"
            )
        train_s = request_times_s[-1] - request_times_s[0]
        complete = trained.visits == len(samples)
        return _TimedTraining(ended_s - began_s - train_s, train_s, trained.visits, complete)
