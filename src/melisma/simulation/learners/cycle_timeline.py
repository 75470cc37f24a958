"""How far each learner gets in a cycle: until its work is done, or until it must upload.

With extension, a learner that will be done early requests further shards, and one that will not get
to all of its shards releases some.
"""

from dataclasses import dataclass

import numpy as np

from melisma.cycle.learner import (
    RELEASE_FRACTION,
    batches_in_time,
    count_visits,
    request_delay_s,
    shards_to_release,
    shards_to_request,
    time_is_up,
)
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.task import Task
from melisma.simulation.learners.devices import CONSTANT_RATES, Durations, Rates

# More passes than fit into any cycle.
ENDLESS = 1 << 31
TINY_S = 1e-300


@dataclass(frozen=True, eq=False)
class Workload:
    """Shards, how many of them to fetch, samples, passes over them, and seconds of set-up."""

    shards: Ints
    missing: Ints
    samples: Ints
    passes: Ints
    setup_s: Floats


@dataclass(frozen=True, eq=False)
class CycleTimeline:
    """Seconds in each phase, shards fetched (fractions included), batches and samples trained.

    `fetch_s` are seconds in which training waits for shards, `link_s` those in which shards are
    fetched. `planned_s` is when the planned work is done at full speed, and `stop_s` when training
    has to stop, both since the model was there.
    """

    down_s: Floats
    fetch_s: Floats
    link_s: Floats
    setup_s: Floats
    train_s: Floats
    up_s: Floats
    fetched: Floats
    batches: Ints
    visits: Ints
    planned_s: Floats
    stop_s: Floats

    @property
    def compute_s(self) -> Floats:
        """Seconds of set-up and training."""
        return self.setup_s + self.train_s


def cycle_timeline(
    durations: Durations,
    work: Workload,
    left_s: Floats,
    reserve_s: Floats,
    task: Task,
    rates: Rates = CONSTANT_RATES,
) -> CycleTimeline:
    """Return what fits into `left_s` seconds, of which `reserve_s` are kept for the upload.

    With overlap, training begins with the first shard; with extension it goes on until it has to
    stop. A learner without time for the model, or for the shards that it has to wait for, trains
    nothing and sends an empty update. Each phase takes as long as the rates from its beginning
    allow.
    """
    model_s = rates.seconds("downlink", 0.0, durations.model_down_s, 1)
    down_s = np.clip(left_s, 0.0, model_s)
    has_model = ~time_is_up(left_s - model_s, 0.0)
    left_s = left_s - down_s
    wait_s, wanted_s = _fetch_seconds(durations, work, down_s, task, rates)
    has_shards = has_model & ~time_is_up(left_s - wait_s, reserve_s)
    usable_s = np.where(has_model, np.maximum(left_s - reserve_s, 0.0), 0.0)
    stall_s, planned_stall_s = _stalls(durations, work, wait_s, wanted_s, usable_s, task)
    spare_s = np.where(has_shards, left_s - wait_s - reserve_s - work.setup_s - stall_s, 0.0)
    fetch_s, link_s = np.minimum(wait_s + stall_s, usable_s), np.minimum(wanted_s, usable_s)
    fetched = _fetched_shards(durations, work, down_s, link_s, rates)
    ready_s = down_s + fetch_s + work.setup_s
    time_s = rates.work_s("compute", ready_s, spare_s)
    passes = np.full(work.passes.size, ENDLESS) if task.extension else work.passes
    batches = batches_in_time(time_s, durations.sample_s, work.samples, passes, task.batch)
    visits = count_visits(batches, work.samples, task.batch)
    train_s = rates.seconds("compute", ready_s, visits * durations.sample_s)
    up_s = rates.seconds("uplink", ready_s + train_s, durations.model_up_s, 1)
    pass_s = durations.sample_s * work.samples
    return CycleTimeline(
        down_s=down_s,
        fetch_s=fetch_s,
        link_s=link_s,
        setup_s=np.where(visits > 0, work.setup_s, 0.0),
        train_s=train_s,
        up_s=np.where(visits > 0, up_s, 0.0),
        fetched=np.where(has_shards & (link_s >= wanted_s), work.missing, fetched),
        batches=batches,
        visits=visits,
        planned_s=wait_s + planned_stall_s + work.setup_s + work.passes * pass_s,
        stop_s=usable_s,
    )


