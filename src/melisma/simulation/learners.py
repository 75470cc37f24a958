"""All learners in virtual time, as arrays; their decisions are those of `cycle.learner`.

Each learner follows one instruction after another. It has a clock of its own, which may run too
fast or too slow, and which stands still while the device sleeps.
"""

from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.allocation.schemes import get_scheme
from melisma.cycle import commands
from melisma.cycle.cache_index import EMPTY_CACHE
from melisma.cycle.events import COSTS, PARTS
from melisma.cycle.learner import (
    BENCHMARK_FETCH_FRACTION,
    MIN_SHARD_FRACTION,
    RELEASE_FRACTION,
    SUBSET_SHARDS,
    UPLOAD_FRACTION,
    CostHistory,
    benchmark_s,
    request_delay_s,
    reserve_s,
    shard_bound,
    shards_to_release,
    shards_to_request,
    subset_shards,
)
from melisma.cycle.ragged import RaggedArray, blocks
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.estimates import Estimate
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task
from melisma.learning.benchmark import WARM_UPS
from melisma.simulation.churn import SleepSpans
from melisma.simulation.devices import Devices, Durations
from melisma.simulation.timeline import CycleTimeline, Workload, cycle_timeline

HISTORY_FIELDS = tuple(field.name for field in fields(CostHistory))
ALL = slice(None)
LEARNERS_LAST = {"learners": "last"}
MAX_ATTEMPTS = 1 << 20  # of one cycle
ROUNDING_SHARDS = 1e-9
TINY_S = 1e-300


@dataclass(frozen=True, eq=False)
class SimulatedUpdates:
    """Updates of many learners: when training stops, when the update arrives, and its contents.

    A learner requests `wanted` shards at `ask_s`, or releases the last `released` of its shards
    then. Extensions that arrive before it stops change attempts and shipped.
    """

    indices: Ints  # into the instruction
    learners: Ints
    attempts: Ints
    ask_s: Floats
    wanted: Ints
    released: Ints
    passes: Ints
    stops_s: Floats
    in_s: Floats
    batches: Ints
    visits: Ints
    arrived_visits: Ints  # planned visits of the shards that arrived in time
    shipped: Ints
    phases: Floats
    costs: Floats = field(metadata=LEARNERS_LAST)  # COSTS x PARTS x learners
    measured: NDArray[np.bool_]  # whether the learner has measured its costs

    @classmethod
    def concatenate(cls, parts: Sequence["SimulatedUpdates"]) -> "SimulatedUpdates":
        """Return the updates of all parts, in their instruction."""
        return cls(
            *(
                np.concatenate([getattr(part, f.name) for part in parts], _learners_axis(f))
                for f in fields(cls)
            )
        )

    def take(self, rows: Ints) -> "SimulatedUpdates":
        """Return the updates in these rows."""
        if rows.size == self.learners.size and rows[0] == 0 and np.all(np.diff(rows) == 1):
            return self
        return SimulatedUpdates(
            *(np.take(getattr(self, f.name), rows, axis=_learners_axis(f)) for f in fields(self))
        )


def _learners_axis(column: Field[Any]) -> int:
    """Return the axis of learners in a column: the first, unless its metadata puts them last."""
    return -1 if column.metadata.items() >= LEARNERS_LAST.items() else 0


