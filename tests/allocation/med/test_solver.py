import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy import optimize, sparse

from benchmarks.allocation.med_instances import instance, with_budget
from melisma.allocation.med import cheapest, med, solver
from melisma.allocation.shared_problem import SharedProblem
from melisma.errors import InfeasibleError, SettingError
from tests.allocation.med.brute_force import least_sum
from tests.allocation.med.problems import (
    BATCHES,
    assert_feasible,
    assert_nearest_is_least,
    change,
    problem_batch,
)
from tests.lanes import cases


@pytest.mark.parametrize("number", BATCHES)
def test_plans_are_optimal_and_infeasible_problems_have_no_plan(number: int) -> None:
    for problem in problem_batch(number):
        best_s = least_sum(problem)
        try:
            plan = med(problem)
        except InfeasibleError as error:
            assert best_s is None
            assert_nearest_is_least(problem, error)
        else:
            assert plan.total_s == pytest.approx(best_s, rel=1e-9)
            assert plan.gap <= 1e-9
            assert_feasible(plan, problem)


def milp_sum(problem: SharedProblem) -> float:
    """Solve the textbook program with big-M by HiGHS."""
    tasks, learners = problem.fixed_s.shape
    size = tasks * learners
    eye, none = sparse.identity(size), sparse.csr_matrix((size, tasks))
    row, column = np.divmod(np.arange(size), learners)
    ends = sparse.csr_matrix((np.ones(size), (np.arange(size), row)), (size, tasks))
    per_task = sparse.csr_matrix((np.ones(size), (row, np.arange(size))), (tasks, size))
    per_learner = sparse.csr_matrix((np.ones(size), (column, np.arange(size))), (learners, size))
    zero = sparse.csr_matrix
    most = problem.shards[row].astype(float)
    blocks: list[tuple[Any, Any, Any]] = [
        (
            sparse.hstack(
                [
                    sparse.diags(problem.fixed_s.ravel()),
                    sparse.diags(problem.shard_s.ravel()),
                    -ends,
                ]
            ),
            -np.inf,
            0.0,
        ),
        (sparse.hstack([-sparse.diags(most), eye, none]), -np.inf, 0.0),
        (sparse.hstack([-sparse.diags(problem.min_shards[column] * 1.0), eye, none]), 0.0, np.inf),
        (
            sparse.hstack([zero((tasks, size)), per_task, zero((tasks, tasks))]),
            problem.shards,
            problem.shards,
        ),
        (sparse.hstack([per_learner, zero((learners, size)), zero((learners, tasks))]), 1.0, 1.0),
    ]
    price = np.concatenate([np.zeros(size), problem.price[column], np.zeros(tasks)])
    blocks.append((sparse.csr_matrix(price), -np.inf, problem.budget))
    upper = np.concatenate([np.ones(size), most, problem.deadline_s])
    found = optimize.milp(
        np.concatenate([np.zeros(2 * size), np.ones(tasks)]),
        constraints=[optimize.LinearConstraint(*block) for block in blocks],
        integrality=np.concatenate([np.ones(2 * size), np.zeros(tasks)]),
        bounds=optimize.Bounds(0.0, upper),
        options={"mip_rel_gap": 0.0},
    )
    assert found.success
    return float(found.fun)


@pytest.mark.parametrize("seed", range(cases(3)))
@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("learners", [7, pytest.param(9, marks=pytest.mark.slow)])
def test_the_sum_equals_that_of_a_general_milp_solver(
    learners: int, tight: bool, seed: int
) -> None:
    problem = instance(learners, 3, seed)
    if tight:
        problem = with_budget(problem, 1.05 * cheapest(problem)[0])
    assert med(problem).total_s == pytest.approx(milp_sum(problem), rel=1e-5)


@pytest.mark.parametrize("seed", range(cases(3)))
def test_longer_deadlines_and_larger_budgets_never_increase_the_sum(seed: int) -> None:
    problem = instance(8, 3, seed)
    least = cheapest(problem)[0]
    sums_s = [med(with_budget(problem, least * part)).total_s for part in (1, 1.02, 1.1, 1.5, 9)]
    assert sums_s == sorted(sums_s, reverse=True)
    problem = with_budget(problem, least * 1.1)
    best_s = med(problem).total_s
    for part in (1.1, 1.5, 4.0):
        later_s = med(change(problem, deadline_s=problem.deadline_s * part)).total_s
        assert later_s <= best_s * (1 + 1e-12)
        best_s = later_s


