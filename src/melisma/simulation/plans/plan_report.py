"""The figures of `melisma plan` as plain data: printed as JSON or as tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from melisma.allocation.builders import (
    build_cycle_problem,
    build_radio_problem,
    build_shared_problem,
)
from melisma.allocation.checks import BUDGET_TOLERANCE
from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.infeasible import round_up, with_nearest_value
from melisma.allocation.radio_problem import RadioPlan
from melisma.allocation.schemes import PlanInputs, Scheme, with_scheme
from melisma.allocation.shared_problem import SharedPlan
from melisma.cycle.sampling import draw_waits, sample_size
from melisma.errors import InfeasibleError
from melisma.fleet.array_types import Ints
from melisma.fleet.fleet import Fleet
from melisma.fleet.rng import generator
from melisma.fleet.run_time import RunTime
from melisma.fleet.task import Task
from melisma.simulation.forecast import first_cycle_failure, forecast, take_learners

PlanReport = dict[str, Any]
# Values to try before an error names one, each this many times the one before.
MAX_VALUES_TRIED, SETTING_STEPS = 60, {"deadline_s": 1.05, "shards": 0.97}
MAX_TOO_SLOW = 5


@dataclass(frozen=True, eq=False)
class LearnerRows:
    """Rows of learners, stored as columns and built on access, because there may be a million."""

    columns: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.columns["name"])

    def __iter__(self) -> Iterator[PlanReport]:
        return self.first(len(self))

    def first(self, count: int) -> Iterator[PlanReport]:
        """Return the rows of the first `count` learners."""
        parts = (column[:count] for column in self.columns.values())
        values = (part.tolist() if isinstance(part, np.ndarray) else part for part in parts)
        return (dict(zip(self.columns, row, strict=True)) for row in zip(*values, strict=True))


def build_plan_report(
    scheme: Scheme, tasks: Sequence[Task], fleet: Fleet, time_limit_s: float
) -> PlanReport:
    """Return the plan of one scheme, or the reason why there is none.

    With a total time, it is the plan of a cycle of the length that most cycles of a run have.
    """
    if tasks[0].total_s is not None:
        return _plan_total(scheme, tasks[0], fleet, time_limit_s)
    inputs = PlanInputs(
        passes=tasks[0].passes,
        rng=generator(tasks[0].seed, "random batch"),
        time_limit_s=time_limit_s,
    )
    try:
        fields = PLANNERS[scheme.problem](scheme, inputs, tasks, fleet)
    except InfeasibleError as error:
        if scheme.problem == "cycle":
            error = _name_working_settings(error, _task_to_run(scheme, tasks[0]), fleet)
        return _common_fields(scheme, tasks) | _infeasible_fields(error, tasks, fleet)
    return _common_fields(scheme, tasks) | {"feasible": True} | fields


def _plan_total(scheme: Scheme, task: Task, fleet: Fleet, time_limit_s: float) -> PlanReport:
    expected = forecast(_task_to_run(scheme, task), fleet)
    if expected.failure:
        return _common_fields(scheme, [task]) | _no_plan_fields(expected.failure)
    cycle = RunTime(deadline_s=expected.cycle_s).apply(task)
    total = {"total_s": task.total_s, "cycles": round(expected.cycles), "run_s": expected.run_s}
    report = build_plan_report(scheme, [cycle], fleet, time_limit_s) | total
    return report | {"keeps_deadline": report.get("keeps_deadline", False) and _is_in_time(total)}


def _is_in_time(total: PlanReport) -> bool:
    return bool(total["run_s"] <= total["total_s"])


def skip_report(scheme: Scheme, tasks: Sequence[Task], reason: str) -> PlanReport:
    """Return the report of a scheme that a comparison skips."""
    return _common_fields(scheme, tasks) | _no_plan_fields(reason)


def is_met(report: PlanReport) -> bool:
    """Return whether there is a plan that keeps deadlines and budget."""
    return all(report.get(key, False) for key in ("feasible", "keeps_deadline", "keeps_budget"))


def _task_to_run(scheme: Scheme, task: Task) -> Task:
    """Return the task with the scheme that a simulation uses."""
    # Schemes for comparison look for the same plan as staleness, and are slow.
    return with_scheme(task, scheme.name if scheme.max_learners is None else "staleness")


def _name_working_settings(error: InfeasibleError, task: Task, fleet: Fleet) -> InfeasibleError:
    """Return the error with a deadline and a number of shards that a simulated run accepts, too.

    Operating states, noise, latency and absent learners may require more than the plan.
    """
    for name, step in SETTING_STEPS.items():
        value = error.nearest.get(name, 0.0)
        for _ in range(MAX_VALUES_TRIED if value else 0):
            value = round_up(value) if name == "deadline_s" else max(int(value), 1)
            if not first_cycle_failure(_with_setting(task, name, value), fleet):
                error = with_nearest_value(error, name, value)
                break
            value *= step
    return error


def _with_setting(task: Task, name: str, value: float) -> Task:
    if name == "deadline_s":
        return replace(task, deadline_s=value)
    return replace(task, sizes=replace(task.sizes, samples=int(value) * task.shard_samples))


def _common_fields(scheme: Scheme, tasks: Sequence[Task]) -> PlanReport:
    return {
        "scheme": scheme.name,
        "problem": scheme.problem,
        "tasks": [task.name for task in tasks],
        "deadline_s": [task.deadline_s for task in tasks],
        "shards": [task.shards for task in tasks],
    }


def _infeasible_fields(error: InfeasibleError, tasks: Sequence[Task], fleet: Fleet) -> PlanReport:
    error = error.with_names(
        fleet.names, [task.name for task in tasks], tasks[0].describe_shards_setting
    )
    nearest = dict(error.nearest)
    if "shards" in nearest:
        key, value = tasks[0].shards_setting(int(nearest.pop("shards")))
        nearest[key] = value
    cause = {"constraint": error.constraint, "miss": error.miss, "nearest": nearest}
    blocking = {
        "blocking_learners": [fleet.names[number] for number in error.learners],
        "blocking_tasks": [tasks[number].name for number in error.tasks],
    }
    return _no_plan_fields(str(error)) | cause | blocking


def _no_plan_fields(reason: str) -> PlanReport:
    return {
        "feasible": False,
        "reason": reason,
        "constraint": None,
        "miss": None,
        "nearest": {},
        "blocking_learners": [],
        "blocking_tasks": [],
    }


def _plan_cycle(
    scheme: Scheme, inputs: PlanInputs, tasks: Sequence[Task], fleet: Fleet
) -> PlanReport:
    (task,) = tasks
    local_shards = fleet.local_shards(task) if task.mode == "federated" else None
    drawn, whole = _draw_first(task, fleet), fleet
    if drawn.size < whole.learners:
        local_shards = None if local_shards is None else local_shards[drawn]
        fleet = take_learners(fleet, drawn)
    # As in a run, learners that request shards take overlap into account, and other plans do not.
    overlap = task.overlap and scheme.needs == "bounds"
    problem = build_cycle_problem(
        task, fleet.state_costs(task), local_shards=local_shards, overlap=overlap
    )
    try:
        plan: CyclePlan = scheme.plan(problem, inputs)
    except InfeasibleError as error:
        error.learners = tuple(drawn[list(error.learners)].tolist())
        raise
    busy = plan.shards > 0
    # A learner that cannot finish one pass in time is late by the time of that pass.
    passes = np.maximum(plan.updates, busy)
    seconds = problem.with_overlap(task.overlap).seconds(plan.shards, passes)
    late = seconds > task.deadline_s
    expected = forecast(_task_to_run(scheme, task), whole)
    columns = {
        "name": fleet.names,
        "shards": plan.shards,
        "passes": plan.updates,
        "seconds": seconds,
        "late": late,
    }
    return {
        "learners": LearnerRows(columns),
        "not_drawn": whole.learners - drawn.size,
        "handed_out": int(plan.shards.sum()),
        "hands_out_all": scheme.hands_out_all,
        "idle": int(np.count_nonzero(~busy)),
        "too_slow": _too_slow(problem, busy, task, fleet),
        "late": int(late.sum()),
        "keeps_deadline": not late.any() and expected.keeps_deadline,
        "ends_s": float(seconds.max()),
        "least_passes": int(plan.updates[busy].min()),
        "most_passes": int(plan.updates[busy].max()),
        "max_staleness": plan.max_staleness,
        "average_staleness": plan.average_staleness,
        "quorum": task.quorum,
        "forecast": asdict(expected),
        "extension": task.extension,
        "overlap": task.overlap,
    } | _cost_fields(float(fleet.price @ plan.shards), fleet)


def _draw_first(task: Task, fleet: Fleet) -> Ints:
    """Return the learners that a run draws for its first cycle."""
    learners = np.flatnonzero(fleet.present_at_start)
    count = sample_size(task.sample, learners.size)
    if task.sample is None or count == fleet.learners:
        return np.arange(fleet.learners)
    waits = draw_waits(task.seed, 1, learners, 1.0)
    return np.sort(learners[np.argsort(waits, kind="stable")[:count]])


def _too_slow(
    problem: CycleProblem, busy: NDArray[np.bool_], task: Task, fleet: Fleet
) -> dict[str, float]:
    """Return the seconds that one shard takes of idle learners for which they exceed the deadline.

    Only the first few are listed.
    """
    needed_s = problem.seconds(np.ones(busy.size, np.int64), task.passes or 1)
    late = np.flatnonzero(~busy & (needed_s >= task.deadline_s))[:MAX_TOO_SLOW]
    return {fleet.names[number]: float(needed_s[number]) for number in late.tolist()}


def _plan_shared(
    scheme: Scheme, inputs: PlanInputs, tasks: Sequence[Task], fleet: Fleet
) -> PlanReport:
    costs = [fleet.state_costs(task) for task in tasks]
    means = [cost.mean() for cost in costs]
    assumed = means
    if scheme.costs_in != "expected":
        # The scheme knows the costs of one state only: that of the benchmark, or of the cycle.
        states = fleet.draw_states(generator(fleet.seed, "benchmarked state"))
        if scheme.costs_in == "present":
            states = fleet.states_in_cycle(1)
        assumed = [cost.in_states(states) for cost in costs]
    expected = build_shared_problem(tasks, means, fleet.price, fleet.budget)
    problem = build_shared_problem(tasks, assumed, fleet.price, fleet.budget)
    plan: SharedPlan = scheme.plan(problem, inputs)
    seconds = expected.seconds(plan.shards)
    shards, ends_s = plan.shards.sum(axis=0), seconds.max(axis=1)
    # The last entry is for learners without shards.
    names = np.array([*(task.name for task in tasks), None], dtype=np.object_)
    columns = {
        "name": fleet.names,
        "task": names[np.where(shards > 0, plan.task_of, -1)],
        "shards": shards,
        "seconds": seconds.sum(axis=0),
    }
    return {
        "learners": LearnerRows(columns),
        "task_s": plan.task_s.tolist(),
        "expected_s": ends_s.tolist(),
        "keeps_deadline": bool(np.all(ends_s <= expected.deadline_s)),
        "total_s": float(plan.task_s.sum()),
        "bound_s": float(plan.bound_s),
        "gap": plan.gap,
    } | _cost_fields(plan.cost, fleet)


def _plan_radio(
    scheme: Scheme, inputs: PlanInputs, tasks: Sequence[Task], fleet: Fleet
) -> PlanReport:
    (task,) = tasks
    problem = build_radio_problem(task, fleet)
    plan: RadioPlan = scheme.plan(problem, inputs)
    columns = {
        "name": fleet.names,
        "batch": plan.batch,
        "gradient_s": problem.gradient_s(plan.batch),
        "uplink_slot_s": plan.uplink_slot_s,
        "downlink_slot_s": plan.downlink_slot_s,
    }
    rounds = int(task.deadline_s // plan.round_s)
    return {
        "learners": LearnerRows(columns),
        "frame_s": problem.frame_s,
        "batch": int(plan.batch.sum()),
        "round_s": plan.round_s,
        "efficiency": plan.efficiency,
        "rounds_by_deadline": rounds,
        "keeps_deadline": rounds > 0,
    } | _cost_fields(None, fleet)


def _cost_fields(cost: float | None, fleet: Fleet) -> PlanReport:
    """Return cost and budget; a fleet without prices has no cost."""
    cost = cost if fleet.has_prices else None
    return {
        "cost": cost,
        "budget": fleet.budget if isfinite(fleet.budget) else None,
        "keeps_budget": cost is None or cost <= fleet.budget * (1 + BUDGET_TOLERANCE),
    }


PLANNERS: dict[str, Callable[[Scheme, PlanInputs, Sequence[Task], Fleet], PlanReport]] = {
    "cycle": _plan_cycle,
    "shared": _plan_shared,
    "radio": _plan_radio,
}
