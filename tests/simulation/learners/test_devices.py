from typing import Any

import numpy as np
import pytest

from melisma.cycle import events
from melisma.simulation.learners.devices import Devices
from tests.simulation.scenarios import LEARNERS, make_fleet, make_scenario, make_task, run_steps

SLOW = [
    {"probability": 0.0, "compute": 1.0, "bandwidth": 1.0},
    {"probability": 1.0, "compute": 0.4, "bandwidth": 0.3},
]


@pytest.mark.parametrize("mode", ["parallelized", "federated"])
@pytest.mark.parametrize("states", [[], SLOW])
def test_durations_are_the_costs_that_plans_count_on(mode: str, states: Any) -> None:
    fleet, task = make_fleet([each | {"state": states} for each in LEARNERS]), make_task(mode=mode)
    devices, learners = Devices(task, fleet), np.arange(fleet.learners)
    devices.enter(1, learners)
    durations = devices.durations(learners, np.ones(fleet.learners))
    planned = fleet.state_costs(task).in_states(np.full(fleet.learners, len(states) // 2))
    assert durations.ship_s.tolist() == planned["ship_s"].tolist()
    assert (durations.model_down_s + durations.model_up_s).tolist() == planned["fixed_s"].tolist()
    train_s = task.shard_samples * durations.sample_s
    assert train_s.tolist() == pytest.approx(planned["train_s"].tolist())


def test_a_benchmark_reports_the_seconds_per_shard_that_plans_count_on() -> None:
    """The latency counts for each shard: each is one transfer."""
    slow = [each | {"latency_s": 0.2} for each in LEARNERS]
    scenario = make_scenario(fleet=make_fleet(slow), scheme="proportional", passes=1, cycles=1)
    reported: dict[int, float] = {}
    for step in run_steps(scenario):
        if isinstance(step.event, events.CostsReported):
            ship_s = step.event.costs[1, 0].tolist()
            reported = dict(zip(step.event.learners.tolist(), ship_s, strict=True)) | reported
    planned = scenario.fleet.ship_s(scenario.task)
    assert [reported[learner] for learner in range(3)] == pytest.approx(planned.tolist())
    assert (planned > 0.2).all()
