import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy import optimize, sparse

from benchmarks.allocation.med_instances import instance, with_budget
from melisma.allocation.med import cheapest, curves, diagnosis, levels, med, solver
from melisma.allocation.med.learner_classes import group_learners
from melisma.allocation.med.levels import soonest
from melisma.allocation.med.market import market
from melisma.allocation.med.rounding import placed
from melisma.allocation.med.smoothed_dual import bids
from melisma.allocation.shared_problem import SharedPlan, SharedProblem
from melisma.errors import InfeasibleError, SettingError
from tests.allocation.brute_force import least_sum

BATCHES = range(10)
EACH = 30


def small(seed: int) -> SharedProblem:
    """Few learners and shards; ties and equal learners are frequent."""
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


def changed(problem: SharedProblem, **changes: Any) -> SharedProblem:
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(problem)}
    return SharedProblem(**(fields | changes))


def batch(number: int) -> list[SharedProblem]:
    return [small(seed) for seed in range(number * EACH, (number + 1) * EACH)]


def assert_keeps_everything(plan: SharedPlan, problem: SharedProblem) -> None:
    assert plan.shards.sum(axis=1).tolist() == problem.shards.tolist()
    assert np.all(np.count_nonzero(plan.shards, axis=0) <= 1)
    assert np.all(plan.shards.sum(axis=0) >= problem.min_shards)
    assert np.all(plan.task_s <= problem.deadline_s)
    assert np.all(problem.seconds(plan.shards) <= plan.task_s[:, None])
    assert plan.cost <= problem.budget * (1 + 1e-12)
    assert plan.bound_s <= plan.total_s


@pytest.mark.parametrize("number", BATCHES)
def test_no_plan_is_better_and_none_exists_where_it_says_so(number: int) -> None:
    for problem in batch(number):
        best_s = least_sum(problem)
        try:
            plan = med(problem)
        except InfeasibleError as error:
            assert best_s is None
            assert_nearest_is_enough_and_no_less(problem, error)
        else:
            assert plan.total_s == pytest.approx(best_s, rel=1e-9)
            assert plan.gap <= 1e-9
            assert_keeps_everything(plan, problem)


def assert_nearest_is_enough_and_no_less(
    problem: SharedProblem, error: InfeasibleError, assigned: tuple[int, ...] | None = None
) -> None:
    """Each change alone makes a plan possible, and a little less does not; none, if none does."""

    def possible(**changes: Any) -> bool:
        return least_sum(changed(problem, **changes), assigned) is not None

    nearest, less = error.nearest, 1 - 1e-9
    assert error.miss > 0
    if error.constraint in ("deadline_s", "budget"):
        assert possible(deadline_s=1e6) == ("stretch" in nearest)
    if "stretch" in nearest:
        stretched_s = problem.deadline_s * nearest["stretch"]
        assert possible(deadline_s=stretched_s)
        assert not possible(deadline_s=stretched_s * less)
        med(changed(problem, deadline_s=stretched_s), assigned)
    if "data" in nearest:
        part = np.floor(problem.shards * nearest["data"] * (1 + 1e-12))
        assert possible(shards=np.maximum(part, 1))
    if error.constraint == "budget":
        assert possible(budget=nearest["budget"])
        assert not possible(budget=nearest["budget"] * less)
        med(changed(problem, budget=nearest["budget"]), assigned)
    if error.constraint == "min_shards" and assigned is None:
        assert not possible(budget=np.inf, deadline_s=1e6)
        enough = [x for x in range(3) if possible(min_shards=np.minimum(problem.min_shards, x))]
        assert nearest == ({"min_shards": max(enough)} if enough else {})


@pytest.mark.parametrize("number", BATCHES[:4])
def test_the_amounts_are_the_best_for_an_association_that_is_given(number: int) -> None:
    rng = np.random.default_rng(number)
    for problem in batch(number):
        assigned = rng.integers(0, problem.tasks, problem.learners)
        best_s = least_sum(problem, tuple(assigned.tolist()))
        try:
            plan = med(problem, assigned=assigned)
        except InfeasibleError as error:
            assert best_s is None
            if error.constraint != "assigned":
                assert_nearest_is_enough_and_no_less(problem, error, tuple(assigned.tolist()))
        else:
            assert plan.total_s == pytest.approx(best_s, rel=1e-9)
            assert plan.gap == 0.0
            assert_keeps_everything(plan, problem)
            at_work = plan.task_of >= 0
            assert plan.task_of[at_work].tolist() == assigned[at_work].tolist()


