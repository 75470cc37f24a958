"""Why no plan of MED exists, by how much, and which changes of a single setting are enough.

Such a change is as hard to find as a plan. So all searches for one error share a budget of work,
and the message says where a smaller change may be enough.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from melisma.allocation.infeasible import infeasible_error, learner_list, task_field
from melisma.allocation.med.amounts import best_levels, fill_cost
from melisma.allocation.med.branch_and_bound import SearchTree, root_tree
from melisma.allocation.med.learner_classes import (
    LearnerClasses,
    allow_empty_assignments,
    group_learners,
)
from melisma.allocation.med.levels import earliest_levels
from melisma.allocation.med.objective import LeastCost
from melisma.allocation.shared_problem import SharedProblem
from melisma.fleet.array_types import Floats, Ints

DIAGNOSIS_WORK = 6e7  # for all changes that one error reports
SEARCH_SHARE = 4  # a search uses at most 1 / SEARCH_SHARE of the work left
STRETCH_PRECISION = 1e-3  # relative, where the work did not suffice for a proof
MAX_DATA_PARTS = 1000

PlanSearch = Callable[[LearnerClasses], tuple[Ints | None, bool]]
"""Return a feasible assignment or None, and whether that is proven."""


@dataclass
class BoundedSearch:
    """A `PlanSearch` that shares `work_left` among its calls."""

    work_left: float

    def __call__(self, classes: LearnerClasses) -> tuple[Ints | None, bool]:
        minimum = classes.members @ np.where(classes.optional, 0, classes.min_shards)
        if minimum > classes.demand.sum():
            return None, True
        if np.isinf(earliest_levels(classes)).any():
            return None, True
        tree = root_tree(LeastCost.for_classes(classes))
        limit = self.work_left / SEARCH_SHARE
        tree.run(lambda t: t.is_decided(classes.budget) or t.work > limit)
        self.work_left -= tree.work
        fits = tree.best_s <= classes.budget and tree.assignment is not None
        proven = fits or not tree.open or tree.is_decided(classes.budget)
        return tree.assignment if fits else None, proven


def check_counts(problem: SharedProblem) -> None:
    """Raise if there are too few learners, or fewer shards than their `min_shards`."""
    tasks, learners = problem.fixed_s.shape
    if learners < tasks:
        raise infeasible_error(
            f"{tasks} tasks need as many learners, one task each, and there are {learners}; "
            "add learners or submit fewer tasks",
            constraint="learners",
            miss=tasks - learners,
            nearest={},
        )
    minimum, total = int(problem.min_shards.sum()), int(problem.shards.sum())
    if minimum > total:
        over = minimum - total
        cause = f"min_shards of all learners sum to {minimum}, {over} more than the {total} shards"
        _raise_min_shards(problem, cause, over)


def check_deadlines(problem: SharedProblem, classes: LearnerClasses) -> None:
    """Raise if all learners together miss a deadline, or a learner is too slow for every task."""
    first_s = classes.fixed_s + classes.shard_s * classes.min_shards
    too_slow = (first_s > classes.deadline_s[:, None]).all(axis=0) & ~classes.optional
    late_tasks = np.flatnonzero(np.isinf(earliest_levels(classes)))
    if late_tasks.size:
        reason = f"all learners together cannot finish {task_field(int(late_tasks[0]))} in time"
        raise_deadlines(problem, classes, reason, tasks=late_tasks)
    if too_slow.any():
        learners = np.flatnonzero(too_slow[classes.class_of])
        reason = f"{learner_list(learners)} cannot train min_shards of any task in time"
        raise_deadlines(problem, classes, reason, learners=learners)


def raise_infeasible(problem: SharedProblem, classes: LearnerClasses, tree: SearchTree) -> NoReturn:
    """Raise for the budget, or for the deadlines if no assignment meets them.

    `tree` searched for the least cost by the deadlines and found none within the budget.
    """
    if tree.assignment is None:
        reason = "no assignment of learners to tasks meets them"
        raise_deadlines(problem, classes, reason if not tree.open else f"{reason} as far as found")
    cause = "every plan that meets the deadlines costs more"
    if tree.bound_s <= classes.budget:
        cause = "no plan within it was found, and it is not proven that none exists"
    done = tree.work
    tree.run(lambda t: t.work > done + DIAGNOSIS_WORK / SEARCH_SHARE)
    search = BoundedSearch(DIAGNOSIS_WORK)
    stretch, proven = least_stretch(classes, search)
    nearest = {"budget": tree.best_s, "stretch": stretch, "data": _most_data(classes, search)}
    _raise_budget(problem, nearest, cause, certain=proven and not tree.open)


def raise_deadlines(
    problem: SharedProblem,
    classes: LearnerClasses,
    reason: str,
    tasks: Ints | tuple[int, ...] = (),
    learners: Ints | tuple[int, ...] = (),
) -> NoReturn:
    """Raise with the smallest common factor of the deadlines that allows a plan."""
    search, unlimited = BoundedSearch(DIAGNOSIS_WORK), replace(classes, budget=np.inf)
    assignment, certain = search(_stretch(unlimited, _max_stretch(classes)))
    if assignment is None and certain:
        shards = ", ".join(map(str, problem.shards))
        cause = f"min_shards of the learners cannot be divided among tasks with {shards} shards"
        _raise_min_shards(problem, cause)
    stretch, proven = least_stretch(classes, search)
    nearest = {"stretch": stretch, "data": _most_data(classes, search)}
    if stretch is None:
        reason += ", and longer deadlines exceed the budget" + (
            "" if proven else ", as far as found"
        )
        stretch, _ = least_stretch(unlimited, search)
    miss_s = 0.0 if stretch is None else float((problem.deadline_s * (stretch - 1)).max())
    raise infeasible_error(
        f"deadline_s cannot be met: {reason}",
        constraint="deadline_s",
        miss=miss_s,
        nearest=_without_none(nearest),
        tasks=map(int, tasks),
        learners=map(int, learners),
        certain=proven,
    )


def raise_assigned(problem: SharedProblem, classes: LearnerClasses, assignment: Ints) -> NoReturn:
    """Raise for an assignment that the caller passed and that is infeasible."""
    minimum = assignment @ classes.min_shards
    for task in np.flatnonzero(minimum > problem.shards):
        over = int(minimum[task] - problem.shards[task])
        raise infeasible_error(
            f"min_shards of the learners assigned to {task_field(int(task))} sum to "
            f"{minimum[task]}, {over} more than its shards",
            constraint="min_shards",
            miss=over,
            nearest={},
            tasks=[int(task)],
        )
    for task in np.flatnonzero(assignment.sum(axis=1) == 0):
        raise infeasible_error(
            f"no learner is assigned to {task_field(int(task))}",
            constraint="assigned",
            miss=1,
            nearest={},
            tasks=[int(task)],
        )

    def search(changed: LearnerClasses) -> tuple[Ints | None, bool]:
        return None if best_levels(changed, assignment) is None else assignment, True

    capacity = classes.capacity(np.arange(problem.tasks), classes.deadline_s)
    cost = fill_cost(classes, classes.demand, assignment, capacity)
    late = np.flatnonzero(np.isinf(cost))
    stretch, _ = least_stretch(classes, search)
    if not late.size:
        nearest = {"budget": float(cost.sum()), "stretch": stretch}
        _raise_budget(problem, nearest, "plans with this assignment cost more")
    task_name = task_field(int(late[0]))
    cause = f"deadline_s cannot be met: the learners assigned to {task_name} need more time"
    longer = stretch or least_stretch(replace(classes, budget=np.inf), search)[0] or 1.0
    raise infeasible_error(
        cause if stretch else f"{cause}, and longer deadlines exceed the budget",
        constraint="deadline_s",
        miss=float((problem.deadline_s * (longer - 1)).max()),
        nearest=_without_none({"stretch": stretch}),
        tasks=map(int, late),
    )


def least_stretch(classes: LearnerClasses, search: PlanSearch) -> tuple[float | None, bool]:
    """Return the smallest factor of all deadlines that allows a plan, and whether it is proven.

    None if no factor does. Bisection ends because a plan needs no more than its own levels, and
    between the levels of single shards nothing changes.
    """
    low, high = 1.0, _max_stretch(classes)
    assignment, proven = search(_stretch(classes, high))
    while assignment is not None:
        levels = best_levels(_stretch(allow_empty_assignments(classes), high), assignment)
        assert levels is not None
        high = min(high, max(_factor(classes, levels.level_s), 1.0))
        # A plan's own factor may be rounded up, the next one is not.
        last = _next_stretch(classes, low) * (1 + 1e-12) >= high
        if last or (not proven and high <= low * (1 + STRETCH_PRECISION)):
            return high, proven
        middle = (low + high) / 2
        shorter, certain = search(_stretch(classes, middle))
        low, high = (low, middle) if shorter is not None else (middle, high)
        assignment, proven = assignment if shorter is None else shorter, proven and certain
    return None, proven


def _factor(classes: LearnerClasses, level_s: Floats) -> float:
    """Return the factor at which no deadline is below its level, in the last bit too."""
    factor = float((level_s / classes.deadline_s).max())
    return factor if np.all(classes.deadline_s * factor >= level_s) else factor * (1 + 4e-16)


def _next_stretch(classes: LearnerClasses, stretch: float) -> float:
    """Return the first factor above `stretch` at which a learner can train one shard more."""
    tasks, deadline_s = np.arange(classes.shape[0]), classes.deadline_s[:, None]
    capacity = classes.capacity(tasks, classes.deadline_s * stretch)
    more = np.maximum(capacity + 1, classes.min_shards)
    ends_s = classes.fixed_s + classes.shard_s * more
    ends_s = np.where(more <= classes.demand[:, None], ends_s, np.inf)
    return float((ends_s / deadline_s).min())


def _max_stretch(classes: LearnerClasses) -> float:
    """Return a factor that is enough for any assignment."""
    ends_s = classes.fixed_s + classes.shard_s * classes.demand[:, None]
    return max(1.0, float((ends_s.max(axis=1) / classes.deadline_s).max())) * (1 + 1e-9)


def _stretch(classes: LearnerClasses, factor: float) -> LearnerClasses:
    return replace(classes, deadline_s=classes.deadline_s * factor)


def _most_data(classes: LearnerClasses, search: PlanSearch) -> float | None:
    """Return the largest fraction of each task's shards for which a plan was found."""
    parts = min(int(classes.demand.max()), MAX_DATA_PARTS)
    low, high = 0, parts
    while high - low > 1:
        middle = (low + high) // 2
        demand = np.maximum(classes.demand * middle // parts, 1)
        fits = search(replace(classes, demand=demand))[0] is not None
        low, high = (middle, high) if fits else (low, middle)
    return low / parts if low else None


def _without_none(nearest: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in nearest.items() if value is not None}


def _raise_budget(
    problem: SharedProblem, nearest: dict[str, float | None], cause: str, *, certain: bool = True
) -> NoReturn:
    changes = _without_none(nearest)
    raise infeasible_error(
        f"budget is {problem.budget:g}, but {cause}",
        constraint="budget",
        miss=changes["budget"] - problem.budget,
        nearest=changes,
        certain=certain,
    )


def _raise_min_shards(problem: SharedProblem, cause: str, miss: float | None = None) -> NoReturn:
    """Raise with the largest `min_shards` that is enough as a limit for all learners."""
    search = BoundedSearch(DIAGNOSIS_WORK)
    low, high = -1, int(problem.min_shards.max())
    while high - low > 1:
        middle = (low + high) // 2
        changed = problem.with_min_shards(np.minimum(problem.min_shards, middle))
        fits = search(group_learners(changed))[0] is not None
        low, high = (middle, high) if fits else (low, middle)
    raise infeasible_error(
        cause,
        constraint="min_shards",
        miss=float(problem.min_shards.max() - max(low, 0)) if miss is None else miss,
        nearest={} if low < 0 else {"min_shards": low},
    )
