"""What `melisma plan` has to say, as plain data: printed as JSON, or drawn by `plan_view`."""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import numpy as np

from melisma.allocation.builders import cycle_problem, radio_problem, shared_problem
from melisma.allocation.radio import RadioPlan
from melisma.allocation.schemes import Scheme, cycle_plan
from melisma.allocation.shared import SharedPlan
from melisma.errors import InfeasibleError
from melisma.fleet.chance import generator
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task

Report = dict[str, Any]


def report(scheme: Scheme, tasks: Sequence[Task], fleet: Fleet, time_limit_s: float) -> Report:
    """The plan of one scheme, or why there is none."""
    head = {
        "scheme": scheme.name,
        "problem": scheme.problem,
        "tasks": [task.name for task in tasks],
        "deadline_s": [task.deadline_s for task in tasks],
        "shards": [task.shards for task in tasks],
    }
    try:
        return head | {"feasible": True} | KINDS[scheme.problem](scheme, tasks, fleet, time_limit_s)
    except InfeasibleError as error:
        return head | _infeasible(error, fleet)


def skipped(scheme: Scheme, why: str) -> Report:
    """A scheme that does not take part in a comparison."""
    return {"scheme": scheme.name, "problem": scheme.problem, "feasible": False, "why": why}


def _infeasible(error: InfeasibleError, fleet: Fleet) -> Report:
    names = [fleet.names[number] for number in error.learners]
    return {
        "feasible": False,
        "why": str(error),
        "constraint": error.constraint,
        "miss": error.miss,
        "nearest": error.nearest,
        "learners": names,
    }


def _cycle(scheme: Scheme, tasks: Sequence[Task], fleet: Fleet, _: float) -> Report:
    (task,) = tasks
    problem = cycle_problem(task, fleet)
    passes = None if scheme.passes == "chosen" else task.passes
    plan = cycle_plan(scheme.name, problem, passes)
    seconds = plan.seconds(problem)
    late = (seconds > task.deadline_s) | ((plan.shards > 0) & (plan.updates == 0))
    rows = zip(fleet.names, plan.shards, plan.updates, seconds, late, strict=True)
    return {
        "learners": [
            {
                "name": name,
                "shards": int(shards),
                "updates": int(updates),
                "seconds": float(time_s),
                "late": bool(is_late),
            }
            for name, shards, updates, time_s, is_late in rows
        ],
        "handed_out": int(plan.shards.sum()),
        "hands_out_all": scheme.hands_out_all,
        "late": int(late.sum()),
        "ends_s": float(seconds.max()),
        "max_staleness": plan.max_staleness,
        "average_staleness": plan.average_staleness,
        "cost": float(fleet.price @ plan.shards) if _priced(fleet) else None,
    }


def _shared(scheme: Scheme, tasks: Sequence[Task], fleet: Fleet, time_limit_s: float) -> Report:
    states = None
    if scheme.name == "mmtt":
        # As benchmarked in whatever state each learner happened to be in.
        states = fleet.drawn_states(generator(fleet.seed, "benchmarked state"))
    problem = shared_problem(tasks, fleet, states)
    plan = scheme.plan(problem, time_limit_s=time_limit_s)
    assert isinstance(plan, SharedPlan)
    expected = problem if states is None else shared_problem(tasks, fleet)
    seconds = expected.seconds(plan.shards)
    each = plan.task_of, plan.shards.sum(axis=0), seconds.sum(axis=0)
    rows = zip(fleet.names, *each, strict=True)
    return {
        "learners": [
            {
                "name": name,
                "task": tasks[task].name if shards else None,
                "shards": int(shards),
                "seconds": float(time_s),
            }
            for name, task, shards, time_s in rows
        ],
        "task_s": plan.task_s.tolist(),
        "expected_s": seconds.max(axis=1).tolist(),
        "total_s": float(plan.task_s.sum()),
        "bound_s": float(plan.bound_s),
        "gap": plan.gap,
        "cost": plan.cost,
        "budget": fleet.budget if isfinite(fleet.budget) else None,
    }


def _priced(fleet: Fleet) -> bool:
    """Whether anybody said anything about prices."""
    return isfinite(fleet.budget) or bool(np.any(fleet.price != 1.0))


def _radio(scheme: Scheme, tasks: Sequence[Task], fleet: Fleet, _: float) -> Report:
    (task,) = tasks
    problem = radio_problem(task, fleet)
    plan = scheme.plan(problem, generator(task.seed, "random batch"))
    assert isinstance(plan, RadioPlan)
    gradient_s = problem.gradient_s(plan.batch)
    rows = zip(
        fleet.names, plan.batch, gradient_s, plan.uplink_slot_s, plan.downlink_slot_s, strict=True
    )
    return {
        "learners": [
            {
                "name": name,
                "batch": int(batch),
                "gradient_s": float(own_s),
                "uplink_slot_s": float(up_s),
                "downlink_slot_s": float(down_s),
            }
            for name, batch, own_s, up_s, down_s in rows
        ],
        "frame_s": problem.frame_s,
        "batch": int(plan.batch.sum()),
        "round_s": plan.round_s,
        "efficiency": plan.efficiency,
        "rounds_by_deadline": int(task.deadline_s // plan.round_s),
    }


KINDS: dict[str, Callable[[Scheme, Sequence[Task], Fleet, float], Report]] = {
    "cycle": _cycle,
    "shared": _shared,
    "radio": _radio,
}
