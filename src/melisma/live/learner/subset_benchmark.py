"""The subset benchmark of a learner: fetch a few shards, train on them, and time it."""

import time
from collections.abc import Sequence

from melisma.cycle.learner import SUBSET_SHARDS, CostHistory
from melisma.fleet.estimates import Estimate
from melisma.fleet.rng import generator
from melisma.learning.data.datasets import Split
from melisma.live.learner.device import Device
from melisma.live.learner.downloader import Downloader
from melisma.live.learner.paced_trainer import PacedTrainer
from melisma.live.protocol import INITIAL_MODEL, RegisterResponse, ShardRef


def run_subset_benchmark(
    entry: RegisterResponse,
    supply: Downloader,
    local_data: Sequence[Split],
    device: Device,
    until_at: float,
) -> CostHistory:
    """What a cycle costs, from what can be measured until then; at least of one shard."""
    # Loaded here: a learner that is never asked what it can do needs no benchmark.
    from melisma.learning.benchmark import subset
    from melisma.learning.trainers import trainer_for

    began = time.monotonic()
    supply.fetch_model(INITIAL_MODEL, device)
    down_s = Estimate.of([time.monotonic() - began])
    ship_s = _time_fetches(entry.benchmark_shards, supply, device, until_at)
    samples = local_data[:SUBSET_SHARDS] or supply.read_shards(entry.benchmark_shards)
    device.start_compute()
    # By a trainer of its own: nothing of it stays in an optimiser that is kept.
    cost = subset(
        PacedTrainer(trainer_for(entry.task), device, entry.task.batch),
        samples,
        rng=generator(entry.task.seed, "benchmark", learner=entry.learner),
        now_s=device.now,
        rest=device.throttle,
        until_s=until_at,
        shard_samples=entry.task.shard_samples,
    )
    device.finish_compute()
    return CostHistory(
        train_s=cost.shard_s,
        ship_s=Estimate.of(ship_s or [0.0]),
        down_s=down_s,
        # Not measured yet: the same bytes over the same link.
        up_s=down_s,
        rest_s=cost.setup_s,
    )


def _time_fetches(
    parcels: Sequence[ShardRef], supply: Downloader, device: Device, until_at: float
) -> list[float]:
    """Seconds of each shard that had to be fetched."""
    took_s: list[float] = []
    for parcel in parcels:
        began = time.monotonic()
        if took_s and began >= until_at:
            break
        if not supply.has(parcel):
            supply.fetch_shard(parcel, device)
            took_s.append(time.monotonic() - began)
    return took_s
