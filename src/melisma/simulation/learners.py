"""Learners in virtual time, many at once: what they decide is in `cycle.learner`, as it is live.

Each follows one order after another, on a clock of its own that may be wrong, and that stands still
while the device sleeps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.allocation.schemes import get_scheme
from melisma.cycle import commands
from melisma.cycle.cache_index import EMPTY_CACHE
from melisma.cycle.events import COSTS, PARTS, Floats
from melisma.cycle.learner import (
    MIN_SHARD_FRACTION,
    SUBSET_SHARDS,
    CostHistory,
    bound,
    reserve_s,
    subset_shards,
)
from melisma.cycle.ragged import Ints, RaggedArray, blocks
from melisma.fleet.estimates import Estimate
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task
from melisma.learning.benchmark import WARM_UPS
from melisma.simulation.churn import SleepSpans
from melisma.simulation.devices import Devices, Durations
from melisma.simulation.timeline import CycleTimeline, Workload, cycle_timeline

LEARNED = tuple(field.name for field in fields(CostHistory))
ALL = slice(None)
# Attempts of one cycle are numbered below this.
ATTEMPTS = 1 << 20


@dataclass(frozen=True, eq=False)
class SimulatedUpdates:
    """What learners hand in: when each stops training, when its update is in, and what is in it."""

    places: Ints  # in the order
    learners: Ints
    stops_s: Floats
    in_s: Floats
    batches: Ints
    visits: Ints
    shipped: Ints
    phases: Floats
    costs: Floats
    measured: NDArray[np.bool_]  # whether it knows its costs at all

    @classmethod
    def concatenate(cls, parts: Sequence["SimulatedUpdates"]) -> "SimulatedUpdates":
        """One behind the other."""
        columns = [[getattr(part, field.name) for part in parts] for field in fields(cls)]
        return cls(*(np.concatenate(column, axis=_learners_axis(column[0])) for column in columns))

    def take(self, chosen: Ints) -> "SimulatedUpdates":
        """Of these alone."""
        if chosen.size == self.learners.size and chosen[0] == 0 and np.all(np.diff(chosen) == 1):
            return self
        columns = [getattr(self, field.name) for field in fields(self)]
        return SimulatedUpdates(*(np.take(c, chosen, axis=_learners_axis(c)) for c in columns))


class SimulatedLearners:
    """All learners of a run, as columns; `own` are the shards that lie on each device.

    `slowed` says how many times slower they compute at some instant than they should.
    """

    def __init__(
        self,
        task: Task,
        fleet: Fleet,
        own: Ints,
        sleep: SleepSpans,
        slowed: Callable[[Ints, Floats], Floats],
    ) -> None:
        count = fleet.learners
        self._task, self._own, self._sleep, self._slowed = task, own, sleep, slowed
        self._devices = Devices(task, fleet)
        self._tells_costs = get_scheme(task.scheme).needs == "costs"
        self._learned = np.zeros((len(LEARNED), 3, count))
        self._learned[:, 2] = 1.0
        self._measured = np.zeros(count, np.bool_)
        self._held = EMPTY_CACHE  # (learner, shard)
        self._new: list[tuple[Ints, Ints]] = []  # held, too
        self._holds = np.zeros(count, np.int64)
        self._free_s = np.zeros(count)
        self._had = np.zeros(count, np.int64)  # the last assignment, by cycle and attempt
        self.clock = np.ones(count)  # seconds that pass on it in one second

    def restart(self, who: Ints, at_s: float) -> None:
        """They begin anew: what lies on disk is still there, what they knew is not."""
        self._measured[who], self._had[who], self._free_s[who] = False, 0, at_s
        self._learned[:, :2, who], self._learned[:, 2, who] = 0.0, 1.0

    def stop(self, who: Ints, until_s: Floats, at_s: float) -> None:
        """They are no longer at what would have taken until then."""
        self._free_s[who] = np.where(self._free_s[who] == until_s, at_s, self._free_s[who])

    def measure(self, who: Ints, at_s: float, seconds: float) -> tuple[Floats, Floats]:
        """When each has measured itself, and the costs that it finds."""
        ends_s, costs = np.empty(who.size), np.empty((len(COSTS), len(PARTS), who.size))
        for at in blocks(who.size):
            begin_s = np.full(who[at].size, at_s)
            ends_s[at] = self._benchmark(who[at], begin_s, seconds)
            costs[:, :, at] = self._experience(who[at]).costs()
        self._stored()
        return ends_s, costs

    def ask_bounds(
        self, who: Ints, at_s: float, order: commands.AskBound, held: Ints
    ) -> tuple[Floats, Ints]:
        """When each says how many shards it would take, and how many."""
        says_s, asked = np.empty(who.size), np.empty(who.size, np.int64)
        for at in blocks(who.size):
            says_s[at], asked[at] = self._bounds(who[at], at_s, order, held[at])
        self._stored()
        return says_s, asked

    def _bounds(
        self, who: Ints, at_s: float, order: commands.AskBound, held: Ints
    ) -> tuple[Floats, Ints]:
        deadline_s = self._task.deadline_s
        says_s = np.maximum(at_s, self._free_s[who])
        says_s = self._sleep.end_s(who, says_s, np.zeros(who.size))
        # Who sleeps for ever neither measures itself nor says anything.
        awake = np.isfinite(says_s)
        new = ~self._measured[who] & awake
        if new.any():
            says_s[new] = self._benchmark(who[new], says_s[new], deadline_s)
        held = np.minimum(held, self._holds[who])
        known, asked = self._measured[who], np.zeros(who.size, np.int64)
        if known.any():
            mine = self._experience(who[known])
            asked[known] = bound(mine, self._task, order.deadline_s, held[known])
        none = (asked == 0) & awake & np.isfinite(says_s)
        if none.any() and order.deadline_s == deadline_s:
            # Nothing to do, and no cycle that would tell: maybe it can do more by now.
            if (none & new).any():
                self._stored()  # what it fetched to measure itself it has
            self._benchmark(who[none], says_s[none], deadline_s)
        return says_s, asked

    def train(
        self, order: commands.Dispatch, places: Ints, samples: Ints, at_s: float
    ) -> SimulatedUpdates:
        """What those at these places of an order hand in, with so many samples given to each.

        An order that one has had already, or an older one, is not followed.
        """
        key = order.cycle * ATTEMPTS + order.attempts[places]
        new = key > self._had[order.learners[places]]
        places, samples = places[new], samples[new]
        self._had[order.learners[places]] = key[new]
        self._devices.enter(order.cycle, order.learners[places])
        shards = order.shards.take(places)
        parts = [
            self._train(order, places[at], samples[at], some, at_s) for at, some in shards.blocks()
        ]
        self._stored()
        return SimulatedUpdates.concatenate(
            parts or [self._train(order, places, samples, shards, at_s)]
        )

    def _train(
        self,
        order: commands.Dispatch,
        places: Ints,
        samples: Ints,
        shards: RaggedArray,
        at_s: float,
    ) -> SimulatedUpdates:
        who = order.learners[places]
        began_s = np.maximum(at_s, self._free_s[who])
        takes, wait_s = self._takes(who, began_s), (began_s - at_s) * self.clock[who]
        lacking = self._lacking(who, shards)
        given = Workload(shards.sums(lacking), samples, order.passes[places])
        left_s = order.seconds_left - wait_s
        knew = self._experience(who)
        kept_s = self._kept_s(who, knew, takes)
        done = cycle_timeline(takes, given, left_s, kept_s, self._task.batch)
        self._keep(who, shards, lacking, done.came)
        costs = self._learn(who, knew, wait_s, given, done)
        nothing = np.zeros(who.size)
        phases = (wait_s, done.down_s, done.fetch_s, nothing, done.train_s, done.up_s)
        busy_s = (done.down_s + done.fetch_s + done.train_s) / self.clock[who]
        stops_s = self._sleep.end_s(who, began_s, busy_s)
        in_s = self._sleep.end_s(who, stops_s, done.up_s / self.clock[who])
        self._free_s[who] = in_s
        shipped = np.floor(done.came + 1e-9).astype(np.int64)
        parts = (done.batches, done.visits, shipped, np.stack(phases, axis=1), costs)
        return SimulatedUpdates(places, who, stops_s, in_s, *parts, self._measured[who])

    def _takes(self, who: Ints, at_s: Floats) -> Durations:
        """As they measure it themselves."""
        return self._devices.durations(who, self._slowed(who, at_s)).on_clock(self.clock[who])

    def _kept_s(self, who: Ints, knew: CostHistory, takes: Durations) -> Floats:
        known_s = reserve_s(knew, self._task, takes.carry_s)
        return np.where(self._measured[who], known_s, reserve_s(None, self._task, takes.carry_s))

    def _lacking(self, who: Ints, shards: RaggedArray) -> Ints:
        """1 for each of these shards that is not there yet, 0 for the others."""
        if self._task.mode == "federated":
            return np.zeros(shards.values.size, np.int64)
        return (~self._held.has(who[shards.row_ids], shards.values)).astype(np.int64)

    def _keep(self, who: Ints, shards: RaggedArray, lacking: Ints, came: Floats) -> None:
        """Of the shards that each lacked, so many came, the first ones first; whole ones stay."""
        if self._task.mode == "federated" or not who.size:
            return
        places, upto = shards.row_ids, np.concatenate([[0], np.cumsum(lacking)])
        nth = upto[1:] - np.repeat(upto[shards.starts], shards.counts)
        kept = (lacking > 0) & (nth <= np.floor(came + 1e-9)[places])
        self._new.append((who[places[kept]], shards.values[kept]))
        self._holds[who] += shards.sums(kept.astype(np.int64))

    def _stored(self) -> None:
        """What came to blocks of learners, all at once: each merge goes through everything held."""
        if self._new:
            who, shards = (np.concatenate(parts) for parts in zip(*self._new, strict=True))
            self._held, self._new = self._held.plus(who, shards), []

    def _learn(
        self, who: Ints, knew: CostHistory, wait_s: Floats, given: Workload, done: CycleTimeline
    ) -> Floats:
        """What the cycle told each of those who have measured themselves; the costs it reports."""
        trained, fetched = done.visits > 0, (given.missing > 0) & (done.fetch_s > 0)
        shards = np.maximum(done.visits, 1) / self._task.shard_samples
        came = np.maximum(done.came, MIN_SHARD_FRACTION)
        before = knew.after(
            down_s=done.down_s,
            ship_s=np.where(fetched, done.fetch_s / came, np.nan),
            train_s=np.where(trained, done.train_s / shards, np.nan),
            rest_s=np.where(trained, wait_s, np.nan),
        )
        after = before.after(up_s=np.where(trained, done.up_s, np.nan))
        known = self._measured[who]
        self._write(who[known], after, known)
        return before.costs() if self._tells_costs else np.empty((3, 3, who.size))

    def _experience(self, who: Ints) -> CostHistory:
        return CostHistory(*(Estimate(*parts) for parts in self._learned[:, :, who]))

    def _write(self, who: Ints, known: CostHistory, some: NDArray[np.bool_] | slice = ALL) -> None:
        for place, name in enumerate(LEARNED):
            estimate = getattr(known, name)
            parts = (estimate.mean, estimate.spread, estimate.count)
            self._learned[place][:, who] = [part[some] for part in parts]

    def _benchmark(self, who: Ints, at_s: Floats, seconds: float) -> Floats:
        """When each has measured itself on a few shards, for so many seconds at most.

        What takes as long every time has no spread; one measurement alone plans carefully.
        """
        task = self._task
        began_s = np.maximum(at_s, self._free_s[who])
        takes = self._takes(who, began_s)
        left_s = seconds - (began_s - at_s) * self.clock[who] - takes.carry_s
        some, fetched = self._subset(who, left_s, takes)
        fetch_s = takes.ship_s * fetched
        warm_s = WARM_UPS * min(task.batch, task.shard_samples) * takes.sample_s
        shard_s = task.shard_samples * takes.sample_s
        time_s = np.maximum(left_s - fetch_s - warm_s, 0.0)
        whole = np.clip(np.floor(time_s / shard_s), 1, np.maximum(some, 1))
        train_s = np.minimum(some * shard_s, time_s)
        alike = np.zeros(who.size)
        found = CostHistory(
            train_s=Estimate(shard_s, alike, whole),
            ship_s=Estimate(*self._shipped(who, takes, fetched)),
            down_s=Estimate(takes.carry_s, alike, 1.0),
            up_s=Estimate(takes.carry_s, alike, 1.0),
            rest_s=Estimate(alike, alike, whole),
        )
        self._write(who, found)
        self._measured[who] = True
        busy_s = takes.carry_s + fetch_s + warm_s + train_s
        self._free_s[who] = self._sleep.end_s(who, began_s, busy_s / self.clock[who])
        return self._free_s[who].copy()

    def _subset(self, who: Ints, left_s: Floats, takes: Durations) -> tuple[Ints, Ints]:
        """How many shards each measures itself on, and how many of them it fetches in time.

        The first is fetched however long that takes.
        """
        if self._task.mode == "federated":
            return np.minimum(self._own[who], SUBSET_SHARDS), np.zeros(who.size, np.int64)
        shards = subset_shards(self._task, who)
        lacking = self._lacking(who, shards)
        missing = shards.sums(lacking)
        begun = np.maximum(np.ceil(left_s / takes.ship_s), 1.0)
        fetched = np.minimum(missing, begun).astype(np.int64)
        self._keep(who, shards, lacking, fetched.astype(np.float64))
        return shards.counts - missing + fetched, fetched

    def _shipped(self, who: Ints, takes: Durations, fetched: Ints) -> tuple[Floats, ...]:
        """What a shard takes to fetch, and how often that was measured; or what was known."""
        known = self._learned[LEARNED.index("ship_s")][:, who]
        new = np.stack([takes.ship_s, np.zeros(who.size), np.maximum(fetched, 1.0)])
        ship = np.where((fetched > 0) | (known[0] == 0.0), new, known)
        return ship[0], ship[1], ship[2]


def _learners_axis(column: NDArray[Any]) -> int:
    """Costs have learners last, all else has them first."""
    return 2 if column.ndim == len(PARTS) else 0