class SimulatedLearners:
    """All learners of a run; `local_shards` counts the shards that lie on each device.

    `slowdown` returns the factor by which learners compute slower at a given time.
    """

    def __init__(
        self,
        task: Task,
        fleet: Fleet,
        local_shards: Ints,
        sleep: SleepSpans,
        slowdown: Callable[[Ints, Floats], Floats],
    ) -> None:
        count = fleet.learners
        self._task, self._local_shards = task, local_shards
        self._sleep, self._slowdown = sleep, slowdown
        self._devices, self._noise = Devices(task, fleet), fleet.noise
        self._cold_start_s = fleet.noise.cold_start_s.copy()  # 0 after the first cycle
        self._reports_costs = get_scheme(task.scheme).needs_with(task.passes) == "costs"
        self._history = np.zeros((len(HISTORY_FIELDS), len(PARTS), count))
        self._history[:, PARTS.index("count")] = 1.0
        self._measured = np.zeros(count, np.bool_)
        self._held = EMPTY_CACHE  # (learner, shard)
        self._fetched: list[tuple[Ints, Ints]] = []  # held too, but not in the index yet
        self._holds = np.zeros(count, np.int64)
        self._fetch_free_s = np.zeros(count)  # when the downlink is free
        self._ship_s = np.zeros(count)  # of the current cycle
        self._prefetching: tuple[Ints, RaggedArray] | None = None
        self._prefetched = EMPTY_CACHE  # (learner, shard) fetched before the current cycle
        self._free_s = np.zeros(count)
        self._last_instruction = np.zeros(count, np.int64)  # cycle and attempt in one number
        self.clock = np.ones(count)  # seconds that pass on the learner's clock in one second

    def restart(self, learners: Ints, at_s: float) -> None:
        """Clear the state of these learners, but for the shards on their disks."""
        self._measured[learners], self._last_instruction[learners] = False, 0
        self._free_s[learners] = at_s
        self._cold_start_s[learners] = self._noise.cold_start_s[learners]
        self._history[:, :2, learners], self._history[:, 2, learners] = 0.0, 1.0

    def stop(self, learners: Ints, until_s: Floats, at_s: float) -> None:
        """End the work that would have kept these learners busy until `until_s`."""
        free_s = self._free_s[learners]
        self._free_s[learners] = np.where(free_s == until_s, at_s, free_s)

    def measure(self, learners: Ints, at_s: float, seconds: float) -> tuple[Floats, Floats]:
        """Run the benchmark; return when each learner is done, and the costs it measured."""
        ends_s = np.empty(learners.size)
        costs = np.empty((len(COSTS), len(PARTS), learners.size))
        for rows in blocks(learners.size):
            begin_s = np.full(learners[rows].size, at_s)
            ends_s[rows] = self._benchmark(learners[rows], begin_s, seconds)
            costs[:, :, rows] = self._read_history(learners[rows]).costs()
        self._index_fetched()
        return ends_s, costs

    def ask_bounds(
        self, learners: Ints, at_s: float, instruction: commands.AskBound, held: Ints
    ) -> tuple[Floats, Ints]:
        """Return when each learner answers, and the shards that it can train in time."""
        ready_s, bounds = np.empty(learners.size), np.empty(learners.size, np.int64)
        for rows in blocks(learners.size):
            ready_s[rows], bounds[rows] = self._bounds(
                learners[rows], at_s, instruction, held[rows]
            )
        self._index_fetched()
        return ready_s, bounds

    def _bounds(
        self, learners: Ints, at_s: float, instruction: commands.AskBound, held: Ints
    ) -> tuple[Floats, Ints]:
        deadline_s, seconds = self._task.deadline_s, benchmark_s(self._task)
        ready_s = np.maximum(at_s, self._free_s[learners])
        ready_s = self._sleep.end_s(learners, ready_s, np.zeros(learners.size))
        # A learner that sleeps for ever neither measures itself nor answers.
        awake = np.isfinite(ready_s)
        new = ~self._measured[learners] & awake
        if new.any():
            ready_s[new] = self._benchmark(learners[new], ready_s[new], seconds)
        held = np.minimum(held, self._holds[learners])
        known, bounds = self._measured[learners], np.zeros(learners.size, np.int64)
        if known.any():
            history = self._read_history(learners[known])
            bounds[known] = shard_bound(history, self._task, instruction.deadline_s, held[known])
        idle = (bounds == 0) & awake & np.isfinite(ready_s)
        if idle.any() and instruction.deadline_s == deadline_s:
            # Without work no cycle refreshes its costs, so it repeats the benchmark.
            if (idle & new).any():
                self._index_fetched()  # it holds the shards of its first benchmark
            self._benchmark(learners[idle], ready_s[idle], seconds)
        return ready_s, bounds

    def _benchmark(self, learners: Ints, at_s: Floats, seconds: float) -> Floats:
        """Measure learners on a few shards for up to `seconds`; return when each is done.

        Simulated durations have no spread; a single measurement still plans with caution.
        """
        task = self._task
        began_s = np.maximum(at_s, self._free_s[learners])
        durations, clock = self._durations(learners, began_s), self.clock[learners]
        rates = self._devices.rates(learners, began_s, clock)
        down_s = rates.seconds("downlink", 0.0, durations.model_down_s, 1)
        left_s = seconds - (began_s - at_s) * clock
        up_s = rates.seconds("uplink", down_s, durations.model_up_s, 1)
        probed_s = down_s + rates.seconds("uplink", down_s, self._probe_s(learners, durations), 2)
        fetching_s = np.maximum(BENCHMARK_FETCH_FRACTION * left_s - probed_s, 0.0)
        fetching_s = rates.work_s("downlink", probed_s, fetching_s)
        shards, fetched = self._fetch_subset(learners, fetching_s, durations)
        # A learner that holds all of them fetches one again, so that its link is measured.
        transfers = np.maximum(fetched, 1)
        ship_s = rates.unit_s("downlink", probed_s, durations.ship_s, transfers)
        ready_s = probed_s + ship_s * transfers
        warm_ups = WARM_UPS * min(task.batch, task.shard_samples)
        warm_up_s = warm_ups * rates.unit_s("compute", ready_s, durations.sample_s, warm_ups)
        shard_s = task.shard_samples * durations.sample_s
        shard_s = rates.unit_s("compute", ready_s + warm_up_s, shard_s, shards)
        time_s = np.maximum(left_s - ready_s - warm_up_s, 0.0)
        history = CostHistory.from_benchmark(
            train_s=shard_s * self._noise.benchmark_bias[learners],
            ship_s=ship_s,
            down_s=down_s,
            up_s=up_s,
            rest_s=np.zeros(learners.size),
        )
        self._write_history(learners, history)
        self._measured[learners] = True
        train_s = np.minimum(shards * shard_s, time_s)
        busy_s = ready_s + warm_up_s + train_s
        self._free_s[learners] = self._sleep.end_s(learners, began_s, busy_s / clock)
        free_s: Floats = self._free_s[learners].copy()
        return free_s

    def _probe_s(self, learners: Ints, durations: Durations) -> Floats:
        """Return the seconds of an empty upload, and of one with a part of the bytes."""
        latency_s = self._devices.latency_s[learners] * self.clock[learners]
        return 2 * latency_s + UPLOAD_FRACTION * (durations.model_up_s - latency_s)

    def _fetch_subset(
        self, learners: Ints, left_s: Floats, durations: Durations
    ) -> tuple[Ints, Ints]:
        """Return how many shards each learner measures itself on, and how many it fetches.

        It fetches those that it begins in time, and at least one.
        """
        if self._task.mode == "federated":
            local = np.minimum(self._local_shards[learners], SUBSET_SHARDS)
            return local, np.zeros(learners.size, np.int64)
        shards = subset_shards(self._task, learners)
        missing = self._missing(learners, shards)
        count = shards.row_sums(missing)
        begun = np.maximum(np.ceil(left_s / durations.ship_s), 1.0)
        fetched = np.minimum(count, begun).astype(np.int64)
        self._store(learners, shards, missing, fetched.astype(np.float64))
        return shards.counts - count + fetched, fetched

    def train(
        self, instruction: commands.Dispatch, indices: Ints, samples: Ints, at_s: float
    ) -> SimulatedUpdates:
        """Let the learners at these indices of an instruction train; return their updates.

        `samples` are those of each learner's shards. A learner ignores an instruction that is not
        newer than its last one.
        """
        self._end_prefetch(at_s)
        key = instruction.cycle * MAX_ATTEMPTS + instruction.attempts[indices]
        new = key > self._last_instruction[instruction.learners[indices]]
        indices, samples = indices[new], samples[new]
        self._last_instruction[instruction.learners[indices]] = key[new]
        self._devices.enter(instruction.cycle, instruction.learners[indices])
        shards = instruction.shards.take(indices)
        parts = [
            self._train(instruction, indices[rows], samples[rows], block, at_s)
            for rows, block in shards.blocks()
        ]
        self._index_fetched()
        return SimulatedUpdates.concatenate(
            parts or [self._train(instruction, indices, samples, shards, at_s)]
        )

    def _train(
        self,
        instruction: commands.Dispatch,
        indices: Ints,
        samples: Ints,
        shards: RaggedArray,
        at_s: float,
    ) -> SimulatedUpdates:
        learners = instruction.learners[indices]
        began_s, clock = np.maximum(at_s, self._free_s[learners]), self.clock[learners]
        durations, wait_s = self._durations(learners, began_s), (began_s - at_s) * clock
        missing = self._missing(learners, shards)
        setup_s, passes = self._cold_start_s[learners] * clock, instruction.passes[indices]
        work = Workload(shards.counts, shards.row_sums(missing), samples, passes, setup_s)
        history = self._read_history(learners)
        rates = self._devices.rates(learners, began_s, clock)
        down_s = rates.seconds("downlink", 0.0, durations.model_down_s, 1)
        left_s = instruction.seconds_left - wait_s
        upload_s = self._upload_s(learners, history, down_s)
        done = cycle_timeline(durations, work, left_s, upload_s, self._task, rates)
        self._store(learners, shards, missing, done.fetched)
        costs = self._learn(learners, history, wait_s, work, done)
        self._cold_start_s[learners[done.visits > 0]] = 0.0
        self._fetch_free_s[learners] = began_s + (done.down_s + done.link_s) / clock
        self._ship_s[learners] = durations.ship_s / clock
        asks = self._requests(learners, began_s, work, done, durations)
        load_s, train_s = np.zeros(learners.size), done.setup_s + done.train_s
        phases = (wait_s, done.down_s, done.fetch_s, load_s, train_s, done.up_s)
        busy_s = (done.down_s + done.fetch_s + train_s) / clock
        stops_s = self._sleep.end_s(learners, began_s, busy_s)
        in_s = self._free_s[learners] = self._sleep.end_s(learners, stops_s, done.up_s / clock)
        shipped = _whole_shards(done.fetched) + self._count_prefetched(learners, shards)
        ask_s, wanted, released = asks
        return SimulatedUpdates(
            indices=indices,
            learners=learners,
            attempts=instruction.attempts[indices].copy(),
            ask_s=ask_s,
            wanted=wanted,
            released=released,
            passes=passes,
            stops_s=stops_s,
            in_s=in_s,
            batches=done.batches,
            visits=done.visits,
            arrived_visits=_arrived_visits(work, done),
            shipped=shipped,
            phases=np.stack(phases, axis=1),
            costs=costs,
            measured=self._measured[learners],
        )

    def _requests(
        self,
        learners: Ints,
        began_s: Floats,
        work: Workload,
        done: CycleTimeline,
        durations: Durations,
    ) -> tuple[Floats, Ints, Ints]:
        """Return when learners request or release shards, and how many."""
        none = np.zeros(learners.size, np.int64)
        if not self._task.extension:
            return np.full(learners.size, np.inf), none, none
        deadline_s, ship_s = self._task.deadline_s, durations.ship_s
        train_s = durations.sample_s * work.samples / np.maximum(work.shards, 1)
        fetched_s = ship_s * work.missing
        ask_s = np.where(
            np.maximum(done.planned_s, fetched_s) < done.stop_s,
            request_delay_s(done.planned_s, fetched_s, ship_s, deadline_s),
            RELEASE_FRACTION * deadline_s,
        )
        left_s, work_s = done.stop_s - ask_s, np.maximum(done.planned_s - ask_s, 0.0)
        fetch_s = np.maximum(fetched_s - ask_s, 0.0)
        all_passes_s = train_s * work.passes
        wanted = shards_to_request(left_s, work_s, fetch_s, all_passes_s, ship_s)
        unfetched = work.missing - np.minimum(
            np.ceil(ask_s / np.maximum(ship_s, TINY_S)), work.missing
        )
        released = shards_to_release(left_s, unfetched * train_s, fetch_s, train_s, ship_s)
        ask_s = (done.down_s + ask_s) / self.clock[learners]
        return (
            self._sleep.end_s(learners, began_s, ask_s),
            wanted,
            np.where(left_s > 0, np.minimum(released, unfetched), 0).astype(np.int64),
        )

    def extend(
        self,
        updates: SimulatedUpdates,
        rows: Ints,
        attempts: Ints,
        shards: RaggedArray,
        at_s: float,
    ) -> None:
        """Give learners, in these rows of their updates, further shards."""
        learners, stops_s = updates.learners[rows], updates.stops_s[rows]
        missing = self._missing(learners, shards)
        wanted = shards.row_sums(missing)
        begin_s = np.maximum(self._fetch_free_s[learners], at_s)
        ship_s = self._ship_s[learners]
        # A learner that sleeps for ever neither stops nor fetches.
        left_s = np.where(np.isfinite(begin_s), stops_s, 0.0) - begin_s
        in_time = left_s / np.where(ship_s > 0, ship_s, 1.0)
        fetched = np.where(ship_s > 0, np.clip(in_time, 0.0, wanted), wanted)
        self._fetch_free_s[learners] = begin_s + fetched * ship_s
        self._store(learners, shards, missing, fetched)
        self._index_fetched()
        # It trains on them if the first one is there before it stops.
        used = (stops_s > at_s) & ((wanted < shards.counts) | (fetched >= 1.0))
        updates.attempts[rows[used]] = np.maximum(updates.attempts[rows], attempts)[used]
        updates.shipped[rows] += _whole_shards(fetched)
        arrived = shards.counts - wanted + _whole_shards(fetched)
        passes = updates.passes[rows]
        updates.arrived_visits[rows] += np.where(
            used, arrived * self._task.shard_samples * passes, 0
        )

    def prefetch(self, learners: Ints, shards: RaggedArray, at_s: float) -> None:
        """Let learners fetch shards from now on, until they are to train."""
        self._fetch_free_s[learners] = np.maximum(self._free_s[learners], at_s)
        self._prefetching = learners, shards

    def _end_prefetch(self, at_s: float) -> None:
        """Store the shards that were fetched since `prefetch`."""
        if self._prefetching is None:
            return
        (learners, shards), self._prefetching = self._prefetching, None
        missing = self._missing(learners, shards)
        idle_s = np.maximum(at_s - self._fetch_free_s[learners], 0.0)
        ship_s = np.maximum(self._ship_s[learners], TINY_S)
        fetched = np.minimum(idle_s / ship_s, shards.row_sums(missing))
        before = len(self._fetched)
        self._store(learners, shards, missing, fetched)
        self._prefetched = EMPTY_CACHE
        for owners, numbers in self._fetched[before:]:
            self._prefetched = self._prefetched.union(owners, numbers)
        self._index_fetched()

    def _durations(self, learners: Ints, at_s: Floats) -> Durations:
        """Return durations as the learners' own clocks measure them."""
        slowdown = self._slowdown(learners, at_s)
        return self._devices.durations(learners, slowdown).on_clock(self.clock[learners])

    def _upload_s(self, learners: Ints, history: CostHistory, down_s: Floats) -> Floats:
        """Return the seconds of the deadline that each learner keeps for its upload."""
        known_s = reserve_s(history, self._task, down_s)
        first_s = reserve_s(None, self._task, down_s)
        return np.where(self._measured[learners], known_s, first_s)

    def _missing(self, learners: Ints, shards: RaggedArray) -> Ints:
        """Return 1 for each shard that its learner does not hold, and 0 for the others."""
        if self._task.mode == "federated":
            return np.zeros(shards.values.size, np.int64)
        return (~self._held.contains(learners[shards.row_ids], shards.values)).astype(np.int64)

    def _count_prefetched(self, learners: Ints, shards: RaggedArray) -> Ints:
        if not self._prefetched.pairs.size:
            return np.zeros(learners.size, np.int64)
        early = self._prefetched.contains(learners[shards.row_ids], shards.values)
        return shards.row_sums(early.astype(np.int64))

    def _store(self, learners: Ints, shards: RaggedArray, missing: Ints, fetched: Floats) -> None:
        """Store the first `fetched` of the missing shards of each learner; only whole ones stay."""
        if self._task.mode == "federated" or not learners.size:
            return
        row_ids, upto = shards.row_ids, np.concatenate([[0], np.cumsum(missing)])
        nth = upto[1:] - np.repeat(upto[shards.starts], shards.counts)
        kept = (missing > 0) & (nth <= _whole_shards(fetched)[row_ids])
        self._fetched.append((learners[row_ids[kept]], shards.values[kept]))
        self._holds[learners] += shards.row_sums(kept.astype(np.int64))

    def _index_fetched(self) -> None:
        """Add the shards of all blocks to the index at once: each merge copies the whole index."""
        if self._fetched:
            learners, shards = (np.concatenate(parts) for parts in zip(*self._fetched, strict=True))
            self._held, self._fetched = self._held.union(learners, shards), []

    def _learn(
        self,
        learners: Ints,
        history: CostHistory,
        wait_s: Floats,
        work: Workload,
        done: CycleTimeline,
    ) -> Floats:
        """Refresh the costs of measured learners; return the costs that each reports."""
        trained, fetched = done.visits > 0, (work.missing > 0) & (done.fetched > 0)
        shards = np.maximum(done.visits, 1) / self._task.shard_samples
        fetched_shards = np.maximum(done.fetched, MIN_SHARD_FRACTION)
        before_upload = history.after(
            down_s=done.down_s,
            ship_s=np.where(fetched, done.link_s / fetched_shards, np.nan),
            train_s=np.where(trained, done.train_s / shards, np.nan),
            rest_s=np.where(trained, wait_s + done.setup_s, np.nan),
        )
        after_upload = before_upload.after(up_s=np.where(trained, done.up_s, np.nan))
        known = self._measured[learners]
        self._write_history(learners[known], after_upload, known)
        # Without reports, a column of no size: it is copied with the others.
        return before_upload.costs() if self._reports_costs else np.empty((0, 0, learners.size))

    def _read_history(self, learners: Ints) -> CostHistory:
        # `take` keeps each column in one piece; indexing would interleave them in memory.
        columns = np.take(self._history, learners, axis=-1)
        return CostHistory(*(Estimate(*parts) for parts in columns))

    def _write_history(
        self, learners: Ints, history: CostHistory, rows: NDArray[np.bool_] | slice = ALL
    ) -> None:
        for index, name in enumerate(HISTORY_FIELDS):
            estimate = getattr(history, name)
            parts = (estimate.mean, estimate.spread, estimate.count)
            for column, part in zip(self._history[index], parts, strict=True):
                column[learners] = part[rows]


def _arrived_visits(work: Workload, done: CycleTimeline) -> Ints:
    """Return the planned visits of the shards that were there or arrived in time."""
    arrived = work.shards - work.missing + _whole_shards(done.fetched)
    return work.passes * work.samples * arrived // np.maximum(work.shards, 1)


def _whole_shards(fetched: Floats) -> Ints:
    return np.floor(fetched + ROUNDING_SHARDS).astype(np.int64)
