"""Forecast the cycles of a plan: which learners are awake, and how much arrives by the deadline.

Sleep, operating states, noise and traces are drawn as in a simulation of the same files. Each cycle
is followed by itself: no shards are cached, requested or handed on, and the next cycle begins one
deadline later. A learner stops in time for the upload that it predicts, so its update is late if
the upload takes longer, or if the device sleeps during the cycle. With noise or
traces, learners ask for as much as they finish with probability `caution`, by their own
measurements.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.allocation.cycle_problem import CyclePlan
from melisma.cycle.learner import CostHistory, reserve_s
from melisma.fleet.array_types import Bools, Floats, Ints
from melisma.fleet.availability import JOIN, Availability, Changes
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task
from melisma.simulation.churn import SleepSpans, changes_of_run, departure_times_s
from melisma.simulation.devices import Devices
from melisma.simulation.timeline import Workload, cycle_timeline

# Larger numbers hardly change the shares: of more learners, some at equal distances are followed.
MAX_CYCLES, MAX_LEARNERS = 50, 5000
ROUNDING = 1e-9


@dataclass(frozen=True)
class Forecast:
    """Means over the cycles of a run, up to `MAX_CYCLES`.

    `awake_at_start` and `awake_on_average` are fractions of all learners; `finishing` is the
    fraction of learners at work that finish their shards by the deadline if they stay awake;
    `weight_in_time` the fraction of the planned weight that arrives by the deadline, and
    `cycles_in_time` the fraction of cycles in which this reaches the quorum.
    """

    awake_at_start: float
    awake_on_average: float
    finishing: float
    weight_in_time: float
    cycles_in_time: float

    def reaches(self, quorum: float) -> bool:
        """Return whether the expected weight by the deadline is enough to close a cycle."""
        return self.weight_in_time >= quorum - ROUNDING


def forecast(task: Task, fleet: Fleet, plan: CyclePlan, *, asks_each_cycle: bool) -> Forecast:
    """Return a forecast of a plan.

    With `asks_each_cycle` a learner that sleeps when a cycle begins gets no work in it, because it
    does not answer; otherwise its work waits for it.
    """
    step = -(-fleet.learners // MAX_LEARNERS)
    followed = np.arange(0, fleet.learners, step)
    fleet = _take(fleet, followed) if step > 1 else fleet
    cycles = _Cycles(task, fleet, plan.shards[followed], plan.updates[followed])
    return cycles.forecast(asks_each_cycle=asks_each_cycle)


class _Cycles:
    """The cycles of a run, one after another."""

    def __init__(self, task: Task, fleet: Fleet, shards: Ints, passes: Ints) -> None:
        self._task, self._fleet = task, fleet
        self._shards, self._passes = shards, passes
        self._cycles = min(task.cycles, MAX_CYCLES)
        changes = changes_of_run(fleet, self._cycles * task.deadline_s)
        self._sleep = SleepSpans(changes, fleet.learners)
        self._joins_s = np.where(fleet.present_at_start, 0.0, np.inf)
        # The first of several joins counts.
        joins = changes.select(changes.kinds == JOIN)
        np.minimum.at(self._joins_s, joins.learners, joins.at_s)
        self._leaves_s = departure_times_s(changes, fleet.learners)
        self._busy = np.flatnonzero((shards > 0) & (passes > 0))
        self._devices, self._costs = Devices(task, fleet), fleet.state_costs(task)
        self._least_finishing = 0.0 if fleet.variation.is_constant else task.caution
        durations = self._devices.durations(self._busy, np.ones(self._busy.size))
        self._history = CostHistory.from_benchmark(
            train_s=durations.sample_s * task.shard_samples,
            ship_s=durations.ship_s,
            down_s=durations.model_down_s,
            up_s=durations.model_up_s,
            rest_s=np.zeros(self._busy.size),
        )

    def forecast(self, *, asks_each_cycle: bool) -> Forecast:
        """Follow all cycles and return the means."""
        learners, weights = np.arange(self._fleet.learners), self._shards[self._busy]
        awake, finishing, in_time = [], [], []
        for cycle in range(self._cycles):
            began_s = np.full(learners.size, cycle * self._task.deadline_s)
            present = (self._joins_s <= began_s) & (self._leaves_s > began_s)
            wakes_s = self._sleep.end_s(learners, began_s, np.zeros(learners.size))
            is_awake = present & (wakes_s <= began_s)
            awake.append(is_awake.mean())
            stays = self._leaves_s > began_s + self._task.deadline_s
            planned = (stays & (is_awake if asks_each_cycle else present))[self._busy]
            finishes, arrives = self._train(cycle + 1, began_s[self._busy])
            if planned.any():
                finishing.append(max(finishes[planned].mean(), self._least_finishing))
                in_time.append(weights[planned & arrives].sum() / weights[planned].sum())
        shares = np.array(in_time)
        closed = shares >= self._task.quorum - ROUNDING
        return Forecast(
            awake_at_start=float(self._fleet.present_at_start.mean()),
            awake_on_average=float(np.mean(awake)),
            finishing=_mean(finishing),
            weight_in_time=_mean(in_time),
            cycles_in_time=_mean(closed),
        )

    def _train(self, cycle: int, began_s: Floats) -> tuple[Bools, Bools]:
        """Return which learners finish their shards if they do not halt, and who is in time."""
        task, busy = self._task, self._busy
        self._devices.enter(cycle, busy)
        clock, deadline_s = np.ones(busy.size), task.deadline_s
        durations = self._devices.durations(busy, clock)
        rates = self._devices.rates(busy, began_s, clock)
        down_s = rates.seconds("downlink", 0.0, durations.model_down_s, 1)
        shards, passes = self._shards[busy], self._passes[busy]
        missing = shards if task.mode == "parallelized" else np.zeros_like(shards)
        samples = shards * task.shard_samples
        work = Workload(shards, missing, samples, passes, np.zeros(busy.size))
        reserved_s = reserve_s(self._history, task, down_s)
        left_s = np.full(busy.size, deadline_s)
        done = cycle_timeline(durations, work, left_s, reserved_s, task, rates)
        self._history = self._history.after(up_s=np.where(done.visits > 0, done.up_s, np.nan))
        busy_s = done.down_s + done.fetch_s + done.setup_s + done.train_s + done.up_s
        ends_s = self._sleep.end_s(busy, began_s, busy_s)
        train_s = passes * samples * durations.sample_s
        noise_s = down_s - durations.model_down_s
        noise_s += rates.seconds("compute", down_s, train_s) - train_s
        planned_s = self._planned_s(cycle) + noise_s
        limit_s = deadline_s * (1 + ROUNDING)
        return np.asarray(planned_s <= limit_s), np.asarray(ends_s <= began_s + limit_s)

    def _planned_s(self, cycle: int) -> Floats:
        """Return how long the shards of each learner take in its state, as plans count."""
        costs = self._costs.in_states(self._fleet.states_in_cycle(cycle))
        train_s, ship_s, fixed_s = (costs[name] for name in ("train_s", "ship_s", "fixed_s"))
        seconds: Floats = fixed_s + self._shards * (ship_s + self._passes * train_s)
        return seconds[self._busy]


def _mean(shares: list[float] | NDArray[Any]) -> float:
    """Return the mean; 0 if no cycle had any work."""
    return float(np.mean(shares)) if len(shares) else 0.0


def _take(fleet: Fleet, learners: Ints) -> Fleet:
    """Return a fleet of these learners, in ascending order."""
    kept = np.isin(fleet.availability.traced.learners, learners)
    traced = fleet.availability.traced.select(kept)
    numbers = np.searchsorted(learners, traced.learners)
    availability: Availability = _take_columns(fleet.availability, learners)
    subset: Fleet = _take_columns(fleet, learners)
    return replace(
        subset,
        availability=replace(availability, traced=Changes(traced.at_s, numbers, traced.kinds)),
        noise=_take_columns(fleet.noise, learners),
        names=tuple(fleet.names[learner] for learner in learners.tolist()),
        discloses=tuple(fleet.discloses[learner] for learner in learners.tolist()),
    )


def _take_columns(table: Any, learners: Ints) -> Any:
    """Return a dataclass with these rows of all arrays."""
    columns = {column.name: getattr(table, column.name) for column in fields(table)}
    arrays = {name: v[learners] for name, v in columns.items() if isinstance(v, np.ndarray)}
    return replace(table, **arrays)
