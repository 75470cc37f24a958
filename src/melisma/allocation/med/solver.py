"""MED: several tasks share uncertain learners within a budget (Eq. 4.4 of Mays).

Who works for which task, with how many shards, so that the sum of the tasks' expected seconds is
least. `fixed_s` and `shard_s` are expectations over a learner's states, Eq. 4.3; with the costs of
one state instead, the same solver is MMTT, and with `assigned` it is MMTT-Ideal.
"""

import time

import numpy as np
from numpy.typing import ArrayLike

from melisma.allocation.checks import Ints, as_counts, as_floats, as_scalar, broadcast_to
from melisma.allocation.med.amounts import filled
from melisma.allocation.med.branch_and_bound import StopCheck, root_tree
from melisma.allocation.med.curves import best_levels
from melisma.allocation.med.diagnosis import check_alone, check_counts, refuse, refuse_assigned
from melisma.allocation.med.learner_classes import (
    LearnerClasses,
    allow_empty_assignments,
    group_learners,
    shards_by_learner,
)
from melisma.allocation.med.least_cost import LeastCost
from melisma.allocation.med.least_sum import LeastSum
from melisma.allocation.shared_problem import SharedPlan, SharedProblem
from melisma.errors import SettingError

LARGEST = 1 << 22  # tasks x kinds, for which a few gigabytes of memory are enough
WORK = 3e8  # of a search for any plan at all, beyond the time limit


def med(
    problem: SharedProblem,
    assigned: ArrayLike | None = None,
    gap: float = 0.0,
    time_limit_s: float | None = None,
) -> SharedPlan:
    """The plan with the least sum of the tasks' seconds, and a bound that proves how good it is.

    `assigned` fixes for each learner its task; then only the amounts are decided. Otherwise the
    search ends when the plan is proven to be within `gap` of the best, as a part of its sum, or
    after `time_limit_s` with the best plan so far. If there is none by then, it goes on until a
    certain amount of work is done, about half a minute. Raises `InfeasibleError` if no plan keeps
    all constraints, or if none was found in all that time; the message says which.
    """
    gap = float(as_scalar("gap", as_floats("gap", gap)))
    if gap >= 1:
        raise SettingError(f"gap is {gap:g}; expected less than 1, a part of the sum")
    limit_s = (
        None
        if time_limit_s is None
        else as_scalar("time_limit_s", as_floats("time_limit_s", time_limit_s))
    )
    check_counts(problem)
    if assigned is not None:
        return _with(problem, assigned)
    kinds = group_learners(problem)
    _check_size(kinds)
    check_alone(problem, kinds)
    late = _timer(limit_s)
    tree = root_tree(LeastSum.of(kinds), late)
    if tree.counts is None:
        tree.offer(_affordable(problem, kinds, patient=limit_s is None))
    tree.run(late, gap)
    assert tree.counts is not None
    return _plan(problem, kinds, tree.counts, tree.bound_s)


def cheapest(problem: SharedProblem, patience: int | None = None) -> tuple[float, bool]:
    """The least cost of a plan that keeps the deadlines, and whether that is proven.

    After `patience` nodes of the search the cost of the best plan so far is enough.
    """
    tree = root_tree(LeastCost.of(group_learners(problem)))
    tree.run(lambda t: patience is not None and t.searched >= patience and t.counts is not None)
    return tree.best_s, not tree.open


def _affordable(problem: SharedProblem, kinds: LearnerClasses, *, patient: bool) -> Ints:
    """An association that keeps deadlines and budget, or the error that says why there is none."""
    tree = root_tree(LeastCost.of(kinds))
    tree.run(lambda t: t.decided(kinds.budget) or (not patient and t.work > WORK))
    if tree.counts is None or tree.best_s > kinds.budget:
        refuse(problem, kinds, tree)
    return tree.counts


def _check_size(kinds: LearnerClasses) -> None:
    if kinds.fixed_s.size > LARGEST:
        raise SettingError(
            f"{kinds.shape[1]} different learners times {kinds.shape[0]} tasks are "
            f"{kinds.fixed_s.size}; med takes up to {LARGEST}"
        )


def _with(problem: SharedProblem, assigned: ArrayLike) -> SharedPlan:
    """The best amounts when each learner's task is given; -1 for one that stays idle."""
    given = as_counts("assigned", assigned, least=-1)
    task_of: Ints = broadcast_to((problem.learners,), {"assigned": given})["assigned"]
    if task_of.max() >= problem.tasks:
        raise SettingError(
            f"assigned names task {task_of.max()}; the {problem.tasks} tasks count from 0"
        )
    works = task_of >= 0
    if np.any(~works & (problem.min_shards > 0)):
        raise SettingError("assigned leaves a learner idle whose min_shards is not 0")
    kinds = allow_empty_assignments(group_learners(problem))
    association = np.zeros(kinds.shape, dtype=np.int64)
    np.add.at(association, (task_of[works], kinds.kind_of[works]), 1)
    if best_levels(kinds, association) is None:
        refuse_assigned(problem, kinds, association)
    return _plan(problem, kinds, association, None, task_of)


def _plan(
    problem: SharedProblem,
    kinds: LearnerClasses,
    association: Ints,
    bound_s: float | None,
    task_of: Ints | None = None,
) -> SharedPlan:
    found = best_levels(kinds, association)
    assert found is not None
    cap = kinds.caps(np.arange(problem.tasks), found.level_s)
    amounts = filled(kinds, kinds.need, association, cap)
    shards = shards_by_learner(kinds, association, amounts, task_of)
    return SharedPlan(problem, shards, found.bound_s if bound_s is None else bound_s)


def _timer(limit_s: float | None) -> StopCheck:
    if limit_s is None:
        return lambda _: False
    end_s = time.monotonic() + limit_s
    return lambda tree: tree.counts is not None and time.monotonic() >= end_s
