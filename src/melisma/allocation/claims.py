"""Tasks that claim learners one after another, as schedulers of queues do.

Each task takes free learners until they can train its shards by its deadline; then tasks take
learners that are left over in turns. The amounts are then those of `med` for that assignment, so
that schemes differ only in who works for what.
"""

from collections.abc import Iterable

import numpy as np

from melisma.allocation.infeasible import infeasible_error, learner_list, task_field
from melisma.allocation.med import med
from melisma.allocation.shared_problem import SharedPlan, SharedProblem
from melisma.fleet.array_types import Bools, Floats, Ints


def capacities(problem: SharedProblem) -> Ints:
    """Return the shards that each learner can train for each task in time, tasks x learners.

    0 where it cannot train its `min_shards`.
    """
    deadline_s, demand = problem.deadline_s[:, None], problem.shards[:, None]
    fits = np.floor((deadline_s - problem.fixed_s) / problem.shard_s)
    shards: Ints = np.clip(fits, 0, demand).astype(np.int64)
    # The quotient is rounded: compare as plans do.
    more = np.minimum(shards + 1, demand)
    shards = np.where(problem.fixed_s + problem.shard_s * more <= deadline_s, more, shards)
    shards = np.where(problem.fixed_s + problem.shard_s * shards <= deadline_s, shards, shards - 1)
    return np.where(shards >= np.maximum(problem.min_shards, 1), shards, 0)


def demand_s(problem: SharedProblem) -> Floats:
    """Return the work of each task: the seconds of its shards on an average learner."""
    # Sorted, so that the sum does not depend on the order of learners.
    work_s: Floats = problem.shards * np.sort(problem.shard_s, axis=1).mean(axis=1)
    return work_s


def claim_in_order(
    problem: SharedProblem, order: Iterable[int], reluctance: Ints | int = 0
) -> SharedPlan:
    """Let tasks claim learners in this order; return the best plan with that assignment.

    A task claims those with the least `reluctance` first, and of these the fastest. Raises
    `InfeasibleError` for a task whose shards the free learners cannot train in time.
    """
    claims = _Claims(problem, np.broadcast_to(np.asarray(reluctance), (problem.learners,)))
    order = [*map(int, order)]
    for task in order:
        claims.claim(task)
    while sum(claims.take_one(task) for task in order):
        pass
    claims.check_all_work()
    plan = med(problem, assigned=claims.task_of)
    # The bound of an assignment is none of the problem.
    return SharedPlan(problem, plan.shards, 0.0)


class _Claims:
    """The task of each learner so far; -1 for a free one."""

    def __init__(self, problem: SharedProblem, reluctance: Ints) -> None:
        self._problem, self._reluctance = problem, reluctance
        self._capacity = capacities(problem)
        self.task_of: Ints = np.full(problem.learners, -1)

    def claim(self, task: int) -> None:
        """Assign free learners to a task until they can train its shards."""
        candidates = self._candidates(task, self.task_of < 0)
        capacity = self._capacity[task, candidates]
        missing = int(self._problem.shards[task] - capacity.sum())
        if missing > 0 or not candidates.size:
            raise infeasible_error(
                f"deadline_s of {task_field(task)} cannot be met: the learners that earlier tasks "
                f"left free can train {capacity.sum()} of its {self._problem.shards[task]} shards",
                constraint="deadline_s",
                miss=float(missing),
                nearest={},
                tasks=[task],
            )
        enough = int(np.searchsorted(np.cumsum(capacity), self._problem.shards[task])) + 1
        self.task_of[candidates[:enough]] = task

    def take_one(self, task: int) -> bool:
        """Assign a free learner that may not stay idle, if the task has shards for one."""
        minimum = self._problem.min_shards
        spare = self._problem.shards[task] - minimum[self.task_of == task].sum()
        candidates = self._candidates(task, (self.task_of < 0) & (minimum > 0))
        fitting = candidates[minimum[candidates] <= spare]
        self.task_of[fitting[:1]] = task
        return bool(fitting.size)

    def check_all_work(self) -> None:
        """Raise `InfeasibleError` if a learner is idle that has to work."""
        idle = np.flatnonzero((self.task_of < 0) & (self._problem.min_shards > 0))
        if idle.size:
            raise infeasible_error(
                f"no task has shards left that {learner_list(idle)} can train in time",
                constraint="min_shards",
                miss=float(idle.size),
                nearest={"min_shards": 0},
                learners=idle.tolist(),
            )

    def _candidates(self, task: int, free: Bools) -> Ints:
        """Return the free learners that can work for a task, the preferred ones first."""
        problem = self._problem
        keys = (problem.price, problem.fixed_s[task], problem.shard_s[task], self._reluctance)
        ordered = np.lexsort(keys)
        chosen: Ints = ordered[(free & (self._capacity[task] > 0))[ordered]]
        return chosen
