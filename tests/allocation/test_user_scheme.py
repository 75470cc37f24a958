"""A scheme of the user: what it is given, how its plan is checked, and how its errors are named."""

from typing import Any

import numpy as np
import pytest

from melisma.allocation import CyclePlan, CycleProblem, PlanInputs, get_scheme
from melisma.allocation.schemes import load_scheme, with_scheme
from melisma.errors import InfeasibleError, SchemeError, SettingError
from melisma.testing import make_task

HERE = "tests.allocation.test_user_scheme:"
PROBLEM = CycleProblem(
    train_s=[1.0, 2.0, 3.0], ship_s=0.1, fixed_s=0.2, deadline_s=20.0, shards=10, max_shards=6
)


def three_each(problem: CycleProblem) -> CyclePlan:
    return CyclePlan([3] * problem.learners, 2)


def passes_of_the_task(problem: CycleProblem, passes: int | None) -> CyclePlan:
    return CyclePlan([1] * problem.learners, passes or 7)


def raises(problem: CycleProblem) -> CyclePlan:
    raise ZeroDivisionError("no learner is free")


def infeasible(problem: CycleProblem) -> CyclePlan:
    raise InfeasibleError("too much", constraint="shards", miss=1, nearest={})


def takes_three(problem: CycleProblem, fleet: Any, mood: Any) -> CyclePlan:
    raise AssertionError


def a_list(problem: CycleProblem) -> Any:
    return [1, 2, 3]


def too_few(problem: CycleProblem) -> CyclePlan:
    return CyclePlan([5, 5], 1)


def too_many_shards(problem: CycleProblem) -> CyclePlan:
    return CyclePlan([4, 4, 4], 1)


def above_bound(problem: CycleProblem) -> CyclePlan:
    return CyclePlan([0, 7, 1], 1)


def half_shards(problem: CycleProblem) -> CyclePlan:
    return CyclePlan([0.5, 1, 1], 1)


NOT_A_FUNCTION = 3


def plan(name: str, passes: int | None = None) -> CyclePlan:
    plan: CyclePlan = get_scheme(HERE + name).plan(PROBLEM, PlanInputs(passes=passes))
    return plan


def test_a_function_of_the_user_plans_and_may_take_the_passes_of_the_task() -> None:
    assert plan("three_each").shards.tolist() == [3, 3, 3]
    assert plan("three_each").updates.tolist() == [2, 2, 2]
    assert plan("passes_of_the_task", 4).updates.tolist() == [4, 4, 4]
    assert plan("passes_of_the_task").updates.tolist() == [7, 7, 7]


def test_a_scheme_of_the_user_needs_costs_and_may_leave_learners_out() -> None:
    row = get_scheme(HERE + "three_each")
    assert (row.needs_with(None), row.needs_with(3), row.problem) == ("costs", "costs", "cycle")
    assert not row.hands_out_all


def test_getting_a_scheme_imports_nothing() -> None:
    assert get_scheme("no_such_module:plan").name == "no_such_module:plan"
    with pytest.raises(SettingError, match="scheme no_such_module:plan: ModuleNotFoundError"):
        load_scheme("no_such_module:plan")


def test_a_function_without_passes_chooses_them() -> None:
    task = make_task(passes=3)
    assert with_scheme(task, HERE + "three_each").passes is None
    assert with_scheme(task, HERE + "passes_of_the_task").passes == 3
    with pytest.raises(SettingError, match="three_each chooses passes itself; leave out passes"):
        with_scheme(make_task(scheme=HERE + "three_each", passes=3), None)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", r"ZeroDivisionError: no learner is free \(test_user_scheme.py, line \d+\)"),
        ("a_list", r"returned list; expected CyclePlan\(shards, updates\)"),
        ("too_few", "the plan has 2 learners; expected one entry for each of the 3 learners"),
        ("too_many_shards", "the plan hands out 12 shards; expected at most 10"),
        ("above_bound", r"shards\[1\] of the plan is 7; expected 1 to 6, or 0 to leave"),
        ("half_shards", r"SettingError: shards\[0\] is 0.5; expected a whole number"),
    ],
)
def test_an_invalid_plan_or_an_exception_names_the_scheme(name: str, says: str) -> None:
    with pytest.raises(SchemeError, match=f"^scheme {HERE}{name}: {says}"):
        plan(name)


def test_an_infeasible_error_of_the_user_is_passed_on() -> None:
    with pytest.raises(InfeasibleError, match="too much"):
        plan("infeasible")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (HERE + "takes_three", r"takes \(problem, fleet, mood\); change it to \(problem\) or"),
        (HERE + "NOT_A_FUNCTION", "is a int; expected something that can be called"),
        (HERE + "three_eahc", "has no three_eahc; did you mean three_each"),
        ("a:b:c", "expected package.module:function"),
    ],
)
def test_a_scheme_that_cannot_be_called_is_an_error(name: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        load_scheme(name)


def test_an_unknown_name_says_that_functions_are_allowed() -> None:
    with pytest.raises(SettingError, match=r"or package.module:function$"):
        get_scheme("xyzzy")


def test_plans_are_arrays_of_the_problem() -> None:
    assert np.array_equal(plan("three_each").seconds(PROBLEM) > 0, [True] * 3)
