"""Classes of identical learners, the form in which the solver sees a `SharedProblem`.

Learners with equal costs, price and `min_shards` form one class with several members, so that
exchanging them is never tried. Classes are sorted by price and then by all other fields: plans do
not depend on the order of learners, and the cheapest class comes first.
A learner that may stay idle (`min_shards` = 0) is optional and takes at least one shard if used.
"""

from dataclasses import dataclass, replace

import numpy as np

from melisma.allocation.checks import BUDGET_TOLERANCE
from melisma.allocation.shared_problem import SharedProblem
from melisma.fleet.array_types import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class LearnerClasses:
    """Costs (tasks x classes), price and members of each class, and the demand of each task.

    `class_of` maps learners to classes. `min_shards` is at least 1.
    """

    fixed_s: Floats
    shard_s: Floats
    price: Floats
    min_shards: Ints
    members: Ints
    optional: Bools
    demand: Ints
    deadline_s: Floats
    budget: float
    class_of: Ints

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of tasks and of classes."""
        return int(self.fixed_s.shape[0]), int(self.fixed_s.shape[1])

    def capacity(self, task: Ints, level_s: Floats) -> Ints:
        """Return the most shards of `task[i]` that a learner ends by `level_s[i]`, rows x classes.

        0 where that is less than `min_shards`.
        """
        fixed_s, shard_s = self.fixed_s[task], self.shard_s[task]
        end_s, limit = level_s[:, None], self.demand[task][:, None]
        shards = np.clip((end_s - fixed_s) / shard_s, 0, limit).astype(np.int64)
        # The quotient is off by rounding; the expression of the cost model decides.
        shards -= fixed_s + shard_s * shards > end_s
        shards += (shards < limit) & (fixed_s + shard_s * (shards + 1) <= end_s)
        return np.where(shards >= self.min_shards, shards, 0)

    def restrict(self, task: int, classes: Ints) -> "LearnerClasses":
        """Return the problem of one task and some classes."""
        tasks = [task]
        return replace(
            self,
            fixed_s=self.fixed_s[tasks][:, classes],
            shard_s=self.shard_s[tasks][:, classes],
            price=self.price[classes],
            min_shards=self.min_shards[classes],
            members=self.members[classes],
            optional=self.optional[classes],
            demand=self.demand[tasks],
            deadline_s=self.deadline_s[tasks],
        )


def group_learners(problem: SharedProblem) -> LearnerClasses:
    """Sort learners by their fields and group equal ones into classes."""
    fields = np.vstack([problem.price, problem.min_shards, problem.shard_s, problem.fixed_s])
    order = np.lexsort(fields[::-1])
    fields = fields[:, order]
    is_first = np.ones(order.size, dtype=bool)
    is_first[1:] = np.any(fields[:, 1:] != fields[:, :-1], axis=0)
    first = order[is_first]
    class_of = np.empty(order.size, dtype=np.int64)
    class_of[order] = np.cumsum(is_first) - 1
    min_shards = problem.min_shards[first]
    ends_s = problem.fixed_s + problem.shard_s * problem.shards[:, None]
    return LearnerClasses(
        fixed_s=problem.fixed_s[:, first],
        shard_s=problem.shard_s[:, first],
        price=problem.price[first],
        min_shards=np.maximum(min_shards, 1),
        members=np.bincount(class_of),
        optional=min_shards == 0,
        demand=problem.shards,
        # No learner works longer than for all shards of a task.
        deadline_s=np.minimum(problem.deadline_s, ends_s.max(axis=1)),
        budget=problem.budget * (1 + BUDGET_TOLERANCE),
        class_of=class_of,
    )


def allow_empty_assignments(classes: LearnerClasses) -> LearnerClasses:
    """Let optional learners be assigned to a task without taking a shard of it."""
    return replace(classes, min_shards=np.where(classes.optional, 0, classes.min_shards))


def shards_by_learner(
    classes: LearnerClasses, assignment: Ints, amounts: Ints, task_of: Ints | None = None
) -> Ints:
    """Divide each class's shards of a task evenly among its learners, tasks x learners.

    `task_of` gives the task of each learner; by default the first members of a class serve the
    first tasks.
    """
    if task_of is None:
        task_of = _assign_tasks(classes, assignment)
    tasks, used = classes.shape[0], np.flatnonzero((task_of >= 0) & (task_of < classes.shape[0]))
    group = classes.class_of[used] * tasks + task_of[used]
    order = np.argsort(group, kind="stable")
    learners, group = used[order], group[order]
    size = np.bincount(group, minlength=amounts.size)
    rank = np.arange(learners.size) - (np.cumsum(size) - size)[group]
    total, size = amounts.T.ravel()[group], size[group]
    shards = np.zeros((tasks, classes.class_of.size), dtype=np.int64)
    shards[task_of[learners], learners] = total // size + (rank < total % size)
    return shards


def _assign_tasks(classes: LearnerClasses, assignment: Ints) -> Ints:
    """Return a task for each learner that realizes `assignment`; `tasks` means idle."""
    tasks = classes.shape[0]
    idle = classes.members - assignment.sum(axis=0)
    counts = np.vstack([assignment, idle]).T
    task_of = np.empty(classes.class_of.size, dtype=np.int64)
    order = np.argsort(classes.class_of, kind="stable")
    task_of[order] = np.repeat(np.tile(np.arange(tasks + 1), counts.shape[0]), counts.ravel())
    return task_of
