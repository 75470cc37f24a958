"""Simulated learners for tests, without a driver."""

from typing import Any

import numpy as np

from melisma.fleet.fleet import Fleet
from melisma.simulation.churn import SleepSpans
from melisma.simulation.learners.simulated_learners import SimulatedLearners
from tests.simulation.scenarios import make_scenario


def make_learners(fleet: Fleet, **settings: Any) -> SimulatedLearners:
    scenario = make_scenario(fleet=fleet, **settings)
    sleep = SleepSpans(fleet.changes(scenario.horizon_s), fleet.learners)
    return SimulatedLearners(
        scenario.task,
        fleet,
        scenario.local_shard_samples.counts,
        sleep,
        lambda ids, _: np.ones(ids.size),
    )
