"""The candidates of each question, the scarcest first; a later one is easier to hold.

deadline
    Lengths of a cycle, from a `MAX_CYCLES`th of the time of the goal to all of it.
devices
    Numbers of devices of one kind: a learner or group of the fleet file; others stay as they are.
budget
    The devices with the lowest price, from one to all; of equal prices the fastest first. One of
    them is present at the start, as a run cannot start without any. The cost is the price of all
    shards that they are given until the goal is reached.
model
    Factors by which the model is larger. The hidden layers of an `mlp` are that much wider, and its
    sizes follow from them; of any other model `model_bytes` and `sample_ops` are multiplied.

Numbers on a grid differ by `RATIO`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, log
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np

from melisma.errors import SettingError, suggest
from melisma.fleet.files.fleet_builder import build_fleet, read_fleet_table, scale_fleet
from melisma.fleet.files.fleet_file import FleetTable
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task
from melisma.simulation.forecast import take_learners
from melisma.simulation.sizing.size_goal import SizeGoal

Find = Literal["deadline", "devices", "budget", "model"]
FINDS: tuple[Find, ...] = get_args(Find)
RATIO = 1.05
# Of a run, for the shortest deadline: as often as a run with a total time averages at most.
MAX_CYCLES = 200
MIN_DEADLINE_S = 0.05
LARGEST_FACTOR, SMALLEST_FACTOR, LARGEST_TRAINED = 1000.0, 0.01, 8.0


@dataclass(frozen=True)
class Question:
    """The candidates of a question, and the task and the fleet of each of them."""

    find: Find
    values: tuple[float, ...]
    unit: str
    task_for: Callable[[Task, float], Task]
    fleet_for: Callable[[float, int], Fleet]


def ask(
    find: Find, task: Task, fleet: Fleet | str | Path, goal: SizeGoal, kind: str | None, most: int
) -> Question:
    """Return the candidates of a question; `SettingError` if it cannot be asked."""
    if find not in FINDS:
        raise SettingError(f"find is {find!r}; {suggest(str(find), FINDS)}")
    if kind is not None and find != "devices":
        raise SettingError(f"kind = {kind} is for find = devices; remove it")

    def same_task(task: Task, _value: float) -> Task:
        return task

    def same_fleet(_value: float, seed: int) -> Fleet:
        return scale_fleet(fleet, None, seed)

    if find == "deadline":
        least = max(MIN_DEADLINE_S, goal.within_s / MAX_CYCLES)
        lengths = _grid(least, max(goal.within_s, least))
        return Question(find, lengths, "s", _with_deadline, same_fleet)
    if find == "model":
        largest = LARGEST_FACTOR if goal.accuracy is None else LARGEST_TRAINED
        if goal.accuracy is not None and task.model != "mlp":
            raise SettingError(
                f"model {task.model} cannot be trained in other sizes; use visits as the goal, or "
                "model = 'mlp'"
            )
        factors = tuple(reversed(_grid(SMALLEST_FACTOR, largest)))
        return Question(find, factors, "times the model", scale_model, same_fleet)
    if find == "devices":
        return _ask_devices(fleet, kind, most, same_task)

    def cheapest(count: float, seed: int) -> Fleet:
        # Prices and speeds may be drawn by the seed.
        everyone = same_fleet(count, seed)
        return take_learners(everyone, np.sort(cheapest_first(everyone, task)[: int(count)]))

    counts = tuple(float(n) for n in range(1, scale_fleet(fleet).learners + 1))
    return Question(find, counts, "cheapest devices", same_task, cheapest)


def _ask_devices(
    fleet: Fleet | str | Path,
    kind: str | None,
    most: int,
    same_task: Callable[[Task, float], Task],
) -> Question:
    if not isinstance(fleet, str | Path):
        scale_fleet(fleet)  # raises if it is no fleet
        raise SettingError("find = devices needs the file of a fleet, to build others from it")
    if most < 1:
        raise SettingError(f"most is {most}; expected at least 1")
    table = read_fleet_table(fleet)
    name = _find_kind(table, kind)
    least = 1 if len(table.learner) + len(table.group) == 1 else 0

    def build(count: float, seed: int) -> Fleet:
        return build_fleet(msgspec.structs.replace(with_count(table, name, int(count)), seed=seed))

    counts = tuple(float(n) for n in range(least, most + 1))
    return Question("devices", counts, name, same_task, build)


def kinds_of(table: FleetTable) -> list[str]:
    """Return the names of all learners and groups of a fleet file."""
    groups = [group.name or group.profile or "" for group in table.group]
    return [*(learner.name for learner in table.learner), *groups]


def _find_kind(table: FleetTable, kind: str | None) -> str:
    kinds = kinds_of(table)
    if kind is None and len(kinds) == 1:
        return kinds[0]
    if kind is None:
        raise SettingError(f"kind is missing; the fleet has {', '.join(kinds)}")
    if kind not in kinds:
        raise SettingError(f"kind {kind!r} is not in the fleet; {suggest(kind, kinds)}")
    return kind


def with_count(table: FleetTable, kind: str, count: int) -> FleetTable:
    """Return the fleet file with `count` devices of a kind; copies of a learner are numbered."""
    learners = []
    for learner in table.learner:
        if learner.name != kind:
            learners.append(learner)
            continue
        names = [f"{kind}-{n}" for n in range(1, count + 1)] if count > 1 else [kind] * count
        learners += [msgspec.structs.replace(learner, name=name) for name in names]
    groups = []
    for group in table.group:
        if (group.name or group.profile or "") != kind:
            groups.append(group)
        elif count:
            groups.append(msgspec.structs.replace(group, count=count))
    return msgspec.structs.replace(table, learner=tuple(learners), group=tuple(groups))


def cheapest_first(fleet: Fleet, task: Task) -> np.ndarray:
    """Return the learners by price; of equal prices the fastest first.

    The cheapest one that is present at the start comes before all others.
    """
    order = np.lexsort((fleet.train_s(task), fleet.price))
    starter = order[np.argmax(fleet.present_at_start[order])]
    return np.concatenate(([starter], order[order != starter]))


def scale_model(task: Task, factor: float) -> Task:
    """Return the task with a model that is larger by a factor."""
    layers = task.model_args.get("layers")
    if task.model == "mlp" and isinstance(layers, list):
        hidden = [max(1, round(width * factor)) for width in layers[1:-1]]
        args = {**task.model_args, "layers": [layers[0], *hidden, layers[-1]]}
        sizes = msgspec.structs.replace(task.sizes, model_bytes=None, sample_ops=None)
        return msgspec.structs.replace(task, model_args=args, sizes=sizes)
    sizes = msgspec.structs.replace(
        task.sizes,
        model_bytes=max(1, round(task.model_bytes * factor)),
        sample_ops=task.sample_ops * factor,
    )
    return msgspec.structs.replace(task, sizes=sizes)


def _with_deadline(task: Task, deadline_s: float) -> Task:
    return msgspec.structs.replace(task, deadline_s=deadline_s, total_s=None, finish_by=None)


def _grid(low: float, high: float) -> tuple[float, ...]:
    """Return numbers of three digits from `low` to `high`, each `RATIO` times the one before."""
    count = floor(log(high / low) / log(RATIO) + 1e-9)
    values = [low * RATIO**k for k in range(count + 1)]
    return tuple(dict.fromkeys(float(f"{value:.3g}") for value in [*values, high]))
