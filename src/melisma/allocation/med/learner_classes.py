"""The problem of MED as its solver sees it: kinds of learners, in an order of their own.

Learners that nothing tells apart are one kind with several copies, so that exchanging them is
never tried. Kinds are sorted by price and then by all else, so that the order in which learners
are listed decides nothing, and the cheapest comes first wherever money matters.
A learner that may stay idle (`min_shards` 0) is an optional one with at least one shard.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from melisma.allocation.checks import BUDGET_TOLERANCE, Floats, Ints
from melisma.allocation.shared_problem import SharedProblem

Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class LearnerClasses:
    """Tasks x kinds: costs, how many learners are alike, and what each must get."""

    fixed_s: Floats
    shard_s: Floats
    price: Floats
    least: Ints
    copies: Ints
    optional: Flags
    need: Ints
    deadline_s: Floats
    budget: float
    kind_of: Ints

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of tasks and of kinds."""
        return int(self.fixed_s.shape[0]), int(self.fixed_s.shape[1])

    def caps(self, task: Ints, level_s: Floats) -> Ints:
        """Rows x kinds: the most shards of a row's task that end by its level; 0 if too few."""
        fixed_s, shard_s = self.fixed_s[task], self.shard_s[task]
        edge_s, most = level_s[:, None], self.need[task][:, None]
        found = np.clip((edge_s - fixed_s) / shard_s, 0, most).astype(np.int64)
        # The quotient is off by rounding; the expression of the model decides.
        found -= fixed_s + shard_s * found > edge_s
        found += (found < most) & (fixed_s + shard_s * (found + 1) <= edge_s)
        return np.where(found >= self.least, found, 0)

    def only(self, task: int, some: Ints) -> "LearnerClasses":
        """One task and some kinds, as if there were no others."""
        one = [task]
        return replace(
            self,
            fixed_s=self.fixed_s[one][:, some],
            shard_s=self.shard_s[one][:, some],
            price=self.price[some],
            least=self.least[some],
            copies=self.copies[some],
            optional=self.optional[some],
            need=self.need[one],
            deadline_s=self.deadline_s[one],
        )


def group_learners(problem: SharedProblem) -> LearnerClasses:
    """Sort learners by what tells them apart and put equal ones together."""
    marks = np.vstack([problem.price, problem.min_shards, problem.shard_s, problem.fixed_s])
    order = np.lexsort(marks[::-1])
    marks = marks[:, order]
    new = np.ones(order.size, dtype=bool)
    new[1:] = np.any(marks[:, 1:] != marks[:, :-1], axis=0)
    first = order[new]
    kind_of = np.empty(order.size, dtype=np.int64)
    kind_of[order] = np.cumsum(new) - 1
    least = problem.min_shards[first]
    ends_s = problem.fixed_s + problem.shard_s * problem.shards[:, None]
    return LearnerClasses(
        fixed_s=problem.fixed_s[:, first],
        shard_s=problem.shard_s[:, first],
        price=problem.price[first],
        least=np.maximum(least, 1),
        copies=np.bincount(kind_of),
        optional=least == 0,
        need=problem.shards,
        # Nobody works longer than for all shards of a task.
        deadline_s=np.minimum(problem.deadline_s, ends_s.max(axis=1)),
        budget=problem.budget * (1 + BUDGET_TOLERANCE),
        kind_of=kind_of,
    )


def allow_empty_assignments(kinds: LearnerClasses) -> LearnerClasses:
    """The same kinds, where an optional learner may have a task and yet no shards of it."""
    return replace(kinds, least=np.where(kinds.optional, 0, kinds.least))


def shards_by_learner(
    kinds: LearnerClasses, counts: Ints, amounts: Ints, task_of: Ints | None = None
) -> Ints:
    """Tasks x learners: each kind's shards of a task, as evenly as they go among its learners.

    `task_of` says which learners of a kind have which task; without it, the first ones.
    """
    if task_of is None:
        task_of = _assign_tasks(kinds, counts)
    tasks, works = kinds.shape[0], np.flatnonzero((task_of >= 0) & (task_of < kinds.shape[0]))
    team = kinds.kind_of[works] * tasks + task_of[works]
    order = np.argsort(team, kind="stable")
    some, team = works[order], team[order]
    size = np.bincount(team, minlength=amounts.size)
    place = np.arange(some.size) - (np.cumsum(size) - size)[team]
    total, size = amounts.T.ravel()[team], size[team]
    shards = np.zeros((tasks, kinds.kind_of.size), dtype=np.int64)
    shards[task_of[some], some] = total // size + (place < total % size)
    return shards


def _assign_tasks(kinds: LearnerClasses, counts: Ints) -> Ints:
    """For each learner a task, so that the counts of its kind come out."""
    tasks = kinds.shape[0]
    idle = kinds.copies - counts.sum(axis=0)
    every = np.vstack([counts, idle]).T
    task_of = np.empty(kinds.kind_of.size, dtype=np.int64)
    order = np.argsort(kinds.kind_of, kind="stable")
    task_of[order] = np.repeat(np.tile(np.arange(tasks + 1), every.shape[0]), every.ravel())
    return task_of
