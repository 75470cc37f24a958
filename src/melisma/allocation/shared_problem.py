"""The problem and plan of several tasks that share learners within a budget.

Seconds of learner j with d > 0 shards of task i, Eq. 4.3 of Mays (passes already in `shard_s`)::

    seconds = fixed_s[i, j] + shard_s[i, j] * d

A task takes as long as its slowest learner, Eq. 4.1. The rounding is monotone in d, and plans
recompute their seconds by this expression: none exceeds its deadline in the last bit.
"""

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from melisma.allocation.checks import (
    MIN_COST_S,
    as_counts,
    as_floats,
    as_scalar,
    broadcast_to,
    common_shape,
)
from melisma.errors import SettingError
from melisma.fleet.array_types import Floats, Ints


@dataclass(frozen=True, init=False, eq=False)
class SharedProblem:
    """Costs of each learner at each task, the data of each task, and one budget for all.

    `fixed_s` and `shard_s` are tasks x learners; `shards` and `deadline_s` are one number for all
    tasks or one for each, `price` (of a shard) and `min_shards` for all learners or for each.
    Every learner works for one task, with at least `min_shards` of its shards; with 0 it may stay
    idle. `budget` may be infinite.
    """

    fixed_s: Floats
    shard_s: Floats
    shards: Ints
    deadline_s: Floats
    price: Floats
    budget: float
    min_shards: Ints

    def __init__(  # noqa: PLR0913 - a record of the contract's fields, by keyword
        self,
        *,
        fixed_s: ArrayLike,
        shard_s: ArrayLike,
        shards: ArrayLike,
        deadline_s: ArrayLike,
        price: ArrayLike,
        budget: float,
        min_shards: ArrayLike = 1,
    ) -> None:
        costs = {
            "fixed_s": as_floats("fixed_s", fixed_s),
            "shard_s": as_floats("shard_s", shard_s, least=MIN_COST_S),
        }
        shape = common_shape(costs, axes=2)
        fields: dict[str, Any] = broadcast_to(shape, costs)
        fields |= broadcast_to(
            shape[:1],
            {
                "shards": as_counts("shards", shards, least=1),
                "deadline_s": as_floats("deadline_s", deadline_s, above=True),
            },
        )
        fields |= broadcast_to(
            shape[1:],
            {
                "price": as_floats("price", price),
                "min_shards": as_counts("min_shards", min_shards),
            },
        )
        fields["budget"] = _budget(budget)
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return int(self.fixed_s.shape[0])

    @property
    def learners(self) -> int:
        """The number of learners."""
        return int(self.fixed_s.shape[1])

    def seconds(self, shards: Ints) -> Floats:
        """Return the seconds of each learner at each task, tasks x learners; 0 without shards."""
        return np.where(shards > 0, self.fixed_s + self.shard_s * shards, 0.0)

    def with_min_shards(self, min_shards: Ints) -> "SharedProblem":
        """Return the problem with other `min_shards`."""
        changed = copy(self)
        object.__setattr__(changed, "min_shards", min_shards)
        return changed


@dataclass(frozen=True, init=False, eq=False)
class SharedPlan:
    """Shards (tasks x learners), the seconds of each task, and a lower bound on their sum.

    No plan of the same problem has a sum of `task_s` below `bound_s`.
    """

    shards: Ints
    task_s: Floats
    bound_s: float
    cost: float

    def __init__(self, problem: SharedProblem, shards: ArrayLike, bound_s: float) -> None:
        counts = as_counts("shards", shards)
        fields: dict[str, Any] = broadcast_to(problem.fixed_s.shape, {"shards": counts})
        if np.any(np.count_nonzero(counts, axis=0) > 1):
            raise SettingError(
                "shards assign a learner to more than one task; expected one task each"
            )
        fields |= broadcast_to((problem.tasks,), {"task_s": problem.seconds(counts).max(axis=1)})
        fields["bound_s"] = min(float(bound_s), float(fields["task_s"].sum()))
        fields["cost"] = plan_cost(problem, counts)
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def total_s(self) -> float:
        """The objective: the sum of the tasks' seconds (Eq. 4.4a)."""
        return float(self.task_s.sum())

    @property
    def gap(self) -> float:
        """The largest possible distance from the optimum, relative to the sum.

        0 is proven optimal, up to a relative rounding of 1e-9.
        """
        return (self.total_s - self.bound_s) / self.total_s

    @property
    def task_of(self) -> Ints:
        """The task of each learner, -1 for an idle one."""
        busy = self.shards.any(axis=0)
        return np.where(busy, self.shards.argmax(axis=0), -1)


def plan_cost(problem: SharedProblem, shards: Ints) -> float:
    """Return the cost of a plan. Sums are rounded: it may exceed a budget by 1e-12 of it."""
    # Sorted, so that the sum does not depend on the order of learners.
    return float(np.sort(problem.price * shards.sum(axis=0)).sum())


def _budget(value: float) -> float:
    if np.ndim(value) == 0 and value == np.inf:
        return float("inf")
    return float(as_scalar("budget", as_floats("budget", value)))
