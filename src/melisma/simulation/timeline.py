"""How the work of a cycle goes on devices: until it is done, or until it is time to hand in."""

from dataclasses import dataclass

import numpy as np

from melisma.cycle.events import Floats
from melisma.cycle.learner import batches_in_time, time_is_up, visits_of
from melisma.cycle.ragged import Ints
from melisma.simulation.devices import Durations


@dataclass(frozen=True, eq=False)
class Workload:
    """What each is to do: shards to fetch, samples to train on, and passes over them."""

    missing: Ints
    samples: Ints
    passes: Ints


@dataclass(frozen=True, eq=False)
class CycleTimeline:
    """What became of it: seconds of each phase, shards that came (parts too), batches, samples."""

    down_s: Floats
    fetch_s: Floats
    train_s: Floats
    up_s: Floats
    came: Floats
    batches: Ints
    visits: Ints


def cycle_timeline(
    takes: Durations, given: Workload, left_s: Floats, kept_s: Floats, batch: int
) -> CycleTimeline:
    """With so long left at the beginning, of which so much is kept for the upload.

    Who has no time for the model, or for all shards, trains on nothing, and what it hands in is
    empty.
    """
    down_s = np.clip(left_s, 0.0, takes.carry_s)
    has_model = ~time_is_up(left_s - takes.carry_s, 0.0)
    left_s = left_s - down_s
    wanted_s = takes.ship_s * given.missing
    fetch_s = np.where(has_model, np.clip(left_s - kept_s, 0.0, wanted_s), 0.0)
    whole = has_model & ~time_is_up(left_s - wanted_s, kept_s)
    part = fetch_s / np.where(wanted_s > 0, wanted_s, 1.0)
    spare_s = np.where(whole, left_s - wanted_s - kept_s, 0.0)
    batches = batches_in_time(spare_s, takes.sample_s, given.samples, given.passes, batch)
    visits = visits_of(batches, given.samples, batch)
    return CycleTimeline(
        down_s=down_s,
        fetch_s=fetch_s,
        train_s=visits * takes.sample_s,
        up_s=np.where(visits > 0, takes.carry_s, 0.0),
        came=np.where(whole, given.missing, part * given.missing),
        batches=batches,
        visits=visits,
    )
