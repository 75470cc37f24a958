"""What things really take on each device: by its figures, and its state in the cycle."""

from dataclasses import dataclass

import numpy as np

from melisma.cycle.events import Floats
from melisma.cycle.ragged import Ints
from melisma.fleet.fleet import Fleet
from melisma.fleet.states import states_in
from melisma.fleet.task import Task


@dataclass(frozen=True, eq=False)
class Durations:
    """Seconds to train a sample once, to fetch a shard, and to carry the model one way."""

    sample_s: Floats
    ship_s: Floats
    carry_s: Floats

    def on_clock(self, clock: Floats) -> "Durations":
        """As clocks measure it on which so many seconds pass in one."""
        return Durations(self.sample_s * clock, self.ship_s * clock, self.carry_s * clock)


class Devices:
    """All devices of a fleet at one task, each in the state of the cycle that it entered last."""

    def __init__(self, task: Task, fleet: Fleet) -> None:
        self._task, self._fleet = task, fleet
        self._sample_s = fleet.sample_seconds(task)
        self._state = fleet.states_in(0)

    def enter(self, cycle: int, who: Ints) -> None:
        """These begin that cycle."""
        if self._fleet.states.shape[1] > 1:
            fleet = self._fleet
            self._state[who] = states_in(cycle, fleet.states[who], fleet.seed, who)

    def durations(self, who: Ints, slowed: Floats) -> Durations:
        """What things take now, with compute slowed by so many times."""
        task, fleet, state = self._task, self._fleet, self._state[who]
        bits_per_s = fleet.bandwidth_bps[who] * fleet.bandwidth_left[who, state]
        latency_s = fleet.latency_s[who]
        federated = task.mode == "federated"
        ship_s = np.zeros(who.size) if federated else latency_s + 8 * task.shard_bytes / bits_per_s
        return Durations(
            self._sample_s[who] / fleet.compute_left[who, state] * slowed,
            ship_s,
            latency_s + 8 * task.model_bytes / bits_per_s,
        )
