"""Why no plan of MED exists, by how much, and the nearest change that is enough."""

from dataclasses import replace
from typing import NoReturn

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med_amounts import fill_cost, lowest_levels
from melisma.allocation.med_goal import least_cost
from melisma.allocation.med_kinds import Kinds
from melisma.allocation.med_levels import soonest
from melisma.allocation.med_tree import Tree, planted
from melisma.allocation.shared import SharedProblem
from melisma.allocation.shortfall import rounded_up
from melisma.errors import InfeasibleError

PATIENCE = 30  # nodes of a search for the exact nearest change; then a sufficient one is given


def check_alone(problem: SharedProblem, kinds: Kinds) -> None:
    """Raise if a task is too much for all learners together, or a learner too slow for any."""
    first_s = kinds.fixed_s + kinds.shard_s * kinds.least
    lonely = (first_s > kinds.deadline_s[:, None]).all(axis=0) & ~kinds.optional
    hopeless = np.isinf(soonest(kinds))
    if not lonely.any() and not hopeless.any():
        return
    if hopeless.any():
        task = int(np.flatnonzero(hopeless)[0])
        reason = f"all learners together cannot do task {task} by then"
    else:
        learner = int(np.flatnonzero(lonely[kinds.kind_of])[0])
        reason = f"learner {learner} can do its min_shards of no task by then"
    refuse_deadlines(problem, kinds, reason)


def refuse_deadlines(
    problem: SharedProblem, kinds: Kinds, reason: str = "no association of learners keeps them"
) -> NoReturn:
    """Raise with the smallest common stretch of the deadlines that allows a plan."""
    ends_s = kinds.fixed_s + kinds.shard_s * kinds.need[:, None]
    most = max(1.0, float((ends_s.max(axis=1) / kinds.deadline_s).max())) * (1 + 1e-9)
    if _keeps(_stretched(kinds, most)) is False:
        even, largest = problem.most_even(), int(problem.min_shards.max())
        raise InfeasibleError(
            f"min_shards of the learners cannot be divided among tasks with "
            f"{', '.join(map(str, problem.shards))} shards; min_shards of {even} for all would do",
            constraint="min_shards",
            miss=largest - even,
            nearest={"min_shards": even},
        )
    stretch, proven = _least_stretch(kinds, most)
    miss_s = float((problem.deadline_s * (stretch - 1)).max())
    raise InfeasibleError(
        f"deadline_s cannot be kept: {reason}; deadlines {rounded_up(stretch)} times as long "
        f"{'are the least that would do' if proven else 'are enough, fewer may be'}",
        constraint="deadline_s",
        miss=miss_s,
        nearest={"stretch": stretch, "deadline_s": float((problem.deadline_s * stretch).max())},
    )


def refuse(problem: SharedProblem, kinds: Kinds, tree: Tree) -> NoReturn:
    """Raise with the smallest budget that the deadlines allow, or for want of any association.

    `tree` looks for the least cost by the deadlines, and has found none within the budget.
    """
    start = tree.searched
    tree.run(lambda t: t.counts is not None and t.searched > start + PATIENCE)
    if tree.counts is None:
        refuse_deadlines(problem, kinds)
    _refuse_cost(problem, tree.best_s, proven=not tree.open)


def refuse_assigned(problem: SharedProblem, kinds: Kinds, association: Ints) -> NoReturn:
    """Raise for an association that is given: what its learners cannot keep."""
    least = association @ kinds.least
    for task in np.flatnonzero(least > problem.shards):
        raise InfeasibleError(
            f"the learners assigned to task {task} must take {least[task]} shards by their "
            f"min_shards, {least[task] - problem.shards[task]} more than it has",
            constraint="min_shards",
            miss=float(least[task] - problem.shards[task]),
            nearest={"shards": float(least[task])},
        )
    for task in np.flatnonzero(association.sum(axis=1) == 0):
        raise InfeasibleError(
            f"no learner is assigned to task {task}; one is the least",
            constraint="assigned",
            miss=1,
            nearest={"learners": 1},
        )
    late = np.isinf(lowest_levels(kinds, association))
    if not late.any():
        cap = kinds.caps(np.arange(problem.tasks), kinds.deadline_s)
        cost = float(fill_cost(kinds, kinds.need, association, cap).sum())
        _refuse_cost(problem, cost, proven=True)
    free = replace(kinds, deadline_s=np.full(problem.tasks, _latest(kinds)))
    ratio = lowest_levels(free, association) / problem.deadline_s
    latest = int(ratio.argmax())
    stretch = _enough(float(ratio.max()))
    raise InfeasibleError(
        f"deadline_s of task {latest} cannot be kept by the learners assigned to it; deadlines "
        f"{rounded_up(stretch)} times as long are the least that would do",
        constraint="deadline_s",
        miss=float(problem.deadline_s[latest] * (stretch - 1)),
        nearest={"stretch": stretch, "deadline_s": float((problem.deadline_s * stretch).max())},
    )


def _refuse_cost(problem: SharedProblem, cost: float, *, proven: bool) -> NoReturn:
    raise InfeasibleError(
        f"budget is {problem.budget:g}, but plans that keep the deadlines cost more; "
        f"{rounded_up(cost)} "
        f"{'is the least that would do' if proven else 'is enough, less may be'}",
        constraint="budget",
        miss=cost - problem.budget,
        nearest={"budget": cost},
    )


def _least_stretch(kinds: Kinds, most: float) -> tuple[float, bool]:
    """The smallest stretch at which a plan exists, and whether it is proven to be that."""
    steps = _steps(kinds, most)
    low, high, proven = -1, steps.size - 1, True
    while high - low > 1:
        middle = (low + high) // 2
        keeps = _keeps(_stretched(kinds, steps[middle]))
        proven = proven and keeps is not None
        low, high = (low, middle) if keeps else (middle, high)
    return float(steps[high]), proven


def _steps(kinds: Kinds, most: float) -> Floats:
    """All stretches at which some learner can do one shard more, and `most`."""
    found = [np.array([most])]
    for task, need in enumerate(kinds.need):
        amount = np.arange(1, int(need) + 1)[:, None]
        ends_s = kinds.fixed_s[task] + kinds.shard_s[task] * amount
        deadline_s = float(kinds.deadline_s[task])
        ratio = ends_s.ravel() / deadline_s
        ratio = np.where(ratio * deadline_s < ends_s.ravel(), np.nextafter(ratio, np.inf), ratio)
        found.append(ratio[(ratio >= 1) & (ratio < most)])
    return np.unique(np.concatenate(found))


def _keeps(kinds: Kinds) -> bool | None:
    """Whether some association keeps the deadlines; None if that was not settled."""
    if np.isinf(soonest(kinds)).any():
        return False
    tree = planted(least_cost(kinds))
    tree.run(lambda t: t.counts is not None or t.searched > PATIENCE)
    return True if tree.counts is not None else None if tree.open else False


def _stretched(kinds: Kinds, factor: float) -> Kinds:
    return replace(kinds, deadline_s=kinds.deadline_s * factor)


def _enough(factor: float) -> float:
    """The factor, nudged up so that the product is not below by rounding."""
    return max(1.0, factor) * (1 + 4e-16)


def _latest(kinds: Kinds) -> float:
    return float((kinds.fixed_s + kinds.shard_s * kinds.need[:, None]).max()) * 2
