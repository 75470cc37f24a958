"""Laws that every scheme for several tasks keeps."""

import numpy as np
import pytest

from melisma.allocation.schemes import SCHEMES, Scheme
from melisma.allocation.shared_problem import SharedPlan, SharedProblem
from melisma.errors import InfeasibleError
from tests.lanes import cases

ROWS = [row for row in SCHEMES.values() if row.problem == "shared"]
every_scheme = pytest.mark.parametrize("scheme", ROWS, ids=lambda row: row.name)


def problem(rng: np.random.Generator) -> SharedProblem:
    tasks, learners = int(rng.integers(1, 4)), int(rng.integers(3, 9))
    return SharedProblem(
        fixed_s=rng.uniform(0.1, 2.0, (tasks, learners)),
        shard_s=rng.uniform(0.2, 3.0, (tasks, learners)),
        shards=rng.integers(learners, 3 * learners, tasks),
        deadline_s=rng.uniform(8.0, 60.0, tasks),
        price=rng.uniform(0.1, 1.5, learners),
        budget=float(rng.uniform(0.6, 1.5)) * 2 * learners * tasks,
    )


def planned(scheme: Scheme, whole: SharedProblem) -> SharedPlan | None:
    try:
        plan = scheme.plan(whole)
    except InfeasibleError:
        return None
    assert isinstance(plan, SharedPlan)
    return plan


@every_scheme
def test_a_plan_keeps_deadlines_budget_and_one_task_each(scheme: Scheme) -> None:
    rng, found = np.random.default_rng(8), 0
    for whole in (problem(rng) for _ in range(cases(40))):
        if plan := planned(scheme, whole):
            found += 1
            assert plan.shards.dtype == np.int64
            assert plan.shards.sum(axis=1).tolist() == whole.shards.tolist()
            assert np.all(np.count_nonzero(plan.shards, axis=0) == 1)
            assert np.all(plan.shards.sum(axis=0) >= whole.min_shards)
            assert np.all(whole.seconds(plan.shards).max(axis=1) <= whole.deadline_s)
            assert plan.cost <= whole.budget * (1 + 1e-12)
            assert plan.bound_s <= plan.total_s
    assert found > cases(40) // 3


@every_scheme
def test_the_order_of_learners_does_not_matter(scheme: Scheme) -> None:
    rng, found = np.random.default_rng(9), 0
    for whole in (problem(rng) for _ in range(cases(20))):
        order = rng.permutation(whole.learners)
        other = SharedProblem(
            fixed_s=whole.fixed_s[:, order],
            shard_s=whole.shard_s[:, order],
            shards=whole.shards,
            deadline_s=whole.deadline_s,
            price=whole.price[order],
            budget=whole.budget,
        )
        plan, reordered = planned(scheme, whole), planned(scheme, other)
        assert (plan is None) == (reordered is None)
        if plan and reordered:
            found += 1
            assert plan.shards[:, order].tolist() == reordered.shards.tolist()
    assert found > cases(20) // 4