def test_the_same_problem_gives_the_same_plan() -> None:
    first, second = (med(instance(12, 3, 5)) for _ in range(2))
    assert first.shards.tolist() == second.shards.tolist()


@pytest.mark.parametrize("gap", [0.01, 0.1])
def test_the_search_ends_at_the_requested_gap(gap: float) -> None:
    problem = instance(20, 3, 2)
    plan, best = med(problem, gap=gap), med(problem)
    assert plan.gap <= gap
    assert plan.bound_s <= best.total_s <= plan.total_s


@pytest.mark.parametrize("seed", range(cases(2)))
def test_a_time_limit_gives_a_plan_and_a_valid_bound(seed: int) -> None:
    problem = instance(20, 5, seed)
    hasty, best = med(problem, time_limit_s=0.0), med(problem)
    assert_feasible(hasty, problem)
    assert hasty.bound_s <= best.total_s * (1 + 1e-12)
    assert best.total_s <= hasty.total_s
    assert 0 <= hasty.gap < 1


class Ticks:
    """A clock that advances by a tick whenever it is read."""

    def __init__(self, tick_s: float) -> None:
        self.now_s, self.tick_s = 0.0, tick_s

    def monotonic(self) -> float:
        self.now_s += self.tick_s
        return self.now_s


@pytest.mark.parametrize("limit_s", [0.0, 5.0, 50.0])
def test_a_search_that_is_stopped_at_any_moment_has_a_useful_bound(
    limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = instance(100, 5, 203)
    problem = with_budget(problem, 0.9 * problem.budget)
    clock = Ticks(1.0)
    monkeypatch.setattr(solver, "time", clock)
    plan = med(problem, time_limit_s=limit_s)
    assert_feasible(plan, problem)
    assert plan.gap < 0.1
    assert clock.now_s < limit_s + 100


def test_a_large_fleet_gets_a_certified_plan() -> None:
    problem = instance(100, 5, 1)
    plan = med(problem, gap=0.02)
    assert plan.gap <= 0.02
    assert_feasible(plan, problem)


def test_an_idle_learner_costs_no_time() -> None:
    slow: dict[str, Any] = {
        "fixed_s": [[1.0, 1.0, 90.0]],
        "shard_s": 1.0,
        "shards": 4,
        "price": 1.0,
    }
    problem = SharedProblem(**slow, deadline_s=100.0, budget=np.inf, min_shards=0)
    assert med(problem).shards.tolist() == [[2, 2, 0]]
    assert med(problem).total_s == 3.0
    assert med(change(problem, min_shards=1)).total_s == 91.0


@pytest.mark.parametrize(
    ("assigned", "message"),
    [
        ([0, 1], "assigned has shape"),
        ([0, 1, 2, 0, 1, 0], "task 2"),
        (-1, "idle whose min_shards"),
        (-2, "at least -1"),
    ],
)
def test_an_invalid_assigned_is_an_error(assigned: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        med(instance(6, 2, 0), assigned=assigned)


def test_learners_with_price_zero_get_an_optimal_plan() -> None:
    for problem in problem_batch(20)[: cases(15)] + problem_batch(21)[: cases(15)]:
        free = change(problem, price=0.0, budget=0.0)
        best_s = least_sum(free)
        try:
            plan = med(free)
        except InfeasibleError:
            assert best_s is None
        else:
            assert plan.total_s == pytest.approx(best_s, rel=1e-9)


@pytest.mark.slow
def test_hundreds_of_learners_get_a_plan_near_the_bound() -> None:
    problem = instance(300, 5, 0)
    plan = med(problem, gap=0.02)
    assert_feasible(plan, problem)
    assert plan.gap <= 0.02


def test_a_learner_idle_in_a_plan_may_be_assigned_idle() -> None:
    problem = SharedProblem(
        fixed_s=[[1.0, 1.0, 50.0]],
        shard_s=1.0,
        shards=4,
        deadline_s=10.0,
        price=1.0,
        budget=100.0,
        min_shards=0,
    )
    plan = med(problem)
    assert plan.task_of.tolist() == [0, 0, -1]
    assert med(problem, assigned=plan.task_of).shards.tolist() == plan.shards.tolist()


def many_shards(learners: int, shards: int) -> SharedProblem:
    rng = np.random.default_rng(0)
    price = np.clip(rng.normal(1.0, 0.5, learners), 0.1, 1.5)
    return SharedProblem(
        fixed_s=rng.uniform(0.1, 8.0, (3, learners)),
        shard_s=rng.uniform(0.3, 3.0, (3, learners)),
        shards=shards,
        deadline_s=36.0 * shards / learners + 30,
        price=price,
        budget=float(price.mean() * 3 * shards),
    )


@pytest.mark.slow
def test_thousands_of_shards_each_need_little_memory() -> None:
    problem = many_shards(300, 300_000)
    tracemalloc.start()
    plan = med(problem, gap=0.04)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert_feasible(plan, problem)
    assert plan.gap <= 0.04
    assert peak < 500e6


@pytest.mark.slow
def test_few_learners_with_very_many_shards_are_solved() -> None:
    problem = many_shards(4, 200_000)
    plan = med(problem)
    assert_feasible(plan, problem)
    assert plan.gap < 1e-4


def test_a_problem_that_is_too_large_is_an_error() -> None:
    learners = 420_000
    rng = np.random.default_rng(0)
    problem = SharedProblem(
        fixed_s=1.0,
        shard_s=rng.uniform(1, 2, (10, learners)),
        shards=learners,
        deadline_s=1e3,
        price=1.0,
        budget=np.inf,
    )
    with pytest.raises(SettingError, match="med takes up to 4194304"):
        med(problem)


@pytest.mark.parametrize("gap", [1.0, 5, -0.1, np.nan])
def test_an_invalid_gap_is_an_error(gap: float) -> None:
    with pytest.raises(SettingError, match="gap"):
        med(instance(6, 2, 0), gap=gap)


@pytest.mark.parametrize("deadline_s", [1e3, 1e17, 1e30])
def test_a_deadline_beyond_all_levels_changes_nothing(deadline_s: float) -> None:
    problem = SharedProblem(
        fixed_s=0.0,
        shard_s=[[1.0, 1.1, 1.2]],
        shards=10,
        deadline_s=deadline_s,
        price=1.0,
        budget=np.inf,
    )
    assert med(problem).shards.tolist() == [[4, 3, 3]]


@pytest.mark.parametrize("learners", [41, 60, 250])
@pytest.mark.parametrize("min_shards", [0, 1])
def test_many_learners_without_a_budget_get_a_plan_near_the_bound(
    learners: int, min_shards: int
) -> None:
    rng = np.random.default_rng(learners)
    problem = SharedProblem(
        fixed_s=rng.uniform(1.5, 6.0, (2, learners)),
        shard_s=np.outer([2.0, 4.0], rng.lognormal(0.0, 0.3, learners)),
        shards=[learners, 2 * learners // 3],
        deadline_s=[60.0, 90.0],
        price=1.0,
        budget=np.inf,
        min_shards=min_shards,
    )
    plan = med(problem, gap=0.04)
    assert_feasible(plan, problem)
    assert plan.gap <= 0.04


def test_far_more_learners_than_shards_leave_the_slow_ones_idle() -> None:
    rng = np.random.default_rng(1)
    shape = (2, 400)
    problem = SharedProblem(
        fixed_s=rng.uniform(2.0, 9.0, shape),
        shard_s=rng.uniform(3.0, 9.0, shape),
        shards=[25, 20],
        deadline_s=[30.0, 60.0],
        price=rng.uniform(0.1, 1.5, 400),
        budget=300.0,
        min_shards=0,
    )
    plan = med(problem, gap=0.04)
    assert_feasible(plan, problem)
    assert plan.gap <= 0.04
