"""Plans a round: one problem of all its tasks, from the costs that their learners reported.

A learner that cannot train a shard of any task in time is left out. If there are more learners
than the tasks have shards for, or if one shard for each of them costs too much, some stay idle.
"""

from typing import Any

import numpy as np

from melisma.allocation import SharedPlan, SharedProblem, build_shared_problem
from melisma.allocation.checks import MIN_COST_S
from melisma.allocation.schemes import PlanInputs, get_scheme
from melisma.cycle.events import COSTS
from melisma.cycle.ragged import RaggedArray
from melisma.errors import InfeasibleError
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.task import Task
from melisma.service import events
from melisma.service.commands import PlanRound

# A search ends after this part of the time for planning: a step that has begun is finished.
SEARCH_PART = 0.9
# Seconds of search as steps of `med`, which are the same on every machine.
WORK_PER_S = 1e7
# Constraints that a plan can satisfy if some learners stay idle.
MET_BY_IDLE = ("min_shards", "budget")
# A learner that is not ready for a task would take this many of its deadlines.
NOT_READY_DEADLINES = 1e3


def plan_round(
    command: PlanRound, at_s: float, *, repeatable: bool
) -> events.RoundPlanned | events.RoundInfeasible:
    """Plan a round; a `repeatable` plan does not depend on the speed of this machine."""
    try:
        rows, plan = _plan_feasible(command, repeatable=repeatable)
    except InfeasibleError as error:
        return events.RoundInfeasible(
            at_s=at_s, round=command.round, numbers=command.numbers, reason=str(error)
        )
    learners = command.learners[rows]
    given = [np.flatnonzero(shards) for shards in plan.shards]
    busy = np.concatenate([learners[each] for each in given])
    return events.RoundPlanned(
        at_s=at_s,
        round=command.round,
        numbers=command.numbers,
        learners=RaggedArray.from_rows([learners[each] for each in given]),
        shards=RaggedArray.from_rows(
            [shards[each] for shards, each in zip(plan.shards, given, strict=True)]
        ),
        task_s=tuple(plan.task_s.tolist()),
        bound_s=plan.bound_s,
        cost=plan.cost,
        idle=np.setdiff1d(command.learners, busy),
    )


def _plan_feasible(command: PlanRound, *, repeatable: bool) -> tuple[Ints, SharedPlan]:
    """Return the plan, and the rows of the learners that it is for."""
    rows, optional = np.arange(command.learners.size), False
    while True:
        problem = _problem(command, rows)
        if optional or command.assigned.size:
            works = np.full(rows.size, not optional)
            if command.assigned.size:
                works &= command.assigned[rows] >= 0
            problem = problem.with_min_shards(np.where(works, problem.min_shards, 0))
        inputs = PlanInputs(
            time_limit_s=None if repeatable else SEARCH_PART * command.limit_s,
            max_work=WORK_PER_S * command.limit_s if repeatable else None,
            assigned=command.assigned[rows] if command.assigned.size else None,
        )
        try:
            return rows, get_scheme(command.scheme).plan(problem, inputs)
        except InfeasibleError as error:
            if error.constraint in MET_BY_IDLE and not optional:
                optional = True
            elif 0 < len(error.learners) < rows.size:
                rows = np.delete(rows, list(error.learners))
            else:
                names = [command.names[row] for row in rows.tolist()]
                raise error.with_names(names, [task.name for task in command.tasks]) from error


def _problem(command: PlanRound, rows: Ints) -> SharedProblem:
    costs = [
        _costs(task, cost[:, rows]) for task, cost in zip(command.tasks, command.costs, strict=True)
    ]
    budget = np.inf if command.budget is None else command.budget
    return build_shared_problem(command.tasks, costs, command.price[rows], budget)


def _costs(task: Task, costs: Floats) -> dict[str, Any]:
    """Return costs by name; a learner without usable ones takes too long for the task."""
    usable = np.isfinite(costs).all(axis=0) & (costs >= 0).all(axis=0)
    train_s, ship_s, _ = costs
    usable &= ~(ship_s + (task.passes or 1) * train_s < MIN_COST_S)
    fill_s = {"train_s": task.deadline_s, "ship_s": 0.0}
    fill_s["fixed_s"] = NOT_READY_DEADLINES * task.deadline_s
    return {
        name: np.where(usable, row, fill_s[name]) for name, row in zip(COSTS, costs, strict=True)
    }
