"""The energy that work draws from batteries; an empty battery stops its device until it is charged.

Fleets without limited batteries draw nothing.
"""

from functools import partial

import numpy as np

from melisma.fleet.array_types import NO_INTS, Bools, Floats, Ints
from melisma.simulation.batteries import Batteries
from melisma.simulation.churn import BATTERY, Churn
from melisma.simulation.kernel import EventQueue
from melisma.simulation.learners.simulated_updates import SimulatedUpdates
from melisma.simulation.scenario import Scenario


class EnergyUse:
    """The energy of the work of one run; `churn` stops and starts devices."""

    def __init__(self, scenario: Scenario, queue: EventQueue, churn: Churn) -> None:
        self._task, self._fleet = scenario.task, scenario.fleet
        self._queue, self._churn = queue, churn
        battery = scenario.fleet.availability.battery
        self._batteries = Batteries(battery) if battery.is_limited else None

    def draw(self, updates: SimulatedUpdates) -> Ints:
        """Draw the energy of work that begins; return the learners whose battery it empties."""
        if self._batteries is None:
            return NO_INTS
        task, fleet, learners = self._task, self._fleet, updates.learners
        size_bytes = 2 * task.model_bytes + task.shard_bytes * updates.shipped
        joules = fleet.sample_j[learners] * updates.visits + fleet.byte_j[learners] * size_bytes
        empty = self._batteries.draw(learners, joules, self._queue.now_s, updates.arrives_s)
        self._schedule_empty(self._batteries, empty)
        return empty

    def draw_for_shards(self, learners: Ints, shards: Ints, stops_s: Floats) -> Ints:
        """Draw the energy to fetch further shards; return the learners whose battery it empties."""
        if self._batteries is None:
            return NO_INTS
        joules = self._fleet.byte_j[learners] * self._task.shard_bytes * shards
        empty = self._batteries.draw_more(learners, joules, stops_s)
        self._schedule_empty(self._batteries, empty)
        return empty

    def stop(self, learners: Ints) -> None:
        """Stop drawing energy for work that ended early."""
        if self._batteries is not None:
            self._batteries.stop(learners, self._queue.now_s)

    @property
    def ran_empty(self) -> Bools:
        """The learners whose battery was empty at least once."""
        if self._batteries is None:
            return np.zeros(self._fleet.learners, np.bool_)
        return self._batteries.ran_empty

    def _schedule_empty(self, batteries: Batteries, learners: Ints) -> None:
        """Stop these learners at the heartbeat after their battery is empty."""
        at_s = batteries.empty_s[learners]
        order = np.argsort(at_s, kind="stable")
        stop = partial(self._stop_empty, batteries)
        self._churn.schedule_at_heartbeats(at_s[order], learners[order], stop)

    def _stop_empty(self, batteries: Batteries, learners: Ints) -> None:
        """Stop learners whose battery is empty, until it is charged."""
        now_s = self._queue.now_s
        empty = np.sort(batteries.take_empty(learners, now_s))
        self._churn.block(BATTERY, "battery empty", empty)
        charged_s = now_s + batteries.recharge_s(empty)
        for at_s in np.unique(charged_s[np.isfinite(charged_s)]).tolist():
            charged = empty[charged_s == at_s]
            self._queue.schedule(at_s, partial(self._churn.unblock, BATTERY, charged))
