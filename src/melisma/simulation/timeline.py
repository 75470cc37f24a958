"""How far each learner gets in a cycle: until its work is done, or until it must upload."""

from dataclasses import dataclass

import numpy as np

from melisma.cycle.learner import batches_in_time, count_visits, time_is_up
from melisma.fleet.array_types import Floats, Ints
from melisma.simulation.devices import CONSTANT_RATES, Durations, Rates


@dataclass(frozen=True, eq=False)
class Workload:
    """Shards to fetch, samples to train on, passes over them, and seconds of set-up before."""

    missing: Ints
    samples: Ints
    passes: Ints
    setup_s: Floats


@dataclass(frozen=True, eq=False)
class CycleTimeline:
    """Seconds in each phase, shards fetched (fractions included), batches and samples trained."""

    down_s: Floats
    fetch_s: Floats
    setup_s: Floats
    train_s: Floats
    up_s: Floats
    fetched: Floats
    batches: Ints
    visits: Ints


def cycle_timeline(
    durations: Durations,
    work: Workload,
    left_s: Floats,
    reserve_s: Floats,
    batch: int,
    rates: Rates = CONSTANT_RATES,
) -> CycleTimeline:
    """Return what fits into `left_s` seconds, of which `reserve_s` are kept for the upload.

    A learner without time for the model, or for all its shards, trains nothing and sends an empty
    update. Each phase takes as long as the rates from its beginning allow.
    """
    model_s = rates.seconds("downlink", 0.0, durations.model_down_s, 1)
    down_s = np.clip(left_s, 0.0, model_s)
    has_model = ~time_is_up(left_s - model_s, 0.0)
    left_s = left_s - down_s
    shards_s = durations.ship_s * work.missing
    wanted_s = rates.seconds("downlink", down_s, shards_s, work.missing)
    fetch_s = np.where(has_model, np.clip(left_s - reserve_s, 0.0, wanted_s), 0.0)
    has_shards = has_model & ~time_is_up(left_s - wanted_s, reserve_s)
    fetched_s = rates.work_s("downlink", down_s, fetch_s, work.missing)
    fraction = fetched_s / np.where(shards_s > 0, shards_s, 1.0)
    spare_s = np.where(has_shards, left_s - wanted_s - reserve_s - work.setup_s, 0.0)
    ready_s = down_s + fetch_s + work.setup_s
    time_s = rates.work_s("compute", ready_s, spare_s)
    batches = batches_in_time(time_s, durations.sample_s, work.samples, work.passes, batch)
    visits = count_visits(batches, work.samples, batch)
    train_s = rates.seconds("compute", ready_s, visits * durations.sample_s)
    up_s = rates.seconds("uplink", ready_s + train_s, durations.model_up_s, 1)
    return CycleTimeline(
        down_s=down_s,
        fetch_s=fetch_s,
        setup_s=np.where(visits > 0, work.setup_s, 0.0),
        train_s=train_s,
        up_s=np.where(visits > 0, up_s, 0.0),
        fetched=np.where(has_shards, work.missing, fraction * work.missing),
        batches=batches,
        visits=visits,
    )