def _fetch_seconds(
    durations: Durations, work: Workload, down_s: Floats, task: Task, rates: Rates
) -> tuple[Floats, Floats]:
    """Return the seconds until training can begin, and until all shards are there.

    The shards are fetched after the model, which takes `down_s`.
    """
    shards_s = durations.ship_s * work.missing
    wanted_s = rates.seconds("downlink", down_s, shards_s, work.missing)
    if not task.overlap:
        return wanted_s, wanted_s
    first_s = rates.seconds("downlink", down_s, np.minimum(durations.ship_s, shards_s), 1)
    return np.where(work.missing < work.shards, 0.0, first_s), wanted_s


def _fetched_shards(
    durations: Durations, work: Workload, down_s: Floats, link_s: Floats, rates: Rates
) -> Floats:
    """Return the shards, fractions included, that `link_s` seconds after the model suffice for."""
    shards_s = durations.ship_s * work.missing
    fetched_s = rates.work_s("downlink", down_s, link_s, work.missing)
    fetched: Floats = fetched_s / np.where(shards_s > 0, shards_s, 1.0) * work.missing
    return fetched


def _stalls(
    durations: Durations,
    work: Workload,
    wait_s: Floats,
    wanted_s: Floats,
    usable_s: Floats,
    task: Task,
) -> tuple[Floats, Floats]:
    """Return the seconds in which training waits for later shards: until it stops, and in all.

    By the time the last shard arrives, all others can be trained once. With extension, training
    goes on with the shards that are there.
    """
    none = np.zeros(usable_s.size)
    if task.extension or not task.overlap:
        return none, none
    shard_s = durations.sample_s * work.samples / np.maximum(work.shards, 1)
    in_all_s = np.maximum(wanted_s - wait_s - shard_s * (work.shards - 1), 0.0)
    ship_s = wanted_s / np.maximum(work.missing, 1)
    arrived = work.shards - work.missing + np.floor(usable_s / np.where(ship_s > 0, ship_s, 1.0))
    halted_s = np.maximum(usable_s - wait_s - arrived * shard_s, 0.0)
    return np.where(usable_s >= wanted_s, in_all_s, halted_s), in_all_s


@dataclass(frozen=True, eq=False)
class RequestTimeline:
    """When each learner requests or releases shards, since the model was there, and how many."""

    ask_s: Floats
    wanted: Ints
    released: Ints


def request_timeline(
    durations: Durations, work: Workload, done: CycleTimeline, task: Task
) -> RequestTimeline:
    """Return the request of each learner: before its work is done, or once it can judge."""
    ship_s = durations.ship_s
    train_s = durations.sample_s * work.samples / np.maximum(work.shards, 1)
    fetched_s = ship_s * work.missing
    ask_s = np.where(
        np.maximum(done.planned_s, fetched_s) < done.stop_s,
        request_delay_s(done.planned_s, fetched_s, ship_s, task.deadline_s),
        RELEASE_FRACTION * task.deadline_s,
    )
    left_s, work_s = done.stop_s - ask_s, np.maximum(done.planned_s - ask_s, 0.0)
    fetch_s = np.maximum(fetched_s - ask_s, 0.0)
    wanted = shards_to_request(left_s, work_s, fetch_s, train_s * work.passes, ship_s)
    begun = np.ceil(ask_s / np.maximum(ship_s, TINY_S))
    unfetched = work.missing - np.minimum(begun, work.missing)
    released = shards_to_release(left_s, unfetched * train_s, fetch_s, train_s, ship_s)
    released = np.where(left_s > 0, np.minimum(released, unfetched), 0).astype(np.int64)
    return RequestTimeline(ask_s, wanted, released)
