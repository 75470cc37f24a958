"""The subset benchmark (SB) of a learner: time the link both ways, and training on a few shards.

`measure_speed` times training alone, for the owners of device and orchestrator.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from melisma.cycle.learner import (
    BENCHMARK_FETCH_FRACTION,
    SUBSET_SHARDS,
    UNKNOWN_BIAS,
    CostHistory,
    probe_bytes,
)
from melisma.fleet.rng import generator
from melisma.learning.data.datasets import Split
from melisma.learning.trainer import Trainer
from melisma.live.learner.device import Device
from melisma.live.learner.downloader import Downloader
from melisma.live.protocol import INITIAL_MODEL, RegisterResponse, ShardRef

if TYPE_CHECKING:
    from melisma.learning.benchmark import TrainCost

PROBE_PASSES = 8
MIN_SHARD_S = 1e-9


def run_subset_benchmark(  # noqa: PLR0913 - the task, the parts of the agent, and the limits
    registered: RegisterResponse,
    build_trainer: Callable[[], Trainer],
    downloader: Downloader,
    local_shards: Sequence[Split],
    device: Device,
    until_at: float,
    *,
    upload: Callable[[int], None],
    before: CostHistory | None = None,
) -> CostHistory:
    """Measure the costs of a cycle until `until_at`, on at least one shard.

    `upload` sends a number of bytes that the orchestrator discards. A trainer is built for the
    benchmark, so that it does not change optimizer state that is kept. `before` are the costs known
    so far, whose bias of benchmarks still holds.
    """
    shards = registered.benchmark_shards[:SUBSET_SHARDS]
    began = time.monotonic()
    model = downloader.fetch_model(INITIAL_MODEL, device) or {}
    down_s = time.monotonic() - began
    update_bytes = sum(array.nbytes for array in model.values())
    up_s = _predict_upload_s(upload, update_bytes)
    fetch_until_at = began + BENCHMARK_FETCH_FRACTION * (until_at - began)
    ship_s = _time_downloads(shards, downloader, device, fetch_until_at)
    samples = local_shards[:SUBSET_SHARDS] or downloader.read_shards(shards)
    cost = _time_training(registered, build_trainer, samples, device, until_at)
    return CostHistory.from_benchmark(
        train_s=cost.shard_s.mean,
        ship_s=median(ship_s) if ship_s else 0.0,
        down_s=down_s,
        up_s=up_s,
        rest_s=cost.setup_s.mean,
        train_bias=UNKNOWN_BIAS if before is None else before.train_bias,
    )


def measure_speed(
    registered: RegisterResponse,
    build_trainer: Callable[[], Trainer],
    downloader: Downloader,
    local_shards: Sequence[Split],
    device: Device,
    seconds: float,
) -> float:
    """Return the samples trained per second, from passes over one shard for up to `seconds`."""
    samples, shards = local_shards[:1], registered.benchmark_shards[:1]
    if not samples:
        for shard in shards:
            if not downloader.has(shard):
                downloader.fetch_shard(shard, device)
        samples = downloader.read_shards(shards)
    repeated, until_at = [*samples] * PROBE_PASSES, time.monotonic() + seconds
    cost = _time_training(registered, build_trainer, repeated, device, until_at)
    return registered.task.shard_samples / max(float(cost.shard_s.mean), MIN_SHARD_S)


def _predict_upload_s(upload: Callable[[int], None], update_bytes: int) -> float:
    """Return the seconds to upload an update, from an empty upload and one of a part of its bytes.

    The empty one takes the time of a call; only the rest grows with the bytes.
    """
    seconds = []
    part_bytes = max(1, probe_bytes(update_bytes))
    for size_bytes in (0, part_bytes):
        began = time.monotonic()
        upload(size_bytes)
        seconds.append(time.monotonic() - began)
    call_s, part_s = seconds
    return call_s + max(part_s - call_s, 0.0) * update_bytes / part_bytes


def _time_downloads(
    shards: Sequence[ShardRef], downloader: Downloader, device: Device, until_at: float
) -> list[float]:
    """Fetch missing shards until `until_at`; return the seconds of each.

    At least one shard is fetched: one again if none is missing, so that the link is measured.
    """
    seconds: list[float] = []
    for shard in shards:
        began = time.monotonic()
        if seconds and began >= until_at:
            break
        if not downloader.has(shard):
            downloader.fetch_shard(shard, device)
            seconds.append(time.monotonic() - began)
    if shards and not seconds:
        began = time.monotonic()
        downloader.fetch_again(shards[0], device)
        seconds.append(time.monotonic() - began)
    return seconds


def _time_training(
    registered: RegisterResponse,
    build_trainer: Callable[[], Trainer],
    shards: Sequence[Split],
    device: Device,
    until_at: float,
) -> "TrainCost":
    """Train on the shards until `until_at` and return the cost of a shard."""
    # Imported here: not every scheme needs a benchmark.
    from melisma.learning.benchmark import subset_benchmark

    task = registered.task
    device.start_compute()
    cost = subset_benchmark(
        build_trainer(),
        shards,
        batch=task.batch,
        rng=generator(task.seed, "benchmark", learner=registered.learner),
        now_s=device.now,
        throttle=device.throttle,
        pace=device.pace,
        until_s=until_at,
        shard_samples=task.shard_samples,
    )
    device.finish_compute()
    return cost
