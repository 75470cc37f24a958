"""Faults of the devices themselves: slowness, and updates that are none."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from melisma.cycle.events import Floats
from melisma.cycle.ragged import Ints
from melisma.simulation.faults import Fault


class Slowness:
    """How many times slower learners compute at an instant than they should."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = [fault for fault in faults if fault.kind == "slow"]

    def __call__(self, who: Ints, at_s: Floats) -> Floats:
        slowed = np.ones(who.size)
        for fault in self._faults:
            end_s = fault.at_s + (fault.for_s or 0.0)
            hit = np.isin(who, fault.learners) & (at_s >= fault.at_s) & (at_s < end_s)
            slowed[hit] *= fault.by
        return slowed


class Corruption:
    """Which updates hold what is no number; they are counted as they arrive."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        corrupt = [fault for fault in faults if fault.kind == "corrupt"]
        self._hit = {(learner, fault.nth) for fault in corrupt for learner in fault.learners}
        self._seen: Counter[int] = Counter()

    def __call__(self, who: Ints, visits: Ints) -> NDArray[np.bool_]:
        corrupt = np.zeros(who.size, np.bool_)
        for place in np.flatnonzero(visits).tolist() if self._hit else ():
            learner = int(who[place])
            self._seen[learner] += 1
            corrupt[place] = (learner, self._seen[learner]) in self._hit
        return corrupt


def clock_rates(faults: Sequence[Fault], learners: int) -> Floats:
    """How many seconds pass on each learner's clock in one."""
    rates = np.ones(learners)
    for fault in faults:
        if fault.kind == "clock":
            rates[list(fault.learners)] *= fault.by
    return rates
