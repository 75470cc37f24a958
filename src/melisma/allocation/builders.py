"""Problems from a task and what is known of learners, as the schemes take them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.radio_problem import RadioProblem
from melisma.allocation.shared_problem import SharedProblem
from melisma.errors import SettingError
from melisma.fleet.estimates import Costs
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task


def build_cycle_problem(
    task: Task, estimates: Costs, held: ArrayLike = 0, local_shards: ArrayLike | None = None
) -> CycleProblem:
    """One task in one cycle, on what is known of each learner, at the task's `caution`.

    `estimates` are what learners reported, or what a fleet says of them; `held` the shards in each
    one's cache. In federated learning `own` are those that lie on it, and it gets no others; what
    lies on devices that are absent is left out.
    """
    costs: Mapping[str, Any] = estimates.quantile(task.caution)
    return CycleProblem(**costs, **_bounds(task, held, local_shards))


def build_unmeasured_problem(
    task: Task, learners: int, held: ArrayLike = 0, local_shards: ArrayLike | None = None
) -> CycleProblem:
    """The same for so many learners of whose costs nothing is known."""
    some = np.ones(learners)
    known = CycleProblem(train_s=some, ship_s=0, fixed_s=0, **_bounds(task, held, local_shards))
    return known.without_costs()


def _bounds(task: Task, held: ArrayLike, local_shards: ArrayLike | None) -> dict[str, Any]:
    most: Any = task.max_shards
    shards = task.shards
    if local_shards is not None:
        if np.any(held):
            raise SettingError("held is given with own; what lies on a device is all that it holds")
        held = np.asarray(local_shards)
        most = held if most is None else np.minimum(held, most)
        shards = min(shards, int(np.sum(most)))
    least = min(task.min_shards, shards)
    return {
        "deadline_s": task.deadline_s,
        "shards": shards,
        "min_shards": least if local_shards is None else np.minimum(least, most),
        "max_shards": most,
        "held": held,
    }


def build_shared_problem(
    tasks: Sequence[Task],
    costs: Sequence[Mapping[str, Any]],
    price: ArrayLike,
    budget: float = np.inf,
) -> SharedProblem:
    """Several tasks at once, with the costs of learners at each: what a `Costs` tells by name.

    Their means make it MED, those of one state of each learner MMTT.
    """
    fixed_s, shard_s = [], []
    for task, cost in zip(tasks, costs, strict=True):
        if task.mode == "federated":
            raise SettingError(f"task {task.name}: several tasks at once need data that can move")
        if task.passes is None:
            raise SettingError(f"task {task.name}: several tasks at once need passes in each")
        if task.max_shards is not None:
            raise SettingError(f"task {task.name}: several tasks at once know no max_shards")
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
    """Batches and slots of one round, undisturbed; without `gradient_bits`, 32 a parameter."""
    cycles_per_s = np.where(np.isnan(fleet.clock_hz), fleet.ops_per_s, fleet.clock_hz)
    unknown = np.flatnonzero(np.isnan(cycles_per_s))
    if task.radio.update_cycles and unknown.size:
        raise SettingError(
            f"task {task.name}: radio.update_cycles needs clock_hz or compute of every learner; "
            f"{fleet.names[unknown[0]]} has neither"
        )
    update_s = task.radio.update_cycles / cycles_per_s if task.radio.update_cycles else 0.0
    return RadioProblem(
        slope_s=fleet.sample_seconds(task),
        uplink_bps=fleet.bandwidth_bps,
        downlink_bps=fleet.bandwidth_bps,
        gradient_bits=task.radio.gradient_bits or 8.0 * task.model_bytes,
        frame_s=task.radio.frame_s,
        apply_s=update_s,
        base_s=fleet.base_s,
        threshold=fleet.threshold,
        min_batch=task.radio.min_batch,
        max_batch=task.radio.max_batch,
    )
