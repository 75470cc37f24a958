"""What `melisma plan` has to say, as plain data: printed as JSON, or drawn by `plan_view`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from melisma.allocation.builders import (
    build_cycle_problem,
    build_radio_problem,
    build_shared_problem,
)
from melisma.allocation.checks import BUDGET_TOLERANCE
from melisma.allocation.cycle_problem import CyclePlan
from melisma.allocation.radio_problem import RadioPlan
from melisma.allocation.schemes import PlanInputs, Scheme
from melisma.allocation.shared_problem import SharedPlan
from melisma.errors import InfeasibleError
from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator
from melisma.fleet.task import Task

Report = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Learners:
    """A row for each learner, made when it is looked at; a million of them are arrays."""

    columns: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.columns["name"])

    def __iter__(self) -> Iterator[Report]:
        return self.first(len(self))

    def first(self, count: int) -> Iterator[Report]:
        """The rows of so many learners."""
        parts = (column[:count] for column in self.columns.values())
        values = (part.tolist() if isinstance(part, np.ndarray) else part for part in parts)
        return (dict(zip(self.columns, row, strict=True)) for row in zip(*values, strict=True))


def report(scheme: Scheme, tasks: Sequence[Task], fleet: Fleet, time_limit_s: float) -> Report:
    """The plan of one scheme, or why there is none."""
    given = PlanInputs(
        passes=tasks[0].passes,
        rng=generator(tasks[0].seed, "random batch"),
        time_limit_s=time_limit_s,
    )
    try:
        found = KINDS[scheme.problem](scheme, given, tasks, fleet)
    except InfeasibleError as error:
        return _head(scheme, tasks) | _infeasible(error, tasks, fleet)
    return _head(scheme, tasks) | {"feasible": True} | found


def skipped(scheme: Scheme, tasks: Sequence[Task], why: str) -> Report:
    """A scheme that does not take part in a comparison."""
    return _head(scheme, tasks) | _no_plan(why)


def holds(found: Report) -> bool:
    """Whether there is a plan, and it keeps deadlines and budget."""
    return all(found.get(key, False) for key in ("feasible", "keeps_deadline", "keeps_budget"))


def _head(scheme: Scheme, tasks: Sequence[Task]) -> Report:
    return {
        "scheme": scheme.name,
        "problem": scheme.problem,
        "tasks": [task.name for task in tasks],
        "deadline_s": [task.deadline_s for task in tasks],
        "shards": [task.shards for task in tasks],
    }


def _infeasible(error: InfeasibleError, tasks: Sequence[Task], fleet: Fleet) -> Report:
    error = error.with_names(fleet.names, [task.name for task in tasks])
    about = {"constraint": error.constraint, "miss": error.miss, "nearest": error.nearest}
    who = {
        "learners_in_the_way": [fleet.names[number] for number in error.learners],
        "tasks_in_the_way": [tasks[number].name for number in error.tasks],
    }
    return _no_plan(str(error)) | about | who


def _no_plan(why: str) -> Report:
    return {
        "feasible": False,
        "why": why,
        "constraint": None,
        "miss": None,
        "nearest": {},
        "learners_in_the_way": [],
        "tasks_in_the_way": [],
    }


def _cycle(scheme: Scheme, given: PlanInputs, tasks: Sequence[Task], fleet: Fleet) -> Report:
    (task,) = tasks
    own = fleet.own_shards(task) if task.mode == "federated" else None
    problem = build_cycle_problem(task, fleet.state_costs(task), local_shards=own)
    plan: CyclePlan = scheme.plan(problem, given)
    busy = plan.shards > 0
    # Who cannot make a single pass in time is late by what that pass takes.
    seconds = problem.seconds(plan.shards, np.maximum(plan.updates, busy))
    late = seconds > task.deadline_s
    columns = {
        "name": fleet.names,
        "shards": plan.shards,
        "updates": plan.updates,
        "seconds": seconds,
        "late": late,
    }
    return {
        "learners": Learners(columns),
        "handed_out": int(plan.shards.sum()),
        "hands_out_all": scheme.hands_out_all,
        "idle": int(np.count_nonzero(~busy)),
        "late": int(late.sum()),
        "keeps_deadline": not late.any(),
        "ends_s": float(seconds.max()),
        "least_updates": int(plan.updates[busy].min()),
        "most_updates": int(plan.updates[busy].max()),
        "max_staleness": plan.max_staleness,
        "average_staleness": plan.average_staleness,
    } | _costs(float(fleet.price @ plan.shards) if _priced(fleet) else None, fleet)


def _shared(scheme: Scheme, given: PlanInputs, tasks: Sequence[Task], fleet: Fleet) -> Report:
    costs = [fleet.state_costs(task) for task in tasks]
    means = [each.mean() for each in costs]
    known = means
    if scheme.single_state:
        # As benchmarked in whatever state each learner happened to be in.
        states = fleet.draw_states(generator(fleet.seed, "benchmarked state"))
        known = [each.in_states(states) for each in costs]
    expected = build_shared_problem(tasks, means, fleet.price, fleet.budget)
    problem = build_shared_problem(tasks, known, fleet.price, fleet.budget)
    plan: SharedPlan = scheme.plan(problem, given)
    seconds = expected.seconds(plan.shards)
    shards, ends_s = plan.shards.sum(axis=0), seconds.max(axis=1)
    # The last is for those without any shards.
    names = np.array([*(task.name for task in tasks), None], dtype=np.object_)
    columns = {
        "name": fleet.names,
        "task": names[np.where(shards > 0, plan.task_of, -1)],
        "shards": shards,
        "seconds": seconds.sum(axis=0),
    }
    return {
        "learners": Learners(columns),
        "task_s": plan.task_s.tolist(),
        "expected_s": ends_s.tolist(),
        "keeps_deadline": bool(np.all(ends_s <= expected.deadline_s)),
        "total_s": float(plan.task_s.sum()),
        "bound_s": float(plan.bound_s),
        "gap": plan.gap,
    } | _costs(plan.cost, fleet)


def _radio(scheme: Scheme, given: PlanInputs, tasks: Sequence[Task], fleet: Fleet) -> Report:
    (task,) = tasks
    problem = build_radio_problem(task, fleet)
    plan: RadioPlan = scheme.plan(problem, given)
    columns = {
        "name": fleet.names,
        "batch": plan.batch,
        "gradient_s": problem.gradient_s(plan.batch),
        "uplink_slot_s": plan.uplink_slot_s,
        "downlink_slot_s": plan.downlink_slot_s,
    }
    rounds = int(task.deadline_s // plan.round_s)
    return {
        "learners": Learners(columns),
        "frame_s": problem.frame_s,
        "batch": int(plan.batch.sum()),
        "round_s": plan.round_s,
        "efficiency": plan.efficiency,
        "rounds_by_deadline": rounds,
        "keeps_deadline": rounds > 0,
    } | _costs(None, fleet)


def _costs(cost: float | None, fleet: Fleet) -> Report:
    return {
        "cost": cost,
        "budget": fleet.budget if isfinite(fleet.budget) else None,
        "keeps_budget": cost is None or cost <= fleet.budget * (1 + BUDGET_TOLERANCE),
    }


def _priced(fleet: Fleet) -> bool:
    """Whether anybody said anything about prices."""
    return isfinite(fleet.budget) or bool(np.any(fleet.price != 1.0))


KINDS: dict[str, Callable[[Scheme, PlanInputs, Sequence[Task], Fleet], Report]] = {
    "cycle": _cycle,
    "shared": _shared,
    "radio": _radio,
}
