"""The state of all learners in virtual time, as columns by learner.

Each learner follows one instruction after another. It has a clock of its own, which may run too
fast or too slow, and which stands still while the device sleeps.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from melisma.allocation.schemes import get_scheme
from melisma.cycle.ragged import RaggedArray
from melisma.cycle.restarts import SAVE_S
from melisma.fleet.array_types import Bools, Floats, Ints
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task
from melisma.simulation.churn import SleepSpans
from melisma.simulation.learners.cost_histories import CostHistories
from melisma.simulation.learners.cost_reports import CostReports
from melisma.simulation.learners.devices import Devices, Durations
from melisma.simulation.learners.shard_caches import ShardCaches


class SimulatedLearners:
    """All learners of a run; `local_shards` counts the shards that lie on each device.

    `slowdown` returns the factor by which learners compute slower at a given time.
    """

    def __init__(
        self,
        task: Task,
        fleet: Fleet,
        local_shards: Ints,
        sleep: SleepSpans,
        slowdown: Callable[[Ints, Floats], Floats],
    ) -> None:
        count = fleet.learners
        self.task, self.local_shards, self.sleep = task, local_shards, sleep
        self.devices, self.noise, self._slowdown = Devices(task, fleet), fleet.noise, slowdown
        self.reports_costs = get_scheme(task.scheme).needs_with(task.passes) == "costs"
        self.histories = CostHistories(count)
        self.reports: CostReports | None = None  # where several tasks share the learners
        self.caches = ShardCaches(count, federated=task.mode == "federated")
        self.prefetching: tuple[Ints, RaggedArray] | None = None  # learners and their shards
        self.clock = np.ones(count)  # seconds that pass on the learner's clock in one second
        self.cold_start_s = fleet.noise.cold_start_s.copy()  # 0 after the first cycle
        self.last_instruction = np.zeros(count, np.int64)  # cycle and attempt in one number
        self.free_s = np.zeros(count)  # when the learner has followed its last instruction
        self.fetch_free_s = np.zeros(count)  # when the downlink is free
        self.ship_s = np.zeros(count)  # of the current cycle
        self.began_s = np.zeros(count)  # when the learner began its last assignment
        self.stalled_s = np.zeros(count)  # how long it waits for shards while it trains
        self.saved = np.zeros(count, np.int64)  # the instruction whose work was saved
        self.saved_s = np.zeros(count)  # how long it had been worked on then

    def set_length(self, deadline_s: float) -> None:
        """Set the length of this cycle, in a run that chooses it."""
        if self.task.total_s is not None:
            self.task = msgspec.structs.replace(self.task, deadline_s=deadline_s)

    def durations(self, learners: Ints, at_s: Floats) -> Durations:
        """Return durations as the learners' own clocks measure them."""
        slowdown = self._slowdown(learners, at_s)
        return self.devices.durations(learners, slowdown).on_clock(self.clock[learners])

    def report_costs(self, learners: Ints) -> Floats:
        """Return the costs that learners report."""
        if self.reports is not None:
            return self.reports.read(learners)
        return self.histories.read(learners).costs()

    def know_costs(self, learners: Ints) -> Bools:
        """Return which learners report costs without a benchmark."""
        if self.reports is None or not self.reports.are_present:
            return np.zeros(learners.size, np.bool_)
        return self.histories.measured[learners]

    def stop(self, learners: Ints, until_s: Floats, at_s: float) -> None:
        """End the work that would have kept these learners busy until `until_s`."""
        free_s = self.free_s[learners]
        self.free_s[learners] = np.where(free_s == until_s, at_s, free_s)

    def interrupt(self, learners: Ints, at_s: float) -> None:
        """Keep of the work of these learners what they have saved."""
        worked_s = np.minimum(at_s, self.free_s[learners]) - self.began_s[learners]
        saved_s = worked_s - worked_s % SAVE_S
        # Shards are fetched once: the learner will not wait for them again.
        self.saved_s[learners] = np.maximum(saved_s - self.stalled_s[learners], 0.0)
        self.saved[learners] = self.last_instruction[learners]

    def resume(self, learners: Ints, at_s: float) -> None:
        """Let learners follow their last instruction again, after what they have saved."""
        self._start(learners, at_s)

    def restart(self, learners: Ints, at_s: float) -> None:
        """Clear the state of these learners, but for the shards on their disks."""
        self.histories.clear(learners)
        self.saved[learners] = 0
        self._start(learners, at_s)

    def _start(self, learners: Ints, at_s: float) -> None:
        """Start the processes of these learners."""
        self.last_instruction[learners] = 0
        self.free_s[learners] = at_s
        self.cold_start_s[learners] = self.noise.cold_start_s[learners]
