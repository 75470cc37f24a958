"""Plans a round: one problem of all its tasks, from the costs that their learners reported.

A learner that cannot train a shard of any task in time is left out. If there are more learners
than the tasks have shards for, or if one shard for each of them costs too much, some stay idle.

A scheme plans within one budget, that of the round. A task whose part costs more than its own
budget leaves for it is then planned again, alone on the learners of its part and within its budget.
If they are too expensive, it gets the fewest of the cheapest learners that are enough, and other
tasks are planned on the rest. That is sequential: each step is the best one by itself, and not all
of them together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import msgspec
import numpy as np

from melisma.allocation import SharedPlan, SharedProblem, build_shared_problem
from melisma.allocation.checks import MIN_COST_S
from melisma.allocation.schemes import PlanInputs, get_scheme
from melisma.cycle.events import COSTS
from melisma.cycle.ragged import RaggedArray
from melisma.errors import InfeasibleError
from melisma.fleet.array_types import NO_INTS, Bools, Floats, Ints
from melisma.fleet.task import Task
from melisma.prices import AMOUNT_TOLERANCE
from melisma.service import events
from melisma.service.commands import PlanRound

# A search ends after this part of the time for planning: a step that has begun is finished.
SEARCH_PART = 0.9
# Seconds of search as steps of `med`, which are the same on every machine.
WORK_PER_S = 1e7
# Constraints that a plan can satisfy if some learners stay idle.
MET_BY_IDLE = ("min_shards", "budget")
# A search for a part of the learners may take this part of the time for a plan.
STEP_FRACTION = 1 / 8
# The constraint of an error that the own budget of a task causes.
OWN_BUDGET = "budget of the task"
# A learner that is not ready for a task would take this many of its deadlines.
NOT_READY_DEADLINES = 1e3


def plan_round(
    command: PlanRound, at_s: float, *, repeatable: bool
) -> events.RoundPlanned | events.RoundInfeasible:
    """Plan a round; a `repeatable` plan does not depend on the speed of this machine."""
    try:
        parts, bound_s = _plan_within_budgets(command, repeatable=repeatable)
    except InfeasibleError as error:
        own = error.constraint == OWN_BUDGET
        over_budget = error.tasks[0] if own else None
        return events.RoundInfeasible(
            at_s=at_s,
            round=command.round,
            numbers=command.numbers,
            reason=str(error),
            over_budget=over_budget,
        )
    busy = np.concatenate([part.learners for part in parts])
    return events.RoundPlanned(
        at_s=at_s,
        round=command.round,
        numbers=command.numbers,
        learners=RaggedArray.from_rows([part.learners for part in parts]),
        shards=RaggedArray.from_rows([part.shards for part in parts]),
        task_s=tuple(part.task_s for part in parts),
        bound_s=min(bound_s, sum(part.task_s for part in parts)),
        cost=fsum(part.cost for part in parts),
        idle=np.setdiff1d(command.learners, busy),
    )


@dataclass(frozen=True)
class TaskPart:
    """The part of a task in a plan: its learners with their shards, its seconds and its cost."""

    learners: Ints
    shards: Ints
    task_s: float
    cost: float


def _plan_within_budgets(command: PlanRound, *, repeatable: bool) -> tuple[list[TaskPart], float]:
    """Return the part of each task, within the budgets of the round and of each task."""
    if len(command.tasks) == 1:
        rows, plan = _plan_alone(command, repeatable=repeatable)
        return [_part(command, rows, plan, 0)], plan.bound_s
    rows, plan = _plan_feasible(command, repeatable=repeatable)
    parts = [_part(command, rows, plan, row) for row in range(len(command.tasks))]
    for row, left in enumerate(command.budgets_left):
        if _exceeds(parts[row].cost, left):
            alone = _restrict(command, [row], np.isin(command.learners, parts[row].learners))
            try:
                rows, own = _plan_alone(alone, repeatable=repeatable)
            except InfeasibleError:
                return _plan_first(command, row, repeatable=repeatable), 0.0
            parts[row] = _part(alone, rows, own, 0)
    return parts, plan.bound_s


def _plan_first(command: PlanRound, first: int, *, repeatable: bool) -> list[TaskPart]:
    """Plan one task on the fewest of the cheapest learners, and then the others on the rest."""
    ready = np.isfinite(command.costs[first]).all(axis=0)
    order = np.argsort(np.where(ready, command.price, np.inf), kind="stable")
    few = msgspec.structs.replace(command, limit_s=command.limit_s * STEP_FRACTION)

    def plan_on(count: int) -> TaskPart:
        kept = np.zeros(order.size, np.bool_)
        kept[order[:count]] = True
        alone = _restrict(few, [first], kept)
        return _part(alone, *_plan_alone(alone, repeatable=repeatable), 0)

    part, too_few, enough = plan_on(order.size), 0, order.size
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        try:
            part, enough = plan_on(middle), middle
        except InfeasibleError:
            too_few = middle
    others = [row for row in range(len(command.tasks)) if row != first]
    rest = _restrict(command, others, ~np.isin(command.learners, part.learners))
    if rest.budget is not None:
        rest = msgspec.structs.replace(rest, budget=max(rest.budget - part.cost, 0.0))
    parts, _ = _plan_within_budgets(rest, repeatable=repeatable)
    return [*parts[:first], part, *parts[first:]]


def _plan_alone(command: PlanRound, *, repeatable: bool) -> tuple[Ints, SharedPlan]:
    """Return the plan of a single task within its own budget and that of the round."""
    (left,), (task,) = command.budgets_left or (None,), command.tasks
    if left is None or (command.budget is not None and command.budget <= left):
        return _plan_feasible(command, repeatable=repeatable)
    try:
        return _plan_feasible(msgspec.structs.replace(command, budget=left), repeatable=repeatable)
    except InfeasibleError as error:
        if error.constraint != "budget":
            raise
        raise InfeasibleError(
            f"task {task.name} has {left:g} left of its budget of {task.budget:g}: {error}",
            constraint=OWN_BUDGET,
            miss=error.miss,
            nearest=error.nearest,
            tasks=command.numbers,
        ) from error


def _exceeds(cost: float, left: float | None) -> bool:
    return left is not None and cost > left * (1 + AMOUNT_TOLERANCE)


def _restrict(command: PlanRound, rows: Sequence[int], kept: Bools) -> PlanRound:
    """Return the command for some of its tasks, and these learners alone."""
    columns = np.flatnonzero(kept)
    return msgspec.structs.replace(
        command,
        numbers=tuple(command.numbers[row] for row in rows),
        tasks=tuple(command.tasks[row] for row in rows),
        learners=command.learners[columns],
        names=tuple(command.names[column] for column in columns.tolist()),
        costs=tuple(command.costs[row][:, columns] for row in rows),
        price=command.price[columns],
        assigned=NO_INTS,
        budgets_left=tuple(command.budgets_left[row] for row in rows),
    )


def _part(command: PlanRound, rows: Ints, plan: SharedPlan, task: int) -> TaskPart:
    given = np.flatnonzero(plan.shards[task])
    shards, taken = plan.shards[task][given], rows[given]
    cost = fsum((command.price[taken] * shards).tolist())
    return TaskPart(command.learners[taken], shards, float(plan.task_s[task]), cost)


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


def shared_problem(command: PlanRound) -> SharedProblem:
    """Return the problem of all tasks, in which every learner may stay idle."""
    problem = _problem(command, np.arange(command.learners.size))
    return problem.with_min_shards(np.zeros_like(problem.min_shards))


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
