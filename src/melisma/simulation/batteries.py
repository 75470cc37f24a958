"""Batteries of simulated devices: work drains them, and an empty one takes its device away.

The energy of an update is that of its visits and its transfers. It is taken from the battery when
the update arrives, so that a device leaves after the cycle that empties its battery. It comes back
when `RESUME_CHARGE` of the battery is charged.
"""

import numpy as np

from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.availability import BatteryLimits

RESUME_CHARGE = 0.5


class Batteries:
    """The charge of each device, full at the start; a device without a battery is never empty."""

    def __init__(self, battery: BatteryLimits) -> None:
        self._capacity_j, self._recharge_w = battery.capacity_j, battery.recharge_w
        self._charge_j = battery.capacity_j.copy()
        self._at_s = np.zeros(battery.capacity_j.size)

    def use(self, learners: Ints, joules: Floats, at_s: Floats) -> Ints:
        """Take energy from batteries; return the learners whose battery is empty now."""
        charged_j = self._recharge_w[learners] * np.maximum(at_s - self._at_s[learners], 0.0)
        full_j = self._capacity_j[learners]
        left_j = np.minimum(self._charge_j[learners] + charged_j, full_j) - joules
        self._charge_j[learners] = np.maximum(left_j, 0.0)
        self._at_s[learners] = at_s
        empty: Ints = learners[left_j <= 0.0]
        return empty

    def recharge_s(self, learners: Ints) -> Floats:
        """Return how long empty batteries take to be charged; infinite without a charger."""
        rate_w = self._recharge_w[learners]
        wanted_j = RESUME_CHARGE * self._capacity_j[learners]
        never_s = np.full(learners.size, np.inf)
        seconds: Floats = np.divide(wanted_j, rate_w, out=never_s, where=rate_w > 0)
        return seconds
