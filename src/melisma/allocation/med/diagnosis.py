"""Why no plan of MED exists, by how much, and changes that are enough, each made alone.

Such a change is as hard to find as a plan. So all that is looked for here shares an amount of work;
what is found by then is enough, and the message says where less may do.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.infeasible import infeasible_error, learner_list, task_field
from melisma.allocation.med.amounts import fill_cost
from melisma.allocation.med.branch_and_bound import Tree, root_tree
from melisma.allocation.med.curves import best_levels
from melisma.allocation.med.learner_classes import (
    LearnerClasses,
    allow_empty_assignments,
    group_learners,
)
from melisma.allocation.med.least_cost import LeastCost
from melisma.allocation.med.levels import soonest
from melisma.allocation.shared_problem import SharedProblem

WORK = 6e7  # for all that a refusal says would do
EACH = 4  # one look takes so much of what is left, as its inverse
NEAR = 1e-3  # between factors, as a part, where work was too little to tell them apart
PARTS = 1000  # of all data, at the most

Fits = Callable[[LearnerClasses], tuple[Ints | None, bool]]
"""An association that keeps deadlines and budget, or None; and whether that is certain."""


@dataclass
class Looks:
    """Looks for plans of changed problems, with so much work in all."""

    left: float

    def __call__(self, kinds: LearnerClasses) -> tuple[Ints | None, bool]:
        """As `Fits`; the more is left, the longer it looks."""
        if kinds.copies @ np.where(kinds.optional, 0, kinds.least) > kinds.need.sum():
            return None, True
        if np.isinf(soonest(kinds)).any():
            return None, True
        tree = root_tree(LeastCost.of(kinds))
        most = self.left / EACH
        tree.run(lambda t: t.decided(kinds.budget) or t.work > most)
        self.left -= tree.work
        fits = tree.best_s <= kinds.budget and tree.counts is not None
        return tree.counts if fits else None, fits or not tree.open or tree.decided(kinds.budget)


def check_counts(problem: SharedProblem) -> None:
    """Raise if there are too few learners, or too few shards for what each must get."""
    tasks, learners = problem.fixed_s.shape
    if learners < tasks:
        raise infeasible_error(
            f"{learners} learners cannot work for {tasks} tasks, one task each",
            constraint="learners",
            miss=tasks - learners,
            nearest={},
        )
    least, total = int(problem.min_shards.sum()), int(problem.shards.sum())
    if least > total:
        _refuse_least(
            problem,
            f"min_shards of all learners come to {least}, {least - total} more than the {total} "
            "shards there are",
            least - total,
        )


def check_alone(problem: SharedProblem, kinds: LearnerClasses) -> None:
    """Raise if a task is too much for all learners together, or a learner too slow for any."""
    first_s = kinds.fixed_s + kinds.shard_s * kinds.least
    lonely = (first_s > kinds.deadline_s[:, None]).all(axis=0) & ~kinds.optional
    hopeless = np.flatnonzero(np.isinf(soonest(kinds)))
    if hopeless.size:
        reason = f"all learners together cannot do {task_field(int(hopeless[0]))} by then"
        refuse_deadlines(problem, kinds, reason, tasks=hopeless)
    if lonely.any():
        slow = np.flatnonzero(lonely[kinds.kind_of])
        reason = f"{learner_list(slow)} can do min_shards of no task by then"
        refuse_deadlines(problem, kinds, reason, learners=slow)


def refuse(problem: SharedProblem, kinds: LearnerClasses, tree: Tree) -> NoReturn:
    """Raise with a budget that the deadlines allow, or for want of any association.

    `tree` looks for the least cost by the deadlines, and has found none within the budget.
    """
    if tree.counts is None:
        found = "no association of learners keeps them"
        refuse_deadlines(problem, kinds, found if not tree.open else f"{found} that was found")
    cause = "plans that keep the deadlines cost more"
    if tree.bound_s <= kinds.budget:
        cause = "no plan within it was found, nor is it proven that there is none"
    done = tree.work
    tree.run(lambda t: t.work > done + WORK / EACH)
    looks = Looks(WORK)
    stretch, proven = least_stretch(kinds, looks)
    nearest = {"budget": tree.best_s, "stretch": stretch, "data": _most_data(kinds, looks)}
    _refuse_cost(problem, nearest, cause, certain=proven and not tree.open)


def refuse_deadlines(
    problem: SharedProblem,
    kinds: LearnerClasses,
    reason: str,
    tasks: Ints | tuple[int, ...] = (),
    learners: Ints | tuple[int, ...] = (),
) -> NoReturn:
    """Raise with the smallest common stretch of the deadlines that allows a plan."""
    looks, free = Looks(WORK), replace(kinds, budget=np.inf)
    divided, sure = looks(_stretched(free, _most(kinds)))
    if divided is None and sure:
        _refuse_least(
            problem,
            "min_shards of the learners cannot be divided among tasks with "
            f"{', '.join(map(str, problem.shards))} shards",
        )
    stretch, proven = least_stretch(kinds, looks)
    nearest = {"stretch": stretch, "data": _most_data(kinds, looks)}
    if stretch is None:
        reason += ", and no longer ones keep the budget" + ("" if proven else ", as far as found")
        stretch, _ = least_stretch(free, looks)
    miss_s = 0.0 if stretch is None else float((problem.deadline_s * (stretch - 1)).max())
    raise infeasible_error(
        f"deadline_s cannot be kept: {reason}",
        constraint="deadline_s",
        miss=miss_s,
        nearest=_known(nearest),
        tasks=map(int, tasks),
        learners=map(int, learners),
        certain=proven,
    )


def refuse_assigned(problem: SharedProblem, kinds: LearnerClasses, association: Ints) -> NoReturn:
    """Raise for an association that is given: what its learners cannot keep."""
    least = association @ kinds.least
    for task in np.flatnonzero(least > problem.shards):
        over = int(least[task] - problem.shards[task])
        raise infeasible_error(
            f"the learners assigned to {task_field(int(task))} must take {least[task]} shards by "
            f"their min_shards, {over} more than it has",
            constraint="min_shards",
            miss=over,
            nearest={},
            tasks=[int(task)],
        )
    for task in np.flatnonzero(association.sum(axis=1) == 0):
        raise infeasible_error(
            f"no learner is assigned to {task_field(int(task))}",
            constraint="assigned",
            miss=1,
            nearest={},
            tasks=[int(task)],
        )

    def fits(changed: LearnerClasses) -> tuple[Ints | None, bool]:
        return None if best_levels(changed, association) is None else association, True

    cap = kinds.caps(np.arange(problem.tasks), kinds.deadline_s)
    cost = fill_cost(kinds, kinds.need, association, cap)
    late = np.flatnonzero(np.isinf(cost))
    stretch, _ = least_stretch(kinds, fits)
    if not late.size:
        nearest = {"budget": float(cost.sum()), "stretch": stretch}
        _refuse_cost(problem, nearest, "plans with these tasks cost more")
    cause = (
        f"deadline_s cannot be kept: the learners assigned to {task_field(int(late[0]))} cannot "
        "do it by then"
    )
    longer = stretch or least_stretch(replace(kinds, budget=np.inf), fits)[0] or 1.0
    raise infeasible_error(
        cause if stretch else f"{cause}, and no longer ones keep the budget",
        constraint="deadline_s",
        miss=float((problem.deadline_s * (longer - 1)).max()),
        nearest=_known({"stretch": stretch}),
        tasks=map(int, late),
    )


def least_stretch(kinds: LearnerClasses, fits: Fits) -> tuple[float | None, bool]:
    """The smallest factor of all deadlines at which a plan fits, and whether it is proven.

    None if none fits at any. A plan needs no more than its own levels, and between the levels
    that learners can end at nothing changes: so the halving ends.
    """
    low, high = 1.0, _most(kinds)
    found, proven = fits(_stretched(kinds, high))
    while found is not None:
        levels = best_levels(_stretched(allow_empty_assignments(kinds), high), found)
        assert levels is not None
        high = min(high, max(_factor(kinds, levels.level_s), 1.0))
        # A plan's own factor may be rounded up, the next one is not.
        last = _next_stretch(kinds, low) * (1 + 1e-12) >= high
        if last or (not proven and high <= low * (1 + NEAR)):
            return high, proven
        middle = (low + high) / 2
        counts, sure = fits(_stretched(kinds, middle))
        low, high = (low, middle) if counts is not None else (middle, high)
        found, proven = found if counts is None else counts, proven and sure
    return None, proven


def _factor(kinds: LearnerClasses, level_s: Floats) -> float:
    """By how much deadlines must grow so that none is below its level, in the last bit too."""
    factor = float((level_s / kinds.deadline_s).max())
    return factor if np.all(kinds.deadline_s * factor >= level_s) else factor * (1 + 4e-16)


def _next_stretch(kinds: LearnerClasses, stretch: float) -> float:
    """The first factor above this at which some learner can do one shard more."""
    tasks, deadline_s = np.arange(kinds.shape[0]), kinds.deadline_s[:, None]
    more = np.maximum(kinds.caps(tasks, kinds.deadline_s * stretch) + 1, kinds.least)
    ends_s = np.where(more <= kinds.need[:, None], kinds.fixed_s + kinds.shard_s * more, np.inf)
    return float((ends_s / deadline_s).min())


def _most_data(kinds: LearnerClasses, looks: Looks) -> float | None:
    """The largest part of each task's shards, rounded down, for which a plan was found."""
    parts = min(int(kinds.need.max()), PARTS)
    low, high = 0, parts
    while high - low > 1:
        middle = (low + high) // 2
        need = np.maximum(kinds.need * middle // parts, 1)
        low, high = (low, middle) if looks(replace(kinds, need=need))[0] is None else (middle, high)
    return low / parts if low else None


def _most(kinds: LearnerClasses) -> float:
    """A stretch that is enough for any association."""
    ends_s = kinds.fixed_s + kinds.shard_s * kinds.need[:, None]
    return max(1.0, float((ends_s.max(axis=1) / kinds.deadline_s).max())) * (1 + 1e-9)


def _stretched(kinds: LearnerClasses, factor: float) -> LearnerClasses:
    return replace(kinds, deadline_s=kinds.deadline_s * factor)


def _known(nearest: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in nearest.items() if value is not None}


def _refuse_cost(
    problem: SharedProblem, nearest: dict[str, float | None], cause: str, *, certain: bool = True
) -> NoReturn:
    known = _known(nearest)
    raise infeasible_error(
        f"budget is {problem.budget:g}, but {cause}",
        constraint="budget",
        miss=known["budget"] - problem.budget,
        nearest=known,
        certain=certain,
    )


def _refuse_least(problem: SharedProblem, cause: str, miss: float | None = None) -> NoReturn:
    """Raise for `min_shards`: the largest that is enough when those of all are cut to it."""
    looks = Looks(WORK)
    low, high = -1, int(problem.min_shards.max())
    while high - low > 1:
        middle = (low + high) // 2
        fits, _ = looks(
            group_learners(problem.with_min_shards(np.minimum(problem.min_shards, middle)))
        )
        low, high = (low, middle) if fits is None else (middle, high)
    raise infeasible_error(
        cause,
        constraint="min_shards",
        miss=float(problem.min_shards.max() - max(low, 0)) if miss is None else miss,
        nearest={} if low < 0 else {"min_shards": low},
    )
