"""Random problems of several tasks, and assertions on their plans and errors."""

import dataclasses
from typing import Any

import numpy as np

from melisma.allocation.med import med
from melisma.allocation.shared_problem import SharedPlan, SharedProblem
from melisma.errors import InfeasibleError
from tests.allocation.med.brute_force import least_sum
from tests.lanes import cases

BATCHES = range(cases(20))
BATCH_SIZE = 15


def small_problem(seed: int) -> SharedProblem:
    """Return a problem of few learners and shards, often with ties and identical learners."""
    rng = np.random.default_rng(seed)
    tasks = int(rng.integers(1, 4))
    learners = int(rng.integers(tasks, 6))
    shape = (tasks, learners)
    if rng.random() < 0.4:
        fixed_s, shard_s = rng.integers(0, 4, shape) * 1.0, rng.integers(1, 4, shape) * 1.0
        price = rng.integers(0, 4, learners) * 1.0
        if rng.random() < 0.5:
            fixed_s[:], shard_s[:], price[:] = fixed_s[:, :1], shard_s[:, :1], price[0]
    else:
        fixed_s, shard_s = rng.uniform(0, 3, shape), rng.uniform(0.3, 3, shape)
        price = rng.uniform(0.1, 1.5, learners)
    shards = rng.integers(1, 7, tasks)
    budget = float(price.mean() * shards.sum() * rng.uniform(0.6, 1.3))
    return SharedProblem(
        fixed_s=fixed_s,
        shard_s=shard_s,
        shards=shards,
        deadline_s=rng.choice([4.0, 8.0, 12.0, 100.0], tasks) * rng.uniform(0.7, 1.5),
        price=price,
        budget=np.inf if rng.random() < 0.3 else budget,
        min_shards=rng.integers(0, 3, learners if rng.random() < 0.4 else None),
    )


def change(problem: SharedProblem, **changes: Any) -> SharedProblem:
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
    return SharedProblem(**(fields | changes))


def problem_batch(number: int) -> list[SharedProblem]:
    return [small_problem(seed) for seed in range(number * BATCH_SIZE, (number + 1) * BATCH_SIZE)]


def assert_feasible(plan: SharedPlan, problem: SharedProblem) -> None:
    assert plan.shards.sum(axis=1).tolist() == problem.shards.tolist()
    assert np.all(np.count_nonzero(plan.shards, axis=0) <= 1)
    assert np.all(plan.shards.sum(axis=0) >= problem.min_shards)
    assert np.all(plan.task_s <= problem.deadline_s)
    assert np.all(problem.seconds(plan.shards) <= plan.task_s[:, None])
    assert plan.cost <= problem.budget * (1 + 1e-12)
    assert plan.bound_s <= plan.total_s


def assert_nearest_is_least(
    problem: SharedProblem, error: InfeasibleError, assigned: tuple[int, ...] | None = None
) -> None:
    """Assert that each change makes a plan possible, and a slightly smaller one does not."""

    def possible(**changes: Any) -> bool:
        return least_sum(change(problem, **changes), assigned) is not None

    nearest, less = error.nearest, 1 - 1e-9
    assert error.miss > 0
    if error.constraint in ("deadline_s", "budget"):
        assert possible(deadline_s=1e6) == ("stretch" in nearest)
    if "stretch" in nearest:
        stretched_s = problem.deadline_s * nearest["stretch"]
        assert possible(deadline_s=stretched_s)
        assert not possible(deadline_s=stretched_s * less)
        med(change(problem, deadline_s=stretched_s), assigned)
    if "data" in nearest:
        part = np.floor(problem.shards * nearest["data"] * (1 + 1e-12))
        assert possible(shards=np.maximum(part, 1))
    if error.constraint == "budget":
        assert possible(budget=nearest["budget"])
        assert not possible(budget=nearest["budget"] * less)
        med(change(problem, budget=nearest["budget"]), assigned)
    if error.constraint == "min_shards" and assigned is None:
        assert not possible(budget=np.inf, deadline_s=1e6)
        enough = [x for x in range(3) if possible(min_shards=np.minimum(problem.min_shards, x))]
        assert nearest == ({"min_shards": max(enough)} if enough else {})
