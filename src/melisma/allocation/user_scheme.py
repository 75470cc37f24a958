"""A scheme of the user: a function from a `CycleProblem` to a `CyclePlan`, by `module:name`.

A function with a second parameter, `passes`, is given the passes of the task; one without chooses
them itself. It is imported where plans are made, never on a learner.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.errors import InfeasibleError, SchemeError, SettingError
from melisma.fleet.array_types import Ints
from melisma.user_code import describe_error, import_function


def load_user_scheme(name: str) -> Callable[..., Any]:
    """Import the function; raise `SettingError` unless it accepts a problem."""
    function = import_function("scheme", name)
    try:
        parameters = inspect.signature(function)
    except ValueError:  # some functions written in C have none
        return function
    try:
        parameters.bind(*("problem", "passes")[: 1 + _takes_passes(function)])
    except TypeError:
        taken = ", ".join(parameters.parameters)
        raise SettingError(
            f"scheme {name} takes ({taken}); change it to (problem) or (problem, passes)"
        ) from None
    return function


def chooses_passes(name: str) -> bool:
    """Import the function and return whether it chooses the passes itself."""
    return not _takes_passes(load_user_scheme(name))


def plan_by_user_scheme(name: str, problem: CycleProblem, passes: int | None) -> CyclePlan:
    """Return the checked plan of the function.

    Raises `SchemeError` if the function fails or its plan is invalid; an `InfeasibleError` of the
    function is passed on.
    """
    function = load_user_scheme(name)
    given = (problem, passes) if _takes_passes(function) else (problem,)
    try:
        plan = function(*given)
    except InfeasibleError:
        raise
    except Exception as error:  # The function is the user's.
        raise SchemeError(f"scheme {name}: {describe_error(error)}") from error
    if problem_text := _find_problem(problem, plan):
        raise SchemeError(f"scheme {name}: {problem_text}")
    return plan  # type: ignore[no-any-return] # checked


def _takes_passes(function: Callable[..., Any]) -> bool:
    try:
        return "passes" in inspect.signature(function).parameters
    except ValueError:
        return False


def _find_problem(problem: CycleProblem, plan: object) -> str | None:
    """Return what is wrong with a plan, or None."""
    if not isinstance(plan, CyclePlan):
        return f"returned {type(plan).__name__}; expected CyclePlan(shards, updates)"
    if plan.shards.size != problem.learners:
        return (
            f"the plan has {plan.shards.size} learners; expected one entry for each of the "
            f"{problem.learners} learners of the problem"
        )
    if (total := int(plan.shards.sum())) > problem.shards:
        return f"the plan hands out {total} shards; expected at most {problem.shards}"
    return _find_bound(problem, plan.shards)


def _find_bound(problem: CycleProblem, shards: Ints) -> str | None:
    """Return which share is outside its bounds, or None; 0 shards leave a learner out."""
    outside = (shards > 0) & ((shards < problem.min_shards) | (shards > problem.max_shards))
    if not outside.any():
        return None
    first = int(np.argmax(outside))
    low, high = problem.min_shards[first], problem.max_shards[first]
    return (
        f"shards[{first}] of the plan is {shards[first]}; expected {low} to {high}, or 0 to leave "
        "the learner out"
    )
