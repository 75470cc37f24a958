from typing import Any

import numpy as np
import pytest

from melisma.allocation.claims import capacities, claim_in_order
from melisma.allocation.fifo import fifo
from melisma.allocation.med import med
from melisma.allocation.shared_problem import SharedProblem
from melisma.allocation.smallest_demand import smallest_demand
from melisma.allocation.venn import venn
from melisma.errors import InfeasibleError
from tests.lanes import cases


def problem(**values: Any) -> SharedProblem:
    defaults: dict[str, Any] = {
        "fixed_s": np.zeros((2, 4)),
        "shard_s": [[1.0, 2.0, 3.0, 4.0]] * 2,
        "shards": [10, 4],
        "deadline_s": 10.0,
        "price": 1.0,
        "budget": np.inf,
        "min_shards": 0,
    }
    return SharedProblem(**defaults | values)


def random_problem(rng: np.random.Generator) -> SharedProblem:
    tasks, learners = int(rng.integers(1, 4)), int(rng.integers(2, 7))
    return problem(
        fixed_s=rng.uniform(0, 3, (tasks, learners)),
        shard_s=rng.choice([0.1, 0.3, 0.7, 1.1], (tasks, learners)),
        shards=rng.integers(1, 12, tasks),
        deadline_s=rng.uniform(1, 9, tasks),
        min_shards=rng.integers(0, 3, learners),
    )


def test_capacities_are_the_most_shards_in_time() -> None:
    rng = np.random.default_rng(1)
    for whole in (random_problem(rng) for _ in range(cases(200))):
        for (task, learner), found in np.ndenumerate(capacities(whole)):
            least = max(1, int(whole.min_shards[learner]))
            seconds = [
                whole.fixed_s[task, learner] + whole.shard_s[task, learner] * count
                for count in range(1, int(whole.shards[task]) + 1)
            ]
            most = sum(each <= whole.deadline_s[task] for each in seconds)
            assert found == (most if most >= least else 0)


def test_the_first_task_takes_the_fastest_learners_that_it_needs() -> None:
    assert fifo(problem()).task_of.tolist() == [0, 1, -1, -1]
    assert fifo(problem(shards=[11, 4])).task_of.tolist() == [0, 0, 1, 1]


def test_the_task_with_the_least_work_chooses_first() -> None:
    assert smallest_demand(problem()).task_of.tolist() == [1, 0, 0, 0]
    # Fewer shards may be more work.
    slow = problem(shard_s=[[1.0, 2.0, 3.0, 4.0], [4.0, 8.0, 9.0, 9.0]], shards=[3, 2])
    assert smallest_demand(slow).task_of.tolist() == [0, 1, 1, -1]


def test_the_task_that_few_can_serve_chooses_first_and_leaves_contested_learners() -> None:
    # The second task can use the two fastest learners only, the first one all of them.
    scarce = problem(shard_s=[[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 99.0, 99.0]], shards=[2, 12])
    assert venn(scarce).task_of.tolist() == [1, 1, 0, -1]
    # A task takes learners that are of no use to others, even if they are slower.
    shared = problem(shard_s=[[1.0, 2.0, 3.0, 4.0], [99.0, 1.0, 99.0, 99.0]], shards=[10, 4])
    assert venn(shared).task_of.tolist() == [0, 1, -1, -1]
    with pytest.raises(InfeasibleError, match="earlier tasks left free can train 8 of its 12"):
        fifo(problem(shard_s=scarce.shard_s, shards=[2, 12], deadline_s=[2.0, 16.0]))


def test_learners_that_may_not_stay_idle_join_tasks_in_turns() -> None:
    plan = fifo(problem(shards=[4, 4], min_shards=1))
    assert plan.task_of.tolist() == [0, 1, 0, 1]
    assert plan.shards.sum(axis=1).tolist() == [4, 4]
    assert plan.shards.max(axis=0).min() >= 1


def test_a_learner_that_no_task_can_use_is_named_if_it_may_not_stay_idle() -> None:
    slow = problem(shard_s=[[1.0, 1.0, 1.0, 50.0]] * 2, min_shards=1)
    with pytest.raises(InfeasibleError, match="no task has shards left that learner 3") as caught:
        fifo(slow)
    assert (caught.value.learners, caught.value.nearest) == ((3,), {"min_shards": 0})
    assert fifo(slow.with_min_shards(np.zeros(4, np.int64))).task_of.tolist() == [0, 1, -1, -1]


def test_a_task_for_which_too_few_learners_are_left_is_named() -> None:
    with pytest.raises(InfeasibleError) as caught:
        fifo(problem(shards=[15, 9]))
    assert caught.value.tasks == (1,)
    assert caught.value.miss == 4
    assert str(caught.value) == (
        "deadline_s of task 1 cannot be met: the learners that earlier tasks left free can train "
        "5 of its 9 shards"
    )


def test_a_budget_that_is_too_small_is_an_error_of_med() -> None:
    with pytest.raises(InfeasibleError, match="budget is 13, but plans with this assignment cost"):
        fifo(problem(budget=13))


def test_no_queue_beats_med() -> None:
    rng, compared = np.random.default_rng(4), 0
    for whole in (random_problem(rng) for _ in range(cases(120))):
        for scheme in (fifo, smallest_demand, venn):
            try:
                plan = scheme(whole)
            except InfeasibleError:
                continue
            compared += 1
            assert med(whole).total_s <= plan.total_s * (1 + 1e-9)
    assert compared > cases(120)


def test_all_orders_of_claims_keep_the_problem() -> None:
    whole = problem(shards=[9, 9], min_shards=1)
    for order in ([0, 1], [1, 0]):
        plan = claim_in_order(whole, order)
        assert plan.shards.sum(axis=1).tolist() == [9, 9]
        assert (whole.seconds(plan.shards) <= whole.deadline_s[:, None]).all()
        assert plan.bound_s == 0
