"""How far each learner gets in a cycle: until its work is done, or until it must upload."""

from dataclasses import dataclass

import numpy as np

from melisma.cycle.learner import batches_in_time, count_visits, time_is_up
from melisma.fleet.array_types import Floats, Ints
from melisma.simulation.devices import Durations


@dataclass(frozen=True, eq=False)
class Workload:
    """Shards to fetch, samples to train on, and passes over them, for each learner."""

    missing: Ints
    samples: Ints
    passes: Ints


@dataclass(frozen=True, eq=False)
class CycleTimeline:
    """Seconds in each phase, shards fetched (fractions included), batches and samples trained."""

    down_s: Floats
    fetch_s: Floats
    train_s: Floats
    up_s: Floats
    fetched: Floats
    batches: Ints
    visits: Ints


def cycle_timeline(
    durations: Durations, work: Workload, left_s: Floats, reserve_s: Floats, batch: int
) -> CycleTimeline:
    """Return what fits into `left_s` seconds, of which `reserve_s` are kept for the upload.

    A learner without time for the model, or for all its shards, trains nothing and sends an empty
    update.
    """
    down_s = np.clip(left_s, 0.0, durations.model_down_s)
    has_model = ~time_is_up(left_s - durations.model_down_s, 0.0)
    left_s = left_s - down_s
    wanted_s = durations.ship_s * work.missing
    fetch_s = np.where(has_model, np.clip(left_s - reserve_s, 0.0, wanted_s), 0.0)
    has_shards = has_model & ~time_is_up(left_s - wanted_s, reserve_s)
    fraction = fetch_s / np.where(wanted_s > 0, wanted_s, 1.0)
    spare_s = np.where(has_shards, left_s - wanted_s - reserve_s, 0.0)
    batches = batches_in_time(spare_s, durations.sample_s, work.samples, work.passes, batch)
    visits = count_visits(batches, work.samples, batch)
    return CycleTimeline(
        down_s=down_s,
        fetch_s=fetch_s,
        train_s=visits * durations.sample_s,
        up_s=np.where(visits > 0, durations.model_up_s, 0.0),
        fetched=np.where(has_shards, work.missing, fraction * work.missing),
        batches=batches,
        visits=visits,
    )
