"""What is simulated: a task on a fleet, where the data lies, and what goes wrong."""

from dataclasses import dataclass, replace

import numpy as np

from melisma.cycle import events
from melisma.cycle.ragged import NO_ROWS, Ints, RaggedArray
from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator
from melisma.fleet.task import Task
from melisma.simulation.faults import Fault, parse_faults, random_faults


@dataclass(frozen=True, eq=False)
class Scenario:
    """All that a run in virtual time depends on.

    `own` are the samples of each shard on each device in federated learning.
    """

    run: str
    task: Task
    fleet: Fleet
    local_sizes: RaggedArray = NO_ROWS
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

    def submission(self) -> events.TaskSubmitted:
        """How the run begins."""
        fleet = self.fleet
        return events.TaskSubmitted(
            at_s=0.0,
            run=self.run,
            task=self.task,
            learners=int(fleet.present_at_start.sum()),
            samples=self.samples,
            names=fleet.names,
            rates=np.array([fleet.price, fleet.sample_j, fleet.byte_j]),
        )

    @property
    def horizon_s(self) -> float:
        """So far it is drawn who comes, goes and sleeps: few runs take longer."""
        return self.task.deadline_s * (4 * self.task.cycles + 40)


def local_shard_sizes(task: Task, fleet: Fleet) -> RaggedArray:
    """The samples of each shard on each device; the last shard of all may be short."""
    if task.mode == "parallelized":
        return NO_ROWS
    counts = fleet.own_shards(task)
    sizes = np.full(int(counts.sum()), task.shard_samples)
    sizes[-1] -= max(0, int(sizes.sum()) - task.samples)
    return RaggedArray(counts, sizes)


def parse_or_draw_faults(text: str, scene: Scenario) -> tuple[Fault, ...]:
    """Faults from words, or drawn by a number."""
    if text.isdecimal():
        return with_random_faults(scene, int(text)).faults
    return parse_faults(text, scene.fleet.learners)


def with_random_faults(scene: Scenario, seed: int) -> Scenario:
    """The scene with faults that a seed draws."""
    until_s = 1.2 * scene.task.deadline_s * scene.task.cycles
    rng = generator(seed, "faults")
    return replace(scene, faults=random_faults(rng, scene.fleet.learners, until_s))
