"""Build the problems of schemes from tasks, fleets and measured costs."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from melisma.allocation.costs import cautious_costs
from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.radio_problem import RadioProblem
from melisma.allocation.shared_problem import SharedProblem
from melisma.errors import SettingError
from melisma.fleet.estimates import Costs
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task


def build_cycle_problem(
    task: Task,
    estimates: Costs,
    held: ArrayLike = 0,
    local_shards: ArrayLike | None = None,
    *,
    mean: bool = False,
    overlap: bool = False,
) -> CycleProblem:
    """Build the problem of one task in one cycle, with `mean` costs or those at its `caution`.

    `estimates` are the costs that learners reported, or those of a fleet; `held` the shards in each
    learner's cache. In federated learning `local_shards` are the shards on each device, which gets
    no others; data on absent devices is left out. Without `overlap`, which only the bounds of DAB
    take into account, the times of fetching and training are added.
    """
    bounds = _bounds(task, held, local_shards) | {"overlap": overlap}
    if mean:
        return CycleProblem(**cast(Mapping[str, Any], estimates.mean()), **bounds)
    costs: Mapping[str, Any] = cautious_costs(
        estimates,
        task.caution,
        deadline_s=task.deadline_s,
        passes=task.passes or 1,
        held=bounds["held"],
        overlap=overlap,
    )
    return CycleProblem(**costs, **bounds)


def build_unmeasured_problem(
    task: Task, learners: int, held: ArrayLike = 0, local_shards: ArrayLike | None = None
) -> CycleProblem:
    """Build the problem of one task for a number of learners with unknown costs."""
    problem = CycleProblem(
        train_s=np.ones(learners), ship_s=0, fixed_s=0, **_bounds(task, held, local_shards)
    )
    return problem.without_costs()


def _bounds(task: Task, held: ArrayLike, local_shards: ArrayLike | None) -> dict[str, Any]:
    max_shards: Any = task.max_shards
    shards = task.shards
    if local_shards is not None:
        if np.any(held):
            raise SettingError(
                "held and local_shards are exclusive: a device holds its own data only; "
                "leave out held"
            )
        held = np.asarray(local_shards)
        max_shards = held if max_shards is None else np.minimum(held, max_shards)
        shards = min(shards, int(np.sum(max_shards)))
    min_shards = min(task.min_shards, shards)
    return {
        "deadline_s": task.deadline_s,
        "shards": shards,
        "min_shards": min_shards if local_shards is None else np.minimum(min_shards, max_shards),
        "max_shards": max_shards,
        "held": held,
    }


def build_shared_problem(
    tasks: Sequence[Task],
    costs: Sequence[Mapping[str, Any]],
    price: ArrayLike,
    budget: float = np.inf,
) -> SharedProblem:
    """Build the problem of several tasks; `costs` has the costs of each task by name.

    With mean costs the plan is MED, with the costs of one state of each learner MMTT.
    """
    fixed_s, shard_s = [], []
    for task, cost in zip(tasks, costs, strict=True):
        if task.mode == "federated":
            raise SettingError(
                f"task {task.name} is federated; several tasks at once need parallelized tasks"
            )
        if task.passes is None:
            raise SettingError(
                f"task {task.name} has no passes; several tasks at once need passes in each"
            )
        if task.max_shards is not None:
            raise SettingError(
                f"task {task.name} has max_shards; several tasks at once do not support it"
            )
        fixed_s.append(cost["fixed_s"])
        shard_s.append(cost["ship_s"] + task.passes * cost["train_s"])
    return SharedProblem(
        fixed_s=np.array(fixed_s),
        shard_s=np.array(shard_s),
        shards=np.array([task.shards for task in tasks]),
        deadline_s=np.array([task.deadline_s for task in tasks]),
        price=price,
        budget=budget,
        min_shards=max(task.min_shards for task in tasks),
    )


def build_radio_problem(task: Task, fleet: Fleet) -> RadioProblem:
    """Build the problem of one round of a radio cell, with devices in their idle state.

    Without `gradient_bits` in the task, a gradient has 32 bits for each parameter.
    """
    cycles_per_s = np.where(np.isnan(fleet.clock_hz), fleet.ops_per_s, fleet.clock_hz)
    unknown = np.flatnonzero(np.isnan(cycles_per_s))
    if task.radio.update_cycles and unknown.size:
        raise SettingError(
            f"task {task.name}: learner {fleet.names[unknown[0]]} has neither clock_hz nor "
            "compute, which radio.update_cycles needs"
        )
    update_s = task.radio.update_cycles / cycles_per_s if task.radio.update_cycles else 0.0
    return RadioProblem(
        slope_s=fleet.sample_seconds(task),
        uplink_bps=fleet.uplink_bps,
        downlink_bps=fleet.downlink_bps,
        gradient_bits=task.radio.gradient_bits or 8.0 * task.model_bytes,
        frame_s=task.radio.frame_s,
        apply_s=update_s,
        base_s=fleet.base_s,
        threshold=fleet.threshold,
        min_batch=task.radio.min_batch,
        max_batch=task.radio.max_batch,
    )
