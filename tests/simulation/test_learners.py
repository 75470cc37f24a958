from typing import Any

import numpy as np

from melisma.cycle import commands
from melisma.fleet.fleet import Fleet
from melisma.simulation.churn import SleepSpans
from melisma.simulation.learners import SimulatedLearners, SimulatedUpdates
from tests.simulation.scenarios import LEARNERS, make_fleet, make_scenario


def make_learners(fleet: Fleet, **settings: Any) -> SimulatedLearners:
    scenario = make_scenario(fleet=fleet, **settings)
    sleep = SleepSpans(fleet.changes(scenario.horizon_s), fleet.learners)
    return SimulatedLearners(
        scenario.task, fleet, scenario.local_shards.counts, sleep, lambda ids, _: np.ones(ids.size)
    )


def test_shards_fetched_for_a_benchmark_are_fetched_once() -> None:
    slow = LEARNERS[0] | {"samples_per_s": 5.0}
    learners = make_learners(make_fleet([slow, LEARNERS[1]]), deadline_s=4.0, passes=5)
    ids, nothing = np.arange(2), np.zeros(2, np.int64)
    ask = commands.AskBound(reason="", learners=ids, cycle=1, deadline_s=4.0, held=nothing)
    _, bounds = learners.ask_bounds(ids, 0.0, ask, nothing)
    assert bounds[0] == 0 < bounds[1]
    # The learner with bound 0 repeats its benchmark, on the shards it holds.
    held = learners._held.between(0, 2)[0]
    assert learners._holds.tolist() == np.bincount(held).tolist() == [8, 8]


def make_updates(learners: int) -> SimulatedUpdates:
    """Updates whose phases have three axes, as many as a cost has parts; learners come first."""
    column, numbers = np.arange(learners), np.arange(learners, dtype=np.float64)
    phases = np.broadcast_to(numbers[:, None, None], (learners, 2, 5))
    costs = np.broadcast_to(numbers, (3, 3, learners))
    return SimulatedUpdates(
        indices=column,
        learners=column,
        stops_s=numbers,
        in_s=numbers,
        batches=column,
        visits=column,
        shipped=column,
        phases=phases,
        costs=costs,
        measured=column > 0,
    )


def test_updates_are_chosen_by_learner_whatever_the_axes_of_a_column() -> None:
    chosen = make_updates(4).take(np.array([1, 3]))
    assert chosen.phases.shape == (2, 2, 5)
    assert chosen.phases[:, 0, 0].tolist() == chosen.costs[0, 0].tolist() == [1.0, 3.0]


def test_updates_are_joined_by_learner_whatever_the_axes_of_a_column() -> None:
    joined = SimulatedUpdates.concatenate([make_updates(2), make_updates(3)])
    assert joined.phases.shape == (5, 2, 5)
    assert joined.phases[:, 0, 0].tolist() == joined.costs[0, 0].tolist() == [0, 1, 0, 1, 2]
