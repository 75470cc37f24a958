"""Batteries of simulated devices: work drains them, and an empty one stops its device.

The energy of an assignment is that of its visits and its transfers, drawn evenly from its begin
until its update arrives. A device whose battery is empty before stops then, and its update is lost.
It comes back when `RESUME_CHARGE` of the battery is charged.
"""

import numpy as np

from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.availability import BatteryLimits

RESUME_CHARGE = 0.5


class Batteries:
    """The charge of each device, full at the start; a device without a battery is never empty.

    The charge is that at the end of the work under way, and below 0 if that empties the battery.
    """

    def __init__(self, battery: BatteryLimits) -> None:
        learners = battery.capacity_j.size
        self._capacity_j, self._recharge_w = battery.capacity_j, battery.recharge_w
        self._charge_j = battery.capacity_j.copy()
        self._began_s, self._ends_s, self._work_j = np.zeros((3, learners))
        self.empty_s = np.full(learners, np.inf)  # when the work under way empties the battery
        self.ran_empty = np.zeros(learners, np.bool_)

    def draw(self, learners: Ints, joules: Floats, from_s: float, until_s: Floats) -> Ints:
        """Draw the energy of work after earlier work; return the learners that it empties."""
        began_s = np.maximum(from_s, self._ends_s[learners])
        ends_s = np.maximum(np.where(np.isfinite(until_s), until_s, began_s), began_s)
        rate_w, full_j = self._recharge_w[learners], self._capacity_j[learners]
        idle_j = rate_w * (began_s - self._ends_s[learners])
        before_j = np.minimum(self._charge_j[learners] + idle_j, full_j)
        span_s = ends_s - began_s
        after_j = np.minimum(before_j + rate_w * span_s - joules, full_j)
        self._charge_j[learners], self._work_j[learners] = after_j, joules
        self._began_s[learners], self._ends_s[learners] = began_s, ends_s
        rows = np.flatnonzero(after_j < 0.0)
        left_j = np.maximum(before_j[rows], 0.0)
        lasts_s = span_s[rows] * left_j / (left_j - after_j[rows])
        self._set_empty(learners[rows], began_s[rows] + lasts_s)
        return learners[rows]

    def draw_more(self, learners: Ints, joules: Floats, at_s: Floats) -> Ints:
        """Draw further energy of the work under way; return the learners empty at `at_s` by it."""
        self._charge_j[learners] -= joules
        self._work_j[learners] += joules
        rows = np.flatnonzero((self._charge_j[learners] < 0.0) & (joules > 0.0))
        self._set_empty(learners[rows], at_s[rows])
        return learners[rows]

    def _set_empty(self, learners: Ints, at_s: Floats) -> None:
        self.empty_s[learners] = np.minimum(self.empty_s[learners], at_s)

    def stop(self, learners: Ints, now_s: float) -> None:
        """End work under way: the energy that it has not drawn yet stays in the battery."""
        learners = learners[self._ends_s[learners] > now_s]
        began_s, ends_s = np.maximum(self._began_s[learners], now_s), self._ends_s[learners]
        share = (ends_s - began_s) / (ends_s - self._began_s[learners])
        unused_j = share * self._work_j[learners] - self._recharge_w[learners] * (ends_s - began_s)
        charge_j = np.maximum(self._charge_j[learners] + unused_j, 0.0)
        self._charge_j[learners] = np.minimum(charge_j, self._capacity_j[learners])
        self._ends_s[learners] = now_s
        self.empty_s[learners] = np.inf

    def take_empty(self, learners: Ints, now_s: float) -> Ints:
        """Return those of these learners whose battery is empty by now, and begin to charge it."""
        empty = learners[self.empty_s[learners] <= now_s]
        self._charge_j[empty], self._ends_s[empty] = 0.0, now_s
        self.empty_s[empty] = np.inf
        self.ran_empty[empty] = True
        return empty

    def recharge_s(self, learners: Ints) -> Floats:
        """Return how long empty batteries take to be charged; infinite without a charger."""
        rate_w = self._recharge_w[learners]
        wanted_j = RESUME_CHARGE * self._capacity_j[learners]
        never_s = np.full(learners.size, np.inf)
        seconds: Floats = np.divide(wanted_j, rate_w, out=never_s, where=rate_w > 0)
        return seconds
