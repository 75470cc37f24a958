"""Why no plan of MED exists, by how much, and changes that are enough, each made alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import numpy as np

from melisma.allocation.checks import Ints
from melisma.allocation.med.amounts import fill_cost
from melisma.allocation.med.curves import best_levels
from melisma.allocation.med.kinds import Kinds, kinds_of, lenient
from melisma.allocation.med.least_cost import LeastCost
from melisma.allocation.med.levels import soonest
from melisma.allocation.med.tree import Tree, planted
from melisma.allocation.shared import SharedProblem
from melisma.allocation.shortfall import refused

LITTLE = 2e7  # work for a nearer change, once it is known that there is no plan
NEAR = 1e-3  # between stretches of the deadlines, as a part, where work was too little to tell

Fits = Callable[[Kinds], tuple[Ints | None, bool]]
"""An association that keeps deadlines and budget, or None; and whether that is certain."""


def check_counts(problem: SharedProblem) -> None:
    """Raise if there are too few learners, or too few shards for what each must get."""
    tasks, learners = problem.fixed_s.shape
    if learners < tasks:
        raise refused(
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


def check_alone(problem: SharedProblem, kinds: Kinds) -> None:
    """Raise if a task is too much for all learners together, or a learner too slow for any."""
    first_s = kinds.fixed_s + kinds.shard_s * kinds.least
    lonely = (first_s > kinds.deadline_s[:, None]).all(axis=0) & ~kinds.optional
    hopeless = np.flatnonzero(np.isinf(soonest(kinds)))
    if hopeless.size:
        reason = f"all learners together cannot do task {hopeless[0]} by then"
        refuse_deadlines(problem, kinds, reason, tasks=hopeless)
    if lonely.any():
        slow = np.flatnonzero(lonely[kinds.kind_of])
        reason = f"learner {slow[0]} can do its min_shards of no task by then"
        refuse_deadlines(problem, kinds, reason, learners=slow)


def refuse(problem: SharedProblem, kinds: Kinds, tree: Tree) -> NoReturn:
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
    tree.run(lambda t: t.work > done + LITTLE)
    if tree.open:
        cause += " (less may do, too)"
    _refuse_cost(problem, tree.best_s, cause)


def refuse_deadlines(
    problem: SharedProblem,
    kinds: Kinds,
    reason: str,
    tasks: Ints | tuple[int, ...] = (),
    learners: Ints | tuple[int, ...] = (),
) -> NoReturn:
    """Raise with the smallest common stretch of the deadlines that allows a plan."""
    divided, sure = _found(_stretched(replace(kinds, budget=np.inf), _most(kinds)))
    if divided is None and sure:
        _refuse_least(
            problem,
            "min_shards of the learners cannot be divided among tasks with "
            f"{', '.join(map(str, problem.shards))} shards",
        )
    stretch, proven = least_stretch(kinds, _found)
    _refuse_late(problem, reason, stretch, tasks=tasks, learners=learners, proven=proven)


def refuse_assigned(problem: SharedProblem, kinds: Kinds, association: Ints) -> NoReturn:
    """Raise for an association that is given: what its learners cannot keep."""
    least = association @ kinds.least
    for task in np.flatnonzero(least > problem.shards):
        over = int(least[task] - problem.shards[task])
        raise refused(
            f"the learners assigned to task {task} must take {least[task]} shards by their "
            f"min_shards, {over} more than it has",
            constraint="min_shards",
            miss=over,
            nearest={},
            tasks=[int(task)],
        )
    for task in np.flatnonzero(association.sum(axis=1) == 0):
        raise refused(
            f"no learner is assigned to task {task}",
            constraint="assigned",
            miss=1,
            nearest={},
            tasks=[int(task)],
        )
    cap = kinds.caps(np.arange(problem.tasks), kinds.deadline_s)
    cost = fill_cost(kinds, kinds.need, association, cap)
    late = np.flatnonzero(np.isinf(cost))
    if not late.size:
        _refuse_cost(problem, float(cost.sum()), "plans with these tasks cost more")

    def fits(stretched: Kinds) -> tuple[Ints | None, bool]:
        return None if best_levels(stretched, association) is None else association, True

    stretch, _ = least_stretch(kinds, fits)
    reason = f"the learners assigned to task {late[0]} cannot do it by then"
    _refuse_late(problem, reason, stretch, tasks=late)


def least_stretch(kinds: Kinds, fits: Fits) -> tuple[float | None, bool]:
    """The smallest factor of all deadlines at which a plan fits, and whether it is proven.

    None if none fits at any. A plan needs no more than its own levels, and between the levels
    that learners can end at nothing changes: so the halving ends.
    """
    low, high = 1.0, _most(kinds)
    found, proven = fits(_stretched(kinds, high))
    while found is not None:
        levels = best_levels(_stretched(lenient(kinds), high), found)
        assert levels is not None
        own = float((levels.level_s / kinds.deadline_s).max()) * (1 + 4e-16)
        high = min(high, max(own, 1.0))
        # A plan's own factor is rounded up, the next one is not.
        last = _next_stretch(kinds, low) * (1 + 1e-12) >= high
        if last or (not proven and high <= low * (1 + NEAR)):
            return high, proven
        middle = (low + high) / 2
        counts, sure = fits(_stretched(kinds, middle))
        low, high = (low, middle) if counts is not None else (middle, high)
        found, proven = found if counts is None else counts, proven and sure
    return None, proven


def _next_stretch(kinds: Kinds, stretch: float) -> float:
    """The first factor above this at which some learner can do one shard more."""
    tasks, deadline_s = np.arange(kinds.shape[0]), kinds.deadline_s[:, None]
    more = np.maximum(kinds.caps(tasks, kinds.deadline_s * stretch) + 1, kinds.least)
    ends_s = np.where(more <= kinds.need[:, None], kinds.fixed_s + kinds.shard_s * more, np.inf)
    return float((ends_s / deadline_s).min())


def _found(kinds: Kinds) -> tuple[Ints | None, bool]:
    if np.isinf(soonest(kinds)).any():
        return None, True
    tree = planted(LeastCost.of(kinds))
    tree.run(lambda t: t.decided(kinds.budget) or t.work > LITTLE)
    fits = tree.best_s <= kinds.budget
    return tree.counts if fits else None, fits or not tree.open or tree.decided(kinds.budget)


def _most(kinds: Kinds) -> float:
    """A stretch that is enough for any association."""
    ends_s = kinds.fixed_s + kinds.shard_s * kinds.need[:, None]
    return max(1.0, float((ends_s.max(axis=1) / kinds.deadline_s).max())) * (1 + 1e-9)


def _stretched(kinds: Kinds, factor: float) -> Kinds:
    return replace(kinds, deadline_s=kinds.deadline_s * factor)


def _refuse_late(
    problem: SharedProblem,
    reason: str,
    stretch: float | None,
    *,
    tasks: Ints | tuple[int, ...] = (),
    learners: Ints | tuple[int, ...] = (),
    proven: bool = True,
) -> NoReturn:
    cause = f"deadline_s cannot be kept: {reason}"
    if stretch is None:
        cause += f", and no plan {'keeps' if proven else 'was found that keeps'} the budget either"
    elif not proven:
        cause += " (less may do, too)"
    latest_s = 0.0 if stretch is None else float((problem.deadline_s * stretch).max())
    raise refused(
        cause,
        constraint="deadline_s",
        miss=float("nan") if stretch is None else float((problem.deadline_s * (stretch - 1)).max()),
        nearest={} if stretch is None else {"stretch": stretch, "deadline_s": latest_s},
        tasks=map(int, tasks),
        learners=map(int, learners),
    )


def _refuse_cost(problem: SharedProblem, cost: float, cause: str) -> NoReturn:
    raise refused(
        f"budget is {problem.budget:g}, but {cause}",
        constraint="budget",
        miss=cost - problem.budget,
        nearest={"budget": cost},
    )


def _refuse_least(problem: SharedProblem, cause: str, miss: float | None = None) -> NoReturn:
    """Raise for `min_shards`: the largest for all that can be divided, if a plan then exists."""
    even = problem.most_even()
    kinds = kinds_of(problem.with_least(np.minimum(problem.min_shards, even)))
    raise refused(
        cause,
        constraint="min_shards",
        miss=float(problem.min_shards.max() - even) if miss is None else miss,
        nearest={} if _found(kinds)[0] is None else {"min_shards": even},
    )
