"""The input of one simulated run: a task on a fleet, the data on each device, and the faults."""

from dataclasses import dataclass, replace

import numpy as np

from melisma.cycle import events
from melisma.cycle.learner import MAX_ABSENCE_S
from melisma.cycle.ragged import NO_ROWS, RaggedArray
from melisma.fleet.array_types import NO_INTS, Ints
from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator
from melisma.fleet.task import Task
from melisma.simulation.fault_sources import draw_faults, draw_orchestrator_faults
from melisma.simulation.faults import Fault


@dataclass(frozen=True, eq=False)
class Scenario:
    """Everything that determines a run in virtual time.

    `local_shard_samples` are the samples of each shard on each device in federated learning. A
    `shared` task shares its learners with others; churn is then drawn for `until_s` seconds.
    """

    run: str
    task: Task
    fleet: Fleet
    local_shard_samples: RaggedArray = NO_ROWS
    faults: tuple[Fault, ...] = ()
    shared: bool = False
    until_s: float | None = None

    @property
    def shard_samples(self) -> Ints:
        """Samples of each shard that the orchestrator has; the last shard may be short."""
        task = self.task
        if task.mode == "federated":
            return NO_INTS
        sizes = np.full(task.shards, task.shard_samples)
        sizes[-1] = task.samples - (task.shards - 1) * task.shard_samples
        return sizes

    def submission(self) -> events.TaskSubmitted:
        """Return the first event of the run."""
        fleet = self.fleet
        return events.TaskSubmitted(
            at_s=0.0,
            run=self.run,
            task=self.task,
            learner_count=int(fleet.present_at_start.sum()),
            shard_samples=self.shard_samples,
            names=fleet.names,
            rates=np.array([fleet.price, fleet.sample_j, fleet.byte_j]),
            absence_s=MAX_ABSENCE_S,
            ends_s=self.task.total_s,
            shared=self.shared,
            secret=draw_secret(self.task),
        )

    @property
    def horizon_s(self) -> float:
        """The time until which churn is drawn; few runs take longer."""
        if self.until_s is not None:
            return self.until_s
        return 4 * self.task.expected_s + 40 * self.task.deadline_s


def draw_secret(task: Task) -> str:
    """Return the secret of a run whose updates are checked; simulated learners cannot read it."""
    if task.verify != "audit":
        return ""
    return generator(task.seed, "verification").bytes(16).hex()


def even_local_shard_samples(task: Task, fleet: Fleet) -> RaggedArray:
    """Return the samples of each shard on each device; the last one of a device may be short."""
    local_samples = fleet.local_samples(task)
    if task.mode == "parallelized":
        return NO_ROWS
    counts = -(-local_samples // task.shard_samples)
    sizes = np.full(int(counts.sum()), task.shard_samples)
    has_data = counts > 0
    last = np.cumsum(counts)[has_data] - 1
    sizes[last] = (local_samples - (counts - 1) * task.shard_samples)[has_data]
    return RaggedArray(counts, sizes)


def with_mixed_faults(scenario: Scenario, seed: int, *, disk: bool) -> Scenario:
    """Return the scenario with faults of learners, of the orchestrator and, with `disk`, of it."""
    task, fleet = scenario.task, scenario.fleet
    faults = draw_orchestrator_faults(seed, task, fleet, disk=disk)
    # Some schedules leave the learners alone, so that they have to finish as planned.
    of_learners = draw_faults(seed, task, fleet) if not faults or seed % 3 else ()
    return replace(scenario, faults=(*of_learners, *faults))


def with_random_faults(scenario: Scenario, seed: int) -> Scenario:
    """Return the scenario with faults drawn from a seed."""
    return replace(scenario, faults=draw_faults(seed, scenario.task, scenario.fleet))
