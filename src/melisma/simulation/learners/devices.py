"""How long work really takes on each device, given its figures, its operating state and noise."""

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.fleet import Fleet, shard_transfer_s, transfer_s
from melisma.fleet.states import cycle_states
from melisma.fleet.task import Task
from melisma.fleet.variation import Resource, VaryingLearners


@dataclass(frozen=True, eq=False)
class Durations:
    """Seconds to train a sample once, to fetch a shard or the model, and to upload an update."""

    sample_s: Floats
    ship_s: Floats
    model_down_s: Floats
    model_up_s: Floats

    def on_clock(self, rate: Floats) -> "Durations":
        """Return the durations as measured by clocks that run `rate` times too fast."""
        return Durations(*(getattr(self, column.name) * rate for column in fields(self)))


class Rates(Protocol):
    """How the durations of some learners change during a cycle.

    `after_s` are the seconds since each learner began. The latencies of a number of `transfers`
    are part of their work, and take the same time at any rate.
    """

    def seconds(
        self, resource: Resource, after_s: float | Floats, work_s: Floats, transfers: int | Ints = 0
    ) -> Floats:
        """Return how long work takes that takes `work_s` seconds at the mean rate."""

    def work_s(
        self, resource: Resource, after_s: float | Floats, span_s: Floats, transfers: int | Ints = 0
    ) -> Floats:
        """Return the work, in seconds at the mean rate, that is done in `span_s` seconds."""

    def unit_s(
        self, resource: Resource, after_s: float | Floats, unit_s: Floats, units: int | Ints
    ) -> Floats:
        """Return how long each of several equal units takes on average; shards have a latency."""


class ConstantRates:
    """Rates of learners whose durations do not change."""

    def seconds(
        self,
        _resource: Resource,
        _after_s: float | Floats,
        work_s: Floats,
        _transfers: int | Ints = 0,
    ) -> Floats:
        """Return `work_s`."""
        return work_s

    def work_s(
        self,
        _resource: Resource,
        _after_s: float | Floats,
        span_s: Floats,
        _transfers: int | Ints = 0,
    ) -> Floats:
        """Return `span_s`."""
        return span_s

    def unit_s(
        self, _resource: Resource, _after_s: float | Floats, unit_s: Floats, _units: int | Ints
    ) -> Floats:
        """Return `unit_s`."""
        return unit_s


@dataclass(frozen=True, eq=False)
class VaryingRates:
    """Rates of learners with noise or traces; seconds are those of their clocks.

    Sleep is left out: rates go on as if the device had been awake since it began.
    """

    varying: VaryingLearners
    began_s: Floats
    clock: Floats
    latency_s: Floats

    def seconds(
        self, resource: Resource, after_s: float | Floats, work_s: Floats, transfers: int | Ints = 0
    ) -> Floats:
        """Return the latencies and the time of the rest of the work at the rates that follow."""
        latency_s = self.latency_s * self.clock * transfers
        left_s = np.maximum(work_s - latency_s, 0.0) / self.clock
        begin_s = self._run_s(after_s + latency_s)
        took_s = self.varying.seconds(resource, begin_s, left_s)
        return latency_s + took_s * self.clock

    def work_s(
        self, resource: Resource, after_s: float | Floats, span_s: Floats, transfers: int | Ints = 0
    ) -> Floats:
        """Return the latencies in the span and the work that is done in the rest of it."""
        latency_s = np.clip(span_s, 0.0, self.latency_s * self.clock * transfers)
        left_s = np.maximum(span_s - latency_s, 0.0) / self.clock
        begin_s = self._run_s(after_s + latency_s)
        done_s = self.varying.work_s(resource, begin_s, left_s)
        return latency_s + done_s * self.clock

    def unit_s(
        self, resource: Resource, after_s: float | Floats, unit_s: Floats, units: int | Ints
    ) -> Floats:
        """Return the mean over all units, or over one where there are none."""
        count = np.maximum(units, 1)
        transfers = 0 if resource == "compute" else count
        return self.seconds(resource, after_s, unit_s * count, transfers) / count

    def _run_s(self, after_s: Floats) -> Floats:
        """Return the run's time at which the learners' clocks have advanced by `after_s`."""
        return np.asarray(self.began_s + after_s / self.clock)


CONSTANT_RATES = ConstantRates()


class Devices:
    """All devices of a fleet, each in the operating state of the last cycle that it entered."""

    def __init__(self, task: Task, fleet: Fleet) -> None:
        self._task, self._fleet = task, fleet
        self._sample_s = fleet.sample_seconds(task)
        self._state = fleet.states_in_cycle(0)
        self._variation = fleet.variation
        self._levels_bps = np.inf, np.inf
        self.share_link(np.flatnonzero(fleet.present_at_start))

    @property
    def latency_s(self) -> Floats:
        """The latency of each device."""
        return self._fleet.latency_s

    def share_link(self, learners: Ints) -> None:
        """Let these learners, and no others, share the link of the orchestrator from now on."""
        fleet = self._fleet
        if fleet.orchestrator.is_limited:
            self._levels_bps = fleet.orchestrator.levels_bps(
                fleet.downlink_bps, fleet.uplink_bps, learners
            )

    def enter(self, cycle: int, learners: Ints) -> None:
        """Draw the operating state of these learners for a cycle."""
        fleet = self._fleet
        if fleet.state_probability.shape[1] > 1:
            self._state[learners] = cycle_states(
                cycle, fleet.state_probability[learners], fleet.seed, learners
            )

    def rates(self, learners: Ints, began_s: Floats, clock: Floats) -> Rates:
        """Return how the durations of learners change that begin at `began_s`, on their clocks."""
        if self._variation.is_constant:
            return CONSTANT_RATES
        latency_s = self._fleet.latency_s[learners]
        return VaryingRates(self._variation.of(learners), began_s, clock, latency_s)

    def states(self, learners: Ints) -> Ints:
        """Return the operating state of each learner."""
        states: Ints = self._state[learners]
        return states

    def durations(
        self, learners: Ints, slowdown: Floats | float, states: Ints | None = None
    ) -> Durations:
        """Return durations at mean rates, with compute slower by the factor `slowdown`.

        They are those of each learner's own state, unless `states` are given.
        """
        task, fleet = self._task, self._fleet
        state = self._state[learners] if states is None else states
        bandwidth = fleet.state_bandwidth[learners, state]
        down_bps, up_bps = (
            np.minimum(bps[learners] * bandwidth, level_bps)
            for bps, level_bps in zip(
                (fleet.downlink_bps, fleet.uplink_bps), self._levels_bps, strict=True
            )
        )
        latency_s = fleet.latency_s[learners]
        return Durations(
            sample_s=self._sample_s[learners] / fleet.state_compute[learners, state] * slowdown,
            ship_s=shard_transfer_s(task, down_bps, latency_s),
            model_down_s=transfer_s(task.model_bytes, down_bps, latency_s),
            model_up_s=transfer_s(task.model_bytes, up_bps, latency_s),
        )
