"""What one learner knows of its costs in each of its operating states, and reports of them.

Only schemes that plan several tasks need them; `cycle.state_costs` decides what is reported.
"""

import numpy as np

from melisma.allocation.schemes import CostsIn
from melisma.cycle.learner import CostHistory
from melisma.cycle.state_costs import mean_history, report_weights
from melisma.fleet.array_types import Floats
from melisma.fleet.observed_states import ObservedStates
from melisma.live.learner.device import Device
from melisma.live.learner.saved_costs import SavedStates, decode_history, encode_history

FIRST = np.zeros(1, np.int64)


class StateReports:
    """The costs of one learner in each state; `saved` are those of an earlier process."""

    def __init__(
        self,
        device: Device,
        costs_in: CostsIn,
        saved: SavedStates | None = None,
    ) -> None:
        self._device, self._costs_in = device, costs_in
        self._observed = ObservedStates(device.probability, device.probability_source)
        self.histories: dict[int, CostHistory] = {}
        self.measured_in = device.state
        if saved is not None and len(saved.counts) == len(device.states):
            self.measured_in = saved.measured_in
            self.histories = {n: decode_history(rows) for n, rows in saved.histories.items()}
            self._observed.counts[0] = saved.counts
            self._observed.counted_in[0] = saved.counted_in

    @property
    def needs_benchmark(self) -> bool:
        """Whether the next report takes a benchmark: costs of a known state do not."""
        return self._costs_in != "present" or not self.histories

    def states_to_measure(self) -> list[int]:
        """Return the states in which to measure: all that occur, or the present one."""
        if self._costs_in == "measured":
            return [self._device.state]
        return [n for n, state in enumerate(self._device.states) if state.probability > 0]

    def enter(self, cycle: int) -> None:
        """Count the present state, in which the learner begins its work of a cycle."""
        self._observed.count(cycle, FIRST, np.array([self._device.state]))

    def record_benchmark(self, history: CostHistory) -> None:
        """Record the costs measured in the present state."""
        self.measured_in = self._device.state
        self.histories[self._device.state] = history

    def update(self, **seconds: float) -> None:
        """Correct the costs in the present state by those of a cycle, unless they stay measured."""
        state = self._device.state
        if self._costs_in != "measured" and state in self.histories:
            self.histories[state] = self.histories[state].after(**seconds)

    def costs(self, next_cycle: int) -> Floats:
        """Return the costs to report before a cycle: costs by parts."""
        present = np.array([self._device.state_in(next_cycle)])
        weights = report_weights(
            self._costs_in,
            self._observed.probability(FIRST),
            np.array([self.measured_in]),
            present,
        )
        known = [self.histories.get(n) for n in range(len(self._device.states))]
        # The weight of a state that was not measured is 0.
        some = self.histories[self.measured_in]
        table = mean_history([history or some for history in known], weights).costs()
        return np.asarray(table[..., 0])

    def save(self) -> SavedStates:
        """Return all that a successor needs."""
        return SavedStates(
            {state: encode_history(history) for state, history in self.histories.items()},
            self.measured_in,
            tuple(self._observed.counts[0].tolist()),
            int(self._observed.counted_in[0]),
        )
