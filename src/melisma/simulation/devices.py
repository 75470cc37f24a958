"""How long work really takes on each device, given its figures and its operating state."""

from dataclasses import dataclass, fields

import numpy as np

from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.fleet import Fleet
from melisma.fleet.states import cycle_states
from melisma.fleet.task import Task


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


class Devices:
    """All devices of a fleet, each in the operating state of the last cycle that it entered."""

    def __init__(self, task: Task, fleet: Fleet) -> None:
        self._task, self._fleet = task, fleet
        self._sample_s = fleet.sample_seconds(task)
        self._state = fleet.states_in_cycle(0)

    def enter(self, cycle: int, learners: Ints) -> None:
        """Draw the operating state of these learners for a cycle."""
        fleet = self._fleet
        if fleet.state_probability.shape[1] > 1:
            self._state[learners] = cycle_states(
                cycle, fleet.state_probability[learners], fleet.seed, learners
            )

    def durations(self, learners: Ints, slowdown: Floats) -> Durations:
        """Return current durations, with compute slower by the factor `slowdown`."""
        task, fleet, state = self._task, self._fleet, self._state[learners]
        bandwidth = fleet.state_bandwidth[learners, state]
        down_bps, up_bps = (
            bps[learners] * bandwidth for bps in (fleet.downlink_bps, fleet.uplink_bps)
        )
        latency_s = fleet.latency_s[learners]
        ship_s = np.zeros(learners.size)
        if task.mode == "parallelized":
            ship_s = latency_s + 8 * task.shard_bytes / down_bps
        return Durations(
            self._sample_s[learners] / fleet.state_compute[learners, state] * slowdown,
            ship_s,
            latency_s + 8 * task.model_bytes / down_bps,
            latency_s + 8 * task.model_bytes / up_bps,
        )
