"""What training and fetching cost on this device, measured on a few shards (SB, thesis 3.2).

Training takes setup_s + shard_s * shards. A trainer asks before every batch whether to stop: what
passes before it first asks is setup, and what passes after it was told to stop is setup too; the
rest is training. So one shard tells both apart, and each shard more makes them surer. FLOPS is the
baseline of the thesis: how fast this device multiplies matrices, against a reference that was
timed on the same work. Clocks are arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from melisma.errors import DataError, SettingError
from melisma.fleet.estimates import Estimate
from melisma.learning.data.datasets import Split
from melisma.learning.trainer import Trainer

Clock = Callable[[], float]
Throttle = Callable[[], None]
MATRIX_SIDE, MATRIX_PRODUCTS = 512, 100
WARM_UPS = 2


@dataclass(frozen=True)
class TrainCost:
    """Seconds to train one whole shard once, and seconds of a training whatever its size."""

    shard_s: Estimate
    setup_s: Estimate

    def seconds(self, shards: float) -> float:
        """What so many shards are expected to take in one training."""
        return float(self.setup_s.mean + shards * self.shard_s.mean)


@dataclass(frozen=True)
class ReferenceDevice:
    """A device that was timed: its rate of operations, and the seconds of some work."""

    flops: float
    seconds: float

    def predict_s(self, flops: float) -> float:
        """What a device of that rate would take for the same work."""
        return self.seconds * self.flops / flops


def subset_benchmark(  # noqa: PLR0913 - what is measured, and with which clock
    trainer: Trainer,
    shards: Sequence[Split],
    *,
    rng: np.random.Generator,
    now_s: Clock,
    throttle: Throttle,
    until_s: float | None = None,
    shard_samples: int | None = None,
) -> TrainCost:
    """Return the cost of training, from one pass over each shard, each from fresh parameters.

    Two warm-up batches come first. `throttle` is called before and after every training and before
    every batch. After `until_s` no training starts and a running one is stopped, after at least
    one batch; a shard that was cut short counts only if no whole shard was trained. A whole shard
    has `shard_samples` samples; by default, as many as the largest given.
    """
    if not shards or not all(map(len, shards)):
        raise SettingError("a benchmark needs at least one shard, each with samples")
    whole = shard_samples or max(map(len, shards))
    watch = _Stopwatch(trainer, rng, now_s, throttle, inf if until_s is None else until_s)
    first = [watch.time_training(shards[0], most_batches=1)]
    while len(first) < WARM_UPS and not watch.is_late():
        first.append(watch.time_training(shards[0], most_batches=1))
    runs = [watch.time_training(shard) for shard in shards if not watch.is_late()]
    counted = [run for run in runs if run.complete] or runs or first[-1:]
    # The quickest: a hitch in so short a time would be taken off every shard.
    after_s = min(run.after_s for run in first)
    return TrainCost(
        Estimate.from_measurements([run.shard_s(whole, after_s) for run in counted]),
        Estimate.from_measurements([run.before_s + after_s for run in runs or first[-1:]]),
    )


def download_benchmark(fetch: Callable[[int], int], n: int, now_s: Clock) -> Estimate:
    """Seconds to fetch one shard, from n of them fetched one by one.

    `fetch` gets the number of a shard and returns its bytes; a short shard does not count beside
    whole ones.
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
    """Floating-point operations a second in products of two square matrices of 32 bits."""
    one, other = np.random.default_rng(0).random((2, side, side), dtype=np.float32)
    product = one @ other
    throttle()
    began_s = now_s()
    for _ in range(times):
        np.matmul(one, other, out=product)
        throttle()
    return 2 * side**3 * times / (now_s() - began_s)


@dataclass(frozen=True)
class _TimedTraining:
    """One training: seconds before its first batch, from there on, and after it was told to stop.

    `train_s` of a training that was not stopped ends with it: what comes after is in it.
    """

    before_s: float
    train_s: float
    after_s: float
    visits: int
    complete: bool

    def shard_s(self, shard_samples: int, after_s: float) -> float:
        """Seconds of a whole shard."""
        train_s = max(0.0, self.train_s - after_s) if self.complete else self.train_s
        return train_s * shard_samples / self.visits


@dataclass(frozen=True)
class _Stopwatch:
    """Times a trainer by the instants at which it asks whether to stop."""

    trainer: Trainer
    rng: np.random.Generator
    now_s: Clock
    throttle: Throttle
    until_s: float

    def is_late(self) -> bool:
        return self.now_s() >= self.until_s

    def time_training(self, samples: Split, most_batches: float = inf) -> _TimedTraining:
        asked_s: list[float] = []
        told = False

        def stop() -> bool:
            nonlocal told
            self.throttle()
            asked_s.append(self.now_s())
            batches = len(asked_s) - 1
            told = batches >= most_batches or (batches > 0 and asked_s[-1] >= self.until_s)
            return told

        parameters = self.trainer.initial()
        self.throttle()
        began_s = self.now_s()
        trained = self.trainer.train(parameters, samples, 1, self.rng, stop)
        self.throttle()
        ended_s = self.now_s()
        if not asked_s or not trained.visits:
            raise DataError("the trainer visited no sample, or never asked whether to stop")
        last_s = asked_s[-1] if told else ended_s
        return _TimedTraining(
            before_s=asked_s[0] - began_s,
            train_s=last_s - asked_s[0],
            after_s=ended_s - last_s,
            visits=trained.visits,
            complete=not told,
        )
