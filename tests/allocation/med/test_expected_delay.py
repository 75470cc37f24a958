"""The law of uncertainty: on expected costs, MED is never above a plan for the costs of one state.

MMTT-Uncertain plans with the costs of the state in which each learner was measured. On the same
draw its plan is one of those that MED chooses from, if it meets the deadlines on expected costs.
"""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from melisma.allocation import build_shared_problem
from melisma.allocation.med import med
from melisma.allocation.shared_problem import SharedPlan, SharedProblem
from melisma.errors import InfeasibleError
from melisma.fleet import read_fleet, read_task
from tests.allocation.med.problems import change
from tests.lanes import cases

EXAMPLES = [f"examples/med/{name}.toml" for name in ("mnist-ff", "mnist-cn", "fashion")]
FLEET = "examples/med/FLEET.toml"


def draw(seed: int) -> tuple[SharedProblem, SharedProblem]:
    """Return a random problem with expected costs, and with those of one state of each learner."""
    rng = np.random.default_rng(seed)
    tasks, states = int(rng.integers(1, 4)), int(rng.integers(2, 4))
    learners = int(rng.integers(tasks, 8))
    state = rng.dirichlet(np.full(states, 0.7), learners)
    fixed_s = rng.uniform(0.1, 4.0, (tasks, learners, states))
    shard_s = rng.uniform(0.1, 3.0, (tasks, learners, states))
    shards = rng.integers(learners, 4 * learners + 1, tasks)
    price = rng.uniform(0.1, 1.5, learners)
    expected = SharedProblem(
        fixed_s=(state * fixed_s).sum(axis=2),
        shard_s=(state * shard_s).sum(axis=2),
        shards=shards,
        deadline_s=rng.uniform(5.0, 80.0, tasks),
        price=price,
        budget=float(price.mean() * shards.sum() * rng.choice([0.9, 1.1, np.inf])),
    )
    measured = np.array([rng.choice(states, p=row) for row in state])
    at = np.s_[:, np.arange(learners), measured]
    return expected, change(expected, fixed_s=fixed_s[at], shard_s=shard_s[at])


def delay_s(plan: SharedPlan, problem: SharedProblem) -> float:
    """Return the sum of the tasks' seconds of a plan on the costs of a problem."""
    return float(problem.seconds(plan.shards).max(axis=1).sum())


def is_in_time(plan: SharedPlan, problem: SharedProblem) -> bool:
    return bool(np.all(problem.seconds(plan.shards).max(axis=1) <= problem.deadline_s))


@settings(max_examples=cases(800), deadline=None)
@given(st.integers(0, 2**63 - 1))
def test_on_expected_costs_med_is_never_above_mmtt_uncertain(seed: int) -> None:
    expected, measured = draw(seed)
    try:
        uncertain = med(measured)
    except InfeasibleError:
        assume(False)
    assume(is_in_time(uncertain, expected))
    plan = med(expected)
    assert plan.total_s == pytest.approx(delay_s(plan, expected))
    assert plan.total_s <= delay_s(uncertain, expected) * (1 + 1e-9)


@pytest.mark.parametrize("learners", [4, 7, 10])
def test_the_law_holds_in_the_setting_of_the_thesis_and_med_is_often_below(learners: int) -> None:
    tasks = [read_task(path) for path in EXAMPLES]
    below = compared = 0
    for seed in range(cases(40)):
        fleet = read_fleet(FLEET, learners, seed)
        costs = [fleet.state_costs(task) for task in tasks]
        measured = fleet.states_in_cycle(0)
        expected, uncertain = (
            build_shared_problem(tasks, each, fleet.price, fleet.budget)
            for each in ([c.mean() for c in costs], [c.in_states(measured) for c in costs])
        )
        ours_s, theirs = med(expected).total_s, med(uncertain)
        if is_in_time(theirs, expected):
            compared += 1
            assert ours_s <= delay_s(theirs, expected) * (1 + 1e-9)
            below += ours_s < delay_s(theirs, expected) * (1 - 1e-6)
    assert compared > 0
    assert 2 * below > compared
