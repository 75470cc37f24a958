"""What is simulated: a task on a fleet, where the data lies, and what goes wrong."""

from dataclasses import dataclass

import numpy as np

from melisma.cycle.rows import NO_ROWS, Ints, Rows
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task
from melisma.simulation.faults import Fault


@dataclass(frozen=True, eq=False)
class Scene:
    """All that a run in virtual time depends on.

    `own` are the samples of each shard on each device in federated learning.
    """

    run: str
    task: Task
    fleet: Fleet
    own: Rows = NO_ROWS
    faults: tuple[Fault, ...] = ()

    @property
    def samples(self) -> Ints:
        """Of each shard that the orchestrator has; the last may be short."""
        task = self.task
        if task.mode == "federated":
            return np.empty(0, np.int64)
        sizes = np.full(task.shards, task.shard_samples)
        sizes[-1] = task.samples - (task.shards - 1) * task.shard_samples
        return sizes

    @property
    def longest_s(self) -> float:
        """No run takes longer: asking, training and its tail in each cycle, and asking again."""
        return self.task.deadline_s * (4 * self.task.cycles + 40)


def own_rows(task: Task, fleet: Fleet) -> Rows:
    """The samples of each shard on each device; the last shard of all may be short."""
    if task.mode == "parallelized":
        return NO_ROWS
    counts = fleet.own_shards(task)
    sizes = np.full(int(counts.sum()), task.shard_samples)
    sizes[-1] -= max(0, int(sizes.sum()) - task.samples)
    return Rows(counts, sizes)
