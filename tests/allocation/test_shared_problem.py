from typing import Any

import numpy as np
import pytest

from melisma.allocation.shared_problem import SharedPlan, SharedProblem, plan_cost
from melisma.errors import SettingError

COSTS: dict[str, Any] = {
    "fixed_s": [[1.0, 2.0, 1.0], [1.0, 1.0, 3.0]],
    "shard_s": [[1.0, 0.5, 2.0], [2.0, 1.0, 0.5]],
    "shards": [3, 4],
    "deadline_s": 20.0,
    "price": [1.0, 0.5, 2.0],
    "budget": 10.0,
}


def test_scalars_are_repeated_for_tasks_and_learners() -> None:
    problem = SharedProblem(**(COSTS | {"fixed_s": 1.0, "price": 1, "shards": 4}))
    assert (problem.tasks, problem.learners) == (2, 3)
    assert problem.fixed_s.shape == (2, 3)
    assert problem.shards.tolist() == [4, 4]
    assert problem.deadline_s.tolist() == [20.0, 20.0]
    assert problem.price.tolist() == [1.0, 1.0, 1.0]
    assert problem.min_shards.tolist() == [1, 1, 1]


def test_the_budget_may_be_infinite() -> None:
    assert SharedProblem(**(COSTS | {"budget": np.inf})).budget == np.inf


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shard_s": 0.0}, "shard_s is 0.0; expected at least 1e-30"),
        ({"fixed_s": -1.0}, "fixed_s is -1.0"),
        ({"fixed_s": [[1.0, np.nan, 1.0]] * 2}, r"fixed_s\[0, 1\] is nan"),
        ({"shards": [0, 4]}, r"shards\[0\] is 0; expected at least 1"),
        ({"shards": [2.5, 4]}, "whole number"),
        ({"shards": [1, 2, 3]}, "shards has shape"),
        ({"deadline_s": 0.0}, "deadline_s is 0.0"),
        ({"deadline_s": [1.0, np.inf]}, "deadline_s"),
        ({"price": [-1.0, 1.0, 1.0]}, r"price\[0\] is -1.0"),
        ({"price": [1.0, 1.0]}, "price has shape"),
        ({"budget": -1.0}, "budget is -1.0"),
        ({"budget": np.nan}, "budget is nan"),
        ({"budget": [1.0, 2.0]}, "budget"),
        ({"min_shards": -1}, "min_shards is -1"),
        ({"fixed_s": [[1.0, 2.0], [1.0]]}, "rows of unequal length"),
        ({"fixed_s": "fast"}, "fixed_s is 'fast'; expected a number"),
    ],
)
def test_an_invalid_argument_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        SharedProblem(**(COSTS | changes))


def test_changing_an_argument_does_not_change_the_problem() -> None:
    price = np.ones(3)
    problem = SharedProblem(**(COSTS | {"price": price}))
    price[0] = 7.0
    assert problem.price[0] == 1.0
    assert not problem.price.flags.writeable


def test_a_plan_recomputes_seconds_and_cost() -> None:
    problem = SharedProblem(**COSTS)
    plan = SharedPlan(problem, [[1, 2, 0], [0, 0, 4]], bound_s=7.0)
    assert plan.task_s.tolist() == [3.0, 5.0]
    assert plan.total_s == 8.0
    assert plan.cost == plan_cost(problem, plan.shards) == 1.0 + 1.0 + 8.0
    assert plan.gap == pytest.approx(1 / 8)
    assert plan.task_of.tolist() == [0, 0, 1]


def test_a_bound_is_never_above_the_plan() -> None:
    plan = SharedPlan(SharedProblem(**COSTS), [[1, 2, 0], [0, 0, 4]], bound_s=np.inf)
    assert (plan.bound_s, plan.gap) == (8.0, 0.0)


def test_a_plan_gives_no_learner_two_tasks() -> None:
    with pytest.raises(SettingError, match="more than one task"):
        SharedPlan(SharedProblem(**COSTS), [[1, 2, 0], [1, 0, 3]], bound_s=0.0)
