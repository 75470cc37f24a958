"""Costs that learners measure in their benchmarks, and how long the benchmarks take.

As in live runs, a learner fetches the model, uploads a part of an update, fetches a few shards for
up to a third of the time, and trains them after some batches for warming up.
"""

from dataclasses import dataclass

import numpy as np

from melisma.cycle.learner import BENCHMARK_FETCH_FRACTION, probe_bytes
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.task import Task
from melisma.learning.benchmark import WARM_UPS
from melisma.simulation.learners.devices import Durations, Rates


@dataclass(frozen=True, eq=False)
class BenchmarkWork:
    """The shards of each learner's benchmark, how many of them to fetch, and its seconds left."""

    shards: Ints
    missing: Ints
    left_s: Floats


@dataclass(frozen=True, eq=False)
class BenchmarkTimeline:
    """Seconds to fetch the model and a shard, to upload an update and to train a shard once.

    `fetched` are the shards that each learner fetches, and `busy_s` are the seconds that its
    benchmark takes.
    """

    down_s: Floats
    up_s: Floats
    ship_s: Floats
    train_s: Floats
    fetched: Ints
    busy_s: Floats


def benchmark_timeline(
    durations: Durations, work: BenchmarkWork, latency_s: Floats, task: Task, rates: Rates
) -> BenchmarkTimeline:
    """Return the timeline of each benchmark; `latency_s` is that of a message.

    Simulated durations have no spread; a single measurement still plans with caution.
    """
    down_s = rates.seconds("downlink", 0.0, durations.model_down_s, 1)
    up_s = rates.seconds("uplink", down_s, durations.model_up_s, 1)
    # An empty upload, and one with a part of the bytes.
    fraction = probe_bytes(task.model_bytes) / task.model_bytes
    probe_s = 2 * latency_s + fraction * (durations.model_up_s - latency_s)
    probed_s = down_s + rates.seconds("uplink", down_s, probe_s, 2)
    fetching_s = np.maximum(BENCHMARK_FETCH_FRACTION * work.left_s - probed_s, 0.0)
    fetching_s = rates.work_s("downlink", probed_s, fetching_s)
    fetched = _fetched_shards(work.missing, fetching_s, durations.ship_s)
    # A learner that holds all of them fetches one again, so that its link is measured.
    transfers = np.maximum(fetched, 1)
    ship_s = rates.unit_s("downlink", probed_s, durations.ship_s, transfers)
    ready_s = probed_s + ship_s * transfers
    warm_ups = WARM_UPS * min(task.batch, task.shard_samples)
    warm_up_s = warm_ups * rates.unit_s("compute", ready_s, durations.sample_s, warm_ups)
    shards = work.shards - work.missing + fetched
    train_s = task.shard_samples * durations.sample_s
    train_s = rates.unit_s("compute", ready_s + warm_up_s, train_s, shards)
    training_s = np.maximum(work.left_s - ready_s - warm_up_s, 0.0)
    busy_s = ready_s + warm_up_s + np.minimum(shards * train_s, training_s)
    return BenchmarkTimeline(down_s, up_s, ship_s, train_s, fetched, busy_s)


def _fetched_shards(missing: Ints, fetching_s: Floats, ship_s: Floats) -> Ints:
    """Return the missing shards whose transfer begins in time, but at least one of them."""
    begun = np.maximum(np.ceil(fetching_s / np.where(missing > 0, ship_s, 1.0)), 1.0)
    return np.minimum(missing, begun).astype(np.int64)
