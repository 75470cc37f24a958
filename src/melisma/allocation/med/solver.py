"""MED: several tasks share uncertain learners within a budget (Eq. 4.4 of Mays).

Assign each learner to a task and divide the shards, so that the sum of the tasks' expected seconds
is least. `fixed_s` and `shard_s` are expectations over a learner's states (Eq. 4.3); with the costs
of one state the same solver is MMTT, and with `assigned` it is MMTT-Ideal.
"""

import time
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from melisma.allocation.checks import as_counts, as_floats, as_scalar, broadcast_to
from melisma.allocation.med.amounts import best_levels, fill_cheapest
from melisma.allocation.med.branch_and_bound import SearchTree, StopCheck, root_tree
from melisma.allocation.med.diagnosis import (
    check_counts,
    check_deadlines,
    raise_assigned,
    raise_infeasible,
)
from melisma.allocation.med.learner_classes import (
    LearnerClasses,
    allow_empty_assignments,
    group_learners,
    shards_by_learner,
)
from melisma.allocation.med.objective import LeastCost, LeastSum
from melisma.allocation.shared_problem import SharedPlan, SharedProblem
from melisma.errors import SettingError
from melisma.fleet.array_types import Ints

MAX_COSTS = 1 << 22  # tasks x classes, for which a few gigabytes of memory are enough
FEASIBILITY_WORK = 3e8  # of the search for any plan after the time limit, about half a minute


def med(
    problem: SharedProblem,
    assigned: ArrayLike | None = None,
    gap: float = 0.0,
    time_limit_s: float | None = None,
    max_work: float | None = None,
) -> SharedPlan:
    """Return the plan with the least sum of the tasks' seconds, with a proven lower bound.

    `assigned` fixes the task of each learner; then only the amounts are decided. Otherwise the
    search ends when the plan is proven to be within `gap` of the optimum, relative to its sum, or
    after `time_limit_s` with the best plan so far. `max_work` limits it on every machine alike, in
    steps of about 10 million a second. Without a plan by then, it continues for about half a
    minute. Raises `InfeasibleError` if no plan satisfies all constraints, or if none was
    found by then; the message says which.
    """
    gap = float(as_scalar("gap", as_floats("gap", gap)))
    if gap >= 1:
        raise SettingError(f"gap is {gap:g}; expected less than 1, relative to the sum")
    if time_limit_s is not None:
        time_limit_s = as_scalar("time_limit_s", as_floats("time_limit_s", time_limit_s))
    if max_work is not None:
        max_work = as_scalar("max_work", as_floats("max_work", max_work))
    check_counts(problem)
    if assigned is not None:
        return _plan_assigned(problem, assigned)
    classes = group_learners(problem)
    _check_size(classes)
    check_deadlines(problem, classes)
    stop = _limit(time_limit_s, max_work)
    tree = root_tree(LeastSum.for_classes(classes), stop)
    if tree.assignment is None:
        limited = time_limit_s is not None or max_work is not None
        tree.offer(_feasible_assignment(problem, classes, limited=limited))
    tree.run(stop, gap, least_nodes=1)
    assert tree.assignment is not None
    return _build_plan(problem, classes, tree.assignment, tree.bound_s)


def cheapest(problem: SharedProblem, max_nodes: int | None = None) -> tuple[float, bool]:
    """Return the least cost of a plan that meets the deadlines, and whether that is proven.

    After `max_nodes` nodes of the search, return the cost of the best plan so far.
    """
    tree = root_tree(LeastCost.for_classes(group_learners(problem)))

    def stop(tree: SearchTree) -> bool:
        enough = max_nodes is not None and tree.nodes >= max_nodes
        return enough and tree.assignment is not None

    tree.run(stop)
    return tree.best_s, not tree.open


def _check_size(classes: LearnerClasses) -> None:
    if classes.fixed_s.size > MAX_COSTS:
        tasks, different = classes.shape
        raise SettingError(
            f"{different} different learners times {tasks} tasks are {classes.fixed_s.size} costs; "
            f"med takes up to {MAX_COSTS}"
        )


def _limit(limit_s: float | None, max_work: float | None) -> StopCheck:
    """Return a check that is true after a limit, once there is a plan."""
    end_s = inf if limit_s is None else time.monotonic() + limit_s
    end_work = inf if max_work is None else max_work

    def is_reached(tree: SearchTree) -> bool:
        if tree.assignment is None:
            return False
        return tree.work >= end_work or (end_s < inf and time.monotonic() >= end_s)

    return is_reached


def _feasible_assignment(problem: SharedProblem, classes: LearnerClasses, *, limited: bool) -> Ints:
    """Return an assignment within deadlines and budget, or raise `InfeasibleError`."""
    tree = root_tree(LeastCost.for_classes(classes))
    tree.run(lambda t: t.is_decided(classes.budget) or (limited and t.work > FEASIBILITY_WORK))
    if tree.assignment is None or tree.best_s > classes.budget:
        raise_infeasible(problem, classes, tree)
    return tree.assignment


def _plan_assigned(problem: SharedProblem, assigned: ArrayLike) -> SharedPlan:
    """Return the best amounts for given tasks of the learners; -1 means idle."""
    tasks = as_counts("assigned", assigned, least=-1)
    task_of: Ints = broadcast_to((problem.learners,), {"assigned": tasks})["assigned"]
    if task_of.max() >= problem.tasks:
        raise SettingError(
            f"assigned contains task {task_of.max()}; expected 0 to {problem.tasks - 1}"
        )
    works = task_of >= 0
    if np.any(~works & (problem.min_shards > 0)):
        raise SettingError("assigned leaves a learner idle whose min_shards is not 0")
    classes = allow_empty_assignments(group_learners(problem))
    assignment = np.zeros(classes.shape, dtype=np.int64)
    np.add.at(assignment, (task_of[works], classes.class_of[works]), 1)
    if best_levels(classes, assignment) is None:
        raise_assigned(problem, classes, assignment)
    return _build_plan(problem, classes, assignment, None, task_of)


def _build_plan(
    problem: SharedProblem,
    classes: LearnerClasses,
    assignment: Ints,
    bound_s: float | None,
    task_of: Ints | None = None,
) -> SharedPlan:
    """Divide the shards at the best levels; without `bound_s`, the levels' own bound holds."""
    choice = best_levels(classes, assignment)
    assert choice is not None
    capacity = classes.capacity(np.arange(problem.tasks), choice.level_s)
    amounts = fill_cheapest(classes, classes.demand, assignment, capacity)
    shards = shards_by_learner(classes, assignment, amounts, task_of)
    return SharedPlan(problem, shards, choice.bound_s if bound_s is None else bound_s)