def milp_sum(problem: SharedProblem) -> float:
    """The textbook program, with big-M, by HiGHS."""
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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tight", [False, True])
def test_a_general_solver_finds_the_same_sum(seed: int, tight: bool) -> None:
    problem = instance(9, 3, seed)
    if tight:
        problem = with_budget(problem, 1.05 * cheapest(problem)[0])
    assert med(problem).total_s == pytest.approx(milp_sum(problem), rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_later_deadlines_and_more_money_never_make_it_worse(seed: int) -> None:
    problem = instance(8, 3, seed)
    least = cheapest(problem)[0]
    sums_s = [med(with_budget(problem, least * part)).total_s for part in (1, 1.02, 1.1, 1.5, 9)]
    assert sums_s == sorted(sums_s, reverse=True)
    problem = with_budget(problem, least * 1.1)
    best_s = med(problem).total_s
    for part in (1.1, 1.5, 4.0):
        later_s = med(changed(problem, deadline_s=problem.deadline_s * part)).total_s
        assert later_s <= best_s * (1 + 1e-12)
        best_s = later_s


@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_learners_decides_nothing(seed: int) -> None:
    problem = instance(10, 3, seed)
    plan = med(problem)
    order = np.random.default_rng(seed).permutation(problem.learners)
    other = med(
        changed(
            problem,
            fixed_s=problem.fixed_s[:, order],
            shard_s=problem.shard_s[:, order],
            price=problem.price[order],
            min_shards=problem.min_shards[order],
        )
    )
    assert other.shards.tolist() == plan.shards[:, order].tolist()
    assert other.bound_s == plan.bound_s


def test_the_same_problem_gives_the_same_plan() -> None:
    first, second = (med(instance(12, 3, 5)) for _ in range(2))
    assert first.shards.tolist() == second.shards.tolist()


def test_learners_that_are_alike_are_not_tried_one_by_one() -> None:
    problem = SharedProblem(
        fixed_s=np.ones((3, 31)),
        shard_s=0.5,
        shards=[40, 50, 37],
        deadline_s=20.0,
        price=1.0,
        budget=np.inf,
    )
    plan = med(problem)
    # Levels 1 + 0.5 d: ten, eleven and ten learners with at most 4, 5 and 4 shards each.
    assert plan.total_s == pytest.approx(3.0 + 3.5 + 3.0)
    assert plan.gap == 0.0
    assert_keeps_everything(plan, problem)


@pytest.mark.parametrize("gap", [0.01, 0.1])
def test_a_gap_that_is_enough_ends_the_search(gap: float) -> None:
    problem = instance(20, 3, 2)
    plan, best = med(problem, gap=gap), med(problem)
    assert plan.gap <= gap
    assert plan.bound_s <= best.total_s <= plan.total_s


@pytest.mark.parametrize("seed", range(2))
def test_a_time_limit_gives_a_plan_and_a_true_bound(seed: int) -> None:
    problem = instance(20, 5, seed)
    hasty, best = med(problem, time_limit_s=0.0), med(problem)
    assert_keeps_everything(hasty, problem)
    assert hasty.bound_s <= best.total_s * (1 + 1e-12)
    assert best.total_s <= hasty.total_s
    assert 0 <= hasty.gap < 1


def test_a_large_fleet_gets_a_certified_plan() -> None:
    problem = instance(100, 5, 1)
    plan = med(problem, gap=0.02)
    assert plan.gap <= 0.02
    assert_keeps_everything(plan, problem)


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
    assert med(changed(problem, min_shards=1)).total_s == 91.0


def test_a_deadline_that_no_learner_keeps_names_the_task() -> None:
    problem = changed(instance(6, 2, 0), deadline_s=[1e-3, 100.0])
    with pytest.raises(InfeasibleError, match="all learners together cannot do task 0") as caught:
        med(problem)
    assert (caught.value.constraint, caught.value.tasks) == ("deadline_s", (0,))
    assert caught.value.nearest["stretch"] > 1


def test_a_learner_too_slow_for_every_task_is_named() -> None:
    fixed_s = np.ones((2, 4))
    fixed_s[:, 2] = 50.0
    problem = SharedProblem(
        fixed_s=fixed_s, shard_s=1.0, shards=4, deadline_s=10.0, price=1.0, budget=np.inf
    )
    with pytest.raises(InfeasibleError, match="learner 2 can do min_shards of no task") as caught:
        med(problem)
    assert caught.value.learners == (2,)


def test_fewer_learners_than_tasks_are_refused() -> None:
    problem = SharedProblem(
        fixed_s=np.ones((4, 3)), shard_s=1.0, shards=2, deadline_s=9.0, price=1.0, budget=np.inf
    )
    with pytest.raises(InfeasibleError, match="3 learners cannot work for 4 tasks") as caught:
        med(problem)
    assert (caught.value.constraint, caught.value.miss) == ("learners", 1)


def test_a_budget_too_small_names_the_least_that_would_do() -> None:
    problem = instance(8, 2, 0)
    least, proven = cheapest(problem)
    assert proven
    with pytest.raises(
        InfeasibleError, match="plans that keep the deadlines cost more; a"
    ) as caught:
        med(with_budget(problem, least * 0.9))
    assert caught.value.constraint == "budget"
    assert caught.value.miss == pytest.approx(least * 0.1)
    assert caught.value.nearest["budget"] == pytest.approx(least)


@pytest.mark.parametrize(
    ("assigned", "words"),
    [
        ([0, 1], "assigned has shape"),
        ([0, 1, 2, 0, 1, 0], "task 2"),
        (-1, "idle whose min_shards"),
        (-2, "at least -1"),
    ],
)
def test_an_association_that_cannot_be_meant_is_refused(assigned: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        med(instance(6, 2, 0), assigned=assigned)


def test_a_task_without_a_learner_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="no learner is assigned to task 1"):
        med(instance(6, 2, 0), assigned=0)


def test_learners_that_cost_nothing_are_no_special_case() -> None:
    for problem in batch(10):
        free = changed(problem, price=0.0, budget=0.0)
        best_s = least_sum(free)
        try:
            plan = med(free)
        except InfeasibleError:
            assert best_s is None
        else:
            assert plan.total_s == pytest.approx(best_s, rel=1e-9)


def most_room(problem: SharedProblem) -> float:
    """How many times all shards go into the deadlines and the budget, with parts of learners."""
    kinds = group_learners(problem)
    tasks, size = kinds.shape
    cap = kinds.caps(np.arange(tasks), kinds.deadline_s).ravel().astype(float)
    one, none = sparse.identity(tasks * size), sparse.csr_matrix((tasks * size, 1))
    least = np.tile(kinds.least, tasks).astype(float)
    shards = -sparse.kron(sparse.identity(tasks), np.ones((1, size)))
    limits = sparse.vstack(
        [
            sparse.hstack([sparse.diags(-cap), one, none]),
            sparse.hstack([sparse.diags(least), -one, none]),
            sparse.hstack([sparse.csr_matrix((tasks, tasks * size)), shards, kinds.need[:, None]]),
            np.concatenate([np.zeros(tasks * size), np.tile(kinds.price, tasks), [0.0]])[None],
        ]
    )
    found = optimize.linprog(
        np.append(np.zeros(2 * tasks * size), -1.0),
        A_ub=limits,
        b_ub=np.append(np.zeros(2 * tasks * size + tasks), kinds.budget),
        A_eq=sparse.hstack(
            [*[sparse.identity(size)] * tasks, sparse.csr_matrix((size, tasks * size + 1))]
        ),
        b_eq=kinds.copies,
    )
    return -float(found.fun)


@pytest.mark.parametrize("part", [0.7, 1.0])
def test_bids_leave_as_much_room_as_a_general_solver_finds(part: float) -> None:
    problem = instance(120, 4, 0)
    problem = with_budget(problem, part * problem.budget)
    kinds = group_learners(problem)
    found = bids(kinds, kinds.deadline_s)
    assert found is not None
    room = most_room(problem)
    assert room * (1 - 1e-9) <= found.room <= room * 1.002


def test_every_learner_is_placed_once_until_it_is_time_to_stop() -> None:
    kinds = group_learners(instance(150, 4, 0))
    states = [state for _, state in placed(kinds, kinds.deadline_s, lambda: False)]
    assert states
    assert all(np.array_equal(state.sum(axis=0), kinds.copies) for state in states)
    assert not list(placed(kinds, kinds.deadline_s, lambda: True))


def test_hundreds_of_learners_soon_have_a_plan_near_the_bound() -> None:
    problem = instance(300, 5, 0)
    plan = med(problem, gap=0.02)
    assert_keeps_everything(plan, problem)
    assert plan.gap <= 0.02


@pytest.mark.parametrize("budget", [0.0, 1e-6, 1.0])
def test_a_budget_far_too_small_leaves_prices_finite(budget: float) -> None:
    kinds = group_learners(with_budget(instance(40, 3, 0), budget))
    found = market(kinds, soonest(kinds))
    assert np.isfinite(found.prices.rate)
    assert np.all(np.isfinite(found.prices.worth))


def test_who_stays_idle_in_a_plan_may_stay_idle_when_it_is_assigned() -> None:
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


def test_thousands_of_shards_each_need_little_memory() -> None:
    problem = many_shards(300, 300_000)
    tracemalloc.start()
    plan = med(problem, gap=0.05, time_limit_s=5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert_keeps_everything(plan, problem)
    assert plan.gap < 0.05
    assert peak < 500e6


def test_few_learners_with_very_many_shards_are_decided() -> None:
    problem = many_shards(4, 200_000)
    plan = med(problem)
    assert_keeps_everything(plan, problem)
    assert plan.gap < 1e-4


@pytest.mark.parametrize("seed", range(20))
def test_levels_in_parts_give_the_same_choice_as_levels_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = instance(12, 3, seed)
    rng = np.random.default_rng(seed)
    assigned = np.append([0, 1, 2], rng.integers(0, 3, 9))
    cap = changed(problem, deadline_s=1e3, budget=np.inf)
    dear = med(cap, assigned).cost
    with pytest.raises(InfeasibleError) as caught:
        med(with_budget(cap, 1e-3), assigned)
    tight = with_budget(cap, (dear + caught.value.nearest["budget"]) / 2)
    plan = med(tight, assigned)
    monkeypatch.setattr(curves, "LEVELS", 0)
    monkeypatch.setattr(curves, "STEPS", 4)
    again = med(tight, assigned)
    assert again.total_s == pytest.approx(plan.total_s, rel=1e-12)
    assert again.gap == plan.gap == 0.0


def test_bounds_hold_where_steps_stand_for_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    for problem in batch(11)[:15]:
        best_s = least_sum(problem)
        with monkeypatch.context() as patch:
            patch.setattr(levels, "MOST", 8)
            if best_s is None:
                with pytest.raises(InfeasibleError):
                    med(problem)
            else:
                plan = med(problem)
                assert plan.total_s == pytest.approx(best_s, rel=1e-9)
                assert plan.gap <= 1e-9


def test_what_is_too_large_is_refused_at_once() -> None:
    learners = 500_000
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


def test_a_million_learners_of_few_kinds_are_not_too_many() -> None:
    learners = 1_000_000
    problem = SharedProblem(
        fixed_s=1.0,
        shard_s=np.tile([[1.0, 2.0], [2.0, 1.0]], learners // 2),
        shards=learners,
        deadline_s=1e3,
        price=1.0,
        budget=np.inf,
    )
    plan = med(problem)
    assert plan.task_s.tolist() == [3.0, 3.0]
    assert plan.gap == 0.0


def test_a_search_without_a_plan_ends_some_time_after_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = instance(100, 5, 0)
    least = 212.0
    monkeypatch.setattr(solver, "WORK", 1e6)
    monkeypatch.setattr(diagnosis, "WORK", 1e6)
    with pytest.raises(InfeasibleError, match="nor is it proven that there is none") as caught:
        med(with_budget(problem, least * 0.998), time_limit_s=0.1)
    assert caught.value.nearest["budget"] < least * 1.02
    with pytest.raises(InfeasibleError, match="plans that keep the deadlines cost more"):
        med(with_budget(problem, least * 0.98), time_limit_s=0.1)


@pytest.mark.parametrize("gap", [1.0, 5, -0.1, np.nan])
def test_a_gap_that_says_nothing_is_refused(gap: float) -> None:
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


def test_a_refusal_of_deadlines_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "WORK", 2e6)
    problem = instance(20, 5, 1)
    short = changed(problem, deadline_s=problem.deadline_s * 0.05, budget=np.inf)
    with pytest.raises(InfeasibleError, match="times as long") as caught:
        med(short, time_limit_s=0.5)
    factor = caught.value.nearest["stretch"]
    med(changed(short, deadline_s=short.deadline_s * factor), time_limit_s=0.5)


@pytest.mark.parametrize("learners", [41, 60, 250])
@pytest.mark.parametrize("min_shards", [0, 1])
def test_many_learners_without_a_budget_have_a_plan_near_the_bound(
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
    plan = med(problem, gap=0.02, time_limit_s=3)
    assert_keeps_everything(plan, problem)
    assert plan.gap < 0.05


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
    plan = med(problem, gap=0.02, time_limit_s=3)
    assert_keeps_everything(plan, problem)
    assert plan.gap < 0.05
