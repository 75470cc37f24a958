"""The steps of a service whose tasks train, are late, are guarded and are cancelled at random."""

import numpy as np

from melisma.runs.service_progress import ServiceStep
from melisma.service import events
from tests.service.scripted_service import LEARNERS, ScriptedService, task


def random_steps(seed: int, cycles: int = 4) -> list[ServiceStep]:
    """Return the steps of a run of three tasks with budgets."""
    rng = np.random.default_rng(seed)
    service = ScriptedService(budget=60.0, price=rng.uniform(0.5, 2.0, LEARNERS))
    for number in range(3):
        budget = None if rng.random() < 0.3 else float(rng.uniform(20.0, 80.0))
        service.queue(0.0, number, task(f"task {number}", 8, extension=False, budget=budget))
    at_s = 1.0
    for cycle in range(1, cycles + 1):
        for number in range(3):
            record = service.machine.state.tasks[number]
            if record.is_live and not record.in_cycle:
                service.request(at_s, number, cycle=cycle)
        service.send(events.TimeReached(at_s=at_s + 10.0))
        for number in range(3):
            if service.machine.state.tasks[number].in_cycle:
                _end_cycle(service, rng, number, at_s + 11.0)
        at_s += 12.0
    return [ServiceStep(event, issued) for event, issued in service.trace]


def _end_cycle(
    service: ScriptedService, rng: np.random.Generator, number: int, at_s: float
) -> None:
    """End the cycle of a task: with late, partial and guarded updates, or cancel the task."""
    if rng.random() < 0.1:
        service.send(events.TaskEnded(at_s=at_s, number=number, outcome="cancelled"))
        return
    record = service.machine.state.tasks[number]
    learners = [learner for cycle, learner in record.account.grants if cycle == record.cycle]
    late = [learner for learner in learners if rng.random() < 0.2]
    service.end_cycle(at_s, number, lambda _, shards: int(rng.integers(shards + 1)), late)
    guarded = {learner: 0.0 for learner in learners if learner not in late and rng.random() < 0.1}
    if rng.random() < 0.9:
        service.average(at_s, number, guarded)
