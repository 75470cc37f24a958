"""The training of simulated learners: fetch ahead, train until the deadline, train more."""

from dataclasses import dataclass, replace

import numpy as np

from melisma.cycle import commands
from melisma.cycle.learner import CostHistory, reserve_s
from melisma.cycle.ragged import RaggedArray
from melisma.fleet.array_types import Floats, Ints
from melisma.simulation.learners.cost_histories import history_before_upload
from melisma.simulation.learners.cycle_timeline import (
    TINY_S,
    CycleTimeline,
    RequestTimeline,
    Workload,
    cycle_timeline,
    request_timeline,
)
from melisma.simulation.learners.devices import Durations
from melisma.simulation.learners.shard_caches import whole_shards
from melisma.simulation.learners.simulated_learners import SimulatedLearners
from melisma.simulation.learners.simulated_updates import SimulatedUpdates

MAX_ATTEMPTS = 1 << 20  # of one cycle
Assignment = commands.Dispatch | commands.Resend


@dataclass(frozen=True, eq=False)
class _Assignments:
    """Assignments that learners begin at `began_s`, with durations on their clocks.

    `missing` is 1 for each of the shards that its learner does not hold, and 0 for the others.
    Of the time since then, `saved_s` has passed before a restart.
    """

    learners: Ints
    shards: RaggedArray
    missing: Ints
    work: Workload
    began_s: Floats
    wait_s: Floats
    saved_s: Floats
    clock: Floats
    durations: Durations


def prefetch(
    simulated: SimulatedLearners, learners: Ints, shards: RaggedArray, at_s: float
) -> None:
    """Let learners fetch shards from now on, until they are to train."""
    simulated.fetch_free_s[learners] = np.maximum(simulated.free_s[learners], at_s)
    simulated.prefetching = learners, shards


def _end_prefetch(simulated: SimulatedLearners, at_s: float) -> None:
    """Store the shards that were fetched since `prefetch`."""
    if simulated.prefetching is None:
        return
    (learners, shards), simulated.prefetching = simulated.prefetching, None
    missing = simulated.caches.missing(learners, shards)
    idle_s = np.maximum(at_s - simulated.fetch_free_s[learners], 0.0)
    ship_s = np.maximum(simulated.ship_s[learners], TINY_S)
    fetched = np.minimum(idle_s / ship_s, shards.row_sums(missing))
    simulated.caches.store_prefetched(learners, shards, missing, fetched)


def train(
    simulated: SimulatedLearners,
    instruction: Assignment,
    indices: Ints,
    samples: Ints,
    at_s: float,
) -> SimulatedUpdates:
    """Let the learners at these indices of an instruction train; return their updates.

    `samples` are those of each learner's shards. A learner ignores an instruction that is not
    newer than its last one.
    """
    _end_prefetch(simulated, at_s)
    key = instruction_keys(instruction, indices)
    new = key > simulated.last_instruction[instruction.learners[indices]]
    indices, samples = indices[new], samples[new]
    simulated.last_instruction[instruction.learners[indices]] = key[new]
    simulated.devices.enter(instruction.cycle, instruction.learners[indices])
    shards = instruction.shards.take(indices)
    parts = (
        _train(simulated, instruction, indices[rows], samples[rows], block, at_s)
        for rows, block in list(shards.blocks()) or [(slice(0), shards)]
    )
    updates = SimulatedUpdates.concatenate(parts, indices.size)
    simulated.caches.update_index()
    return updates


def instruction_keys(instruction: Assignment, indices: Ints) -> Ints:
    """Return a number for each instruction, larger for newer ones."""
    keys: Ints = instruction.cycle * MAX_ATTEMPTS + instruction.attempts[indices]
    return keys


