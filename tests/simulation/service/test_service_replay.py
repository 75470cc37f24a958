"""Random runs of several tasks: replaying the events of the service gives the same commands."""

from functools import cache
from typing import Any, get_args

import numpy as np
import pytest

import melisma
from melisma.allocation.schemes import SCHEMES
from melisma.fleet.task import Task
from melisma.runs.service_progress import SERVICE_STEPS, ServiceStep
from melisma.service import commands
from melisma.service.service_machine import ServiceMachine
from melisma.simulation import SimulationOptions
from melisma.simulation.service.service_simulation import prepare_tasks, run_tasks
from tests.lanes import cases
from tests.simulation.scenarios import make_task

SHARED = [row.name for row in SCHEMES.values() if row.problem == "shared"]
STATES = {"heat": 0.5, "compute": [1.0, 0.4, 0.9], "bandwidth": [1.0, 0.9, 0.3]}
PRICE = {"mean": 1.0, "sd": 0.5, "low": 0.1, "high": 1.5}
SEEDS = range(cases(64))


def random_tasks(rng: np.random.Generator, *, extension: bool) -> list[Task]:
    """Return tasks of random sizes; some need more than one round to themselves, or never fit."""
    return [
        make_task(
            name=f"task-{number}",
            scheme="med",
            passes=int(rng.integers(1, 4)),
            cycles=int(rng.integers(1, 3)),
            deadline_s=float(rng.uniform(4.0, 12.0)),
            sizes={"samples": 100 * int(rng.geometric(0.03) + 8)},
            extension=extension,
        )
        for number in range(rng.integers(2, 5))
    ]


def random_faults(rng: np.random.Generator, learners: int) -> str:
    faults = []
    for learner in range(1, learners):
        at_s = round(float(rng.uniform(1.0, 40.0)), 1)
        fault = rng.choice(["crash {} at {} for 3", "crash {} at {}", "vanish {} at {} for 4", ""])
        faults.append(str(fault).format(learner, at_s))
    return "; ".join(filter(None, faults))


@cache
def random_run(seed: int) -> list[ServiceStep]:
    """Return the steps of the service in a random run, which may end with failed tasks."""
    rng = np.random.default_rng([seed, 19])
    learners, extension = int(rng.integers(3, 7)), bool(rng.random() < 0.3)
    group: dict[str, Any] = {
        "name": "pi",
        "count": learners,
        "samples_per_s": 600.0,
        "bandwidth_bps": 20e6,
        "states": STATES,
        "price": PRICE,
    }
    given = random_tasks(rng, extension=extension)
    limited = not extension and rng.random() < 0.5
    budget = {"budget": float(rng.uniform(20.0, 150.0))} if limited else {}
    fleet = melisma.Fleet.from_tables(group=[group], seed=seed, **budget)
    options = SimulationOptions(
        scheme=SHARED[seed % len(SHARED)],
        work="timing",
        seed=seed,
        faults=random_faults(rng, learners),
    )
    submits_s = tuple(np.round(rng.uniform(0.0, 30.0, len(given)) * rng.integers(0, 2), 1).tolist())
    steps: list[ServiceStep] = []
    run_tasks(prepare_tasks(given, fleet, options, submits_s), watch_service=steps.append)
    return steps


@pytest.mark.parametrize("seed", SEEDS)
def test_replaying_the_events_of_a_random_run_gives_the_same_commands(seed: int) -> None:
    steps = random_run(seed)
    machine = ServiceMachine()
    assert any(isinstance(each, commands.PlanRound) for step in steps for each in step.commands)
    for step in steps:
        again = ServiceStep(step.event, machine.handle(step.event))
        assert SERVICE_STEPS.encode(again) == SERVICE_STEPS.encode(step)


def test_random_runs_reach_every_command_of_the_service() -> None:
    issued = [each for seed in SEEDS for step in random_run(seed) for each in step.commands]
    assert {type(each) for each in issued} == set(get_args(commands.AnyCommand))