def _train(
    simulated: SimulatedLearners,
    instruction: Assignment,
    indices: Ints,
    samples: Ints,
    shards: RaggedArray,
    at_s: float,
) -> SimulatedUpdates:
    begun = _begin(simulated, instruction, indices, samples, shards, at_s)
    learners = begun.learners
    history = simulated.histories.read(learners)
    done = _timeline(simulated, begun, history, instruction.seconds_left)
    simulated.caches.store(learners, shards, begun.missing, done.fetched)
    costs = _learn(simulated, begun, history, done)
    requests = _request_times(simulated, begun, done)
    stops_s, arrives_s = _occupy(simulated, begun, done)
    return SimulatedUpdates(
        indices=indices,
        learners=learners,
        attempts=instruction.attempts[indices].copy(),
        ask_s=requests.ask_s,
        wanted=requests.wanted,
        released=requests.released,
        passes=begun.work.passes,
        stops_s=stops_s,
        arrives_s=arrives_s,
        batches=done.batches,
        visits=done.visits,
        arrived_visits=_arrived_visits(begun.work, done),
        shipped=whole_shards(done.fetched) + simulated.caches.count_prefetched(learners, shards),
        phases=_phases(begun.wait_s, done),
        costs=costs,
        measured=simulated.histories.measured[learners],
    )


def _begin(
    simulated: SimulatedLearners,
    instruction: Assignment,
    indices: Ints,
    samples: Ints,
    shards: RaggedArray,
    at_s: float,
) -> _Assignments:
    """Begin assignments as soon as their learners are free."""
    learners = instruction.learners[indices]
    began_s, clock = np.maximum(at_s, simulated.free_s[learners]), simulated.clock[learners]
    wait_s = (began_s - at_s) * clock
    # With what was saved before a restart, a learner is as far as if it had begun earlier.
    saved = simulated.saved[learners] == instruction_keys(instruction, indices)
    saved_s = np.where(saved, simulated.saved_s[learners], 0.0)
    began_s -= saved_s
    simulated.began_s[learners] = began_s
    missing = simulated.caches.missing(learners, shards)
    setup_s, passes = simulated.cold_start_s[learners] * clock, instruction.passes[indices]
    return _Assignments(
        learners=learners,
        shards=shards,
        missing=missing,
        work=Workload(shards.counts, shards.row_sums(missing), samples, passes, setup_s),
        began_s=began_s,
        wait_s=wait_s,
        saved_s=saved_s,
        clock=clock,
        durations=simulated.durations(learners, began_s),
    )


def _timeline(
    simulated: SimulatedLearners, begun: _Assignments, history: CostHistory, seconds_left: float
) -> CycleTimeline:
    """Return how far each learner gets before it has to upload."""
    rates = simulated.devices.rates(begun.learners, begun.began_s, begun.clock)
    down_s = rates.seconds("downlink", 0.0, begun.durations.model_down_s, 1)
    known_s = reserve_s(history, simulated.task, down_s)
    first_s = reserve_s(None, simulated.task, down_s)
    upload_s = np.where(simulated.histories.measured[begun.learners], known_s, first_s)
    left_s = seconds_left - begun.wait_s + begun.saved_s * begun.clock
    return cycle_timeline(begun.durations, begun.work, left_s, upload_s, simulated.task, rates)


def _learn(
    simulated: SimulatedLearners, begun: _Assignments, history: CostHistory, done: CycleTimeline
) -> Floats:
    """Refresh the costs of measured learners; return the costs that each reports."""
    before_upload = history_before_upload(
        history, begun.wait_s, begun.work, done, simulated.task.shard_samples
    )
    simulated.histories.record_cycle(begun.learners, before_upload, done)
    if simulated.reports is not None:
        simulated.reports.record_cycle(begun.learners, begun.wait_s, begun.work, done)
        if simulated.reports_costs:
            return simulated.reports.read(begun.learners)
    elif simulated.reports_costs:
        return before_upload.costs()
    # Without reports, a column of no size: it is copied with the others.
    return np.empty((0, 0, begun.learners.size))


def _request_times(
    simulated: SimulatedLearners, begun: _Assignments, done: CycleTimeline
) -> RequestTimeline:
    """Return when learners request or release shards, in the time of the run."""
    learners = begun.learners
    if not simulated.task.extension:
        none = np.zeros(learners.size, np.int64)
        return RequestTimeline(np.full(learners.size, np.inf), none, none)
    requests = request_timeline(begun.durations, begun.work, done, simulated.task)
    ask_s = (done.down_s + requests.ask_s) / begun.clock
    return replace(requests, ask_s=simulated.sleep.end_s(learners, begun.began_s, ask_s))


def _occupy(
    simulated: SimulatedLearners, begun: _Assignments, done: CycleTimeline
) -> tuple[Floats, Floats]:
    """Keep learners and their links busy; return when each stops and its update arrives."""
    learners, clock = begun.learners, begun.clock
    simulated.cold_start_s[learners[done.visits > 0]] = 0.0
    simulated.fetch_free_s[learners] = begun.began_s + (done.down_s + done.link_s) / clock
    simulated.ship_s[learners] = begun.durations.ship_s / clock
    simulated.stalled_s[learners] = done.fetch_s / clock
    # With the rates of this moment, what was saved might have taken less time.
    busy_s = np.maximum((done.down_s + done.fetch_s + done.compute_s) / clock, begun.saved_s)
    stops_s = simulated.sleep.end_s(learners, begun.began_s, busy_s)
    arrives_s = simulated.sleep.end_s(learners, stops_s, done.up_s / clock)
    simulated.free_s[learners] = arrives_s
    return stops_s, arrives_s


def extend(
    simulated: SimulatedLearners,
    updates: SimulatedUpdates,
    rows: Ints,
    attempts: Ints,
    shards: RaggedArray,
    at_s: float,
) -> None:
    """Give learners, in these rows of their updates, further shards."""
    learners, stops_s = updates.learners[rows], updates.stops_s[rows]
    missing = simulated.caches.missing(learners, shards)
    wanted = shards.row_sums(missing)
    fetched = _fetch_more(simulated, learners, wanted, stops_s, at_s)
    simulated.caches.store(learners, shards, missing, fetched)
    simulated.caches.update_index()
    # It trains on them if the first one is there before it stops.
    used = (stops_s > at_s) & ((wanted < shards.counts) | (fetched >= 1.0))
    updates.attempts[rows[used]] = np.maximum(updates.attempts[rows], attempts)[used]
    updates.shipped[rows] += whole_shards(fetched)
    arrived = shards.counts - wanted + whole_shards(fetched)
    visits = arrived * simulated.task.shard_samples * updates.passes[rows]
    updates.arrived_visits[rows] += np.where(used, visits, 0)


def _fetch_more(
    simulated: SimulatedLearners, learners: Ints, wanted: Ints, stops_s: Floats, at_s: float
) -> Floats:
    """Return how many of the wanted shards each learner fetches before it stops."""
    begin_s = np.maximum(simulated.fetch_free_s[learners], at_s)
    ship_s = simulated.ship_s[learners]
    # A learner that sleeps for ever neither stops nor fetches.
    left_s = np.where(np.isfinite(begin_s), stops_s, 0.0) - begin_s
    in_time = left_s / np.where(ship_s > 0, ship_s, 1.0)
    fetched = np.where(ship_s > 0, np.clip(in_time, 0.0, wanted), wanted)
    simulated.fetch_free_s[learners] = begin_s + fetched * ship_s
    return fetched


def _phases(wait_s: Floats, done: CycleTimeline) -> Floats:
    """Return the seconds in each of `PHASES`, by learner; loading takes no time."""
    load_s = np.zeros(wait_s.size)
    phases = (wait_s, done.down_s, done.fetch_s, load_s, done.compute_s, done.up_s)
    return np.stack(phases, axis=1)


def _arrived_visits(work: Workload, done: CycleTimeline) -> Ints:
    """Return the planned visits of the shards that were there or arrived in time."""
    arrived = work.shards - work.missing + whole_shards(done.fetched)
    return work.passes * work.samples * arrived // np.maximum(work.shards, 1)
