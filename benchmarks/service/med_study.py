"""The study of MED (chapter 4 of the thesis of Mays): five metrics by learners and by tasks.

Each run draws prices, state probabilities and states anew by its seed; all schemes and points of a
part have the same seeds, on which nothing was chosen. In the parts `thesis_...`, devices are 2.4
times slower than those of `examples/med`, which is the ratio of a Jetson Nano in the papers to the
emulated one, and learners halt late (`late_halting.py`).
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from benchmarks.service.late_halting import late_halting
from melisma.fleet import read_task
from melisma.fleet.files.fleet_builder import build_fleet, read_fleet_table
from melisma.fleet.files.learner_blocks import CORE_OPS_PER_S
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task
from melisma.simulation.comparison.interval import Interval
from melisma.simulation.service.service_simulation import prepare_tasks, run_tasks
from melisma.simulation.simulation import SimulationOptions

EXAMPLE = Path(__file__).parents[2] / "examples" / "med"
REPETITIONS, FIRST_SEED = 40, 80_201
SCHEMES = ("med", "mmtt", "mmtt-ideal")
QUEUES = ("med", "fifo", "smallest-demand", "venn")
SLOWDOWN = 2.4
LEARNERS = range(4, 11)
# When tasks vary.
LONGER_S, SMALLER_BUDGET = 5.0, 200.0
METRICS = {
    "mean_cycle_s": ("training s", 1.0),
    "satisfaction": ("satisfaction %", 100.0),
    "fulfilment": ("fulfilment %", 100.0),
    "drop_rate": ("dropped %", 100.0),
    "occupancy": ("occupancy %", 100.0),
}
COLUMNS = [*(name for name, _ in METRICS.values()), "rounds", "failed runs"]
# A scheme that drops less than this is nothing to compare with.
LEAST_DROP_RATE = 1e-3
Pair = tuple[float, float] | None
Figures = dict[str, float]


@dataclass(frozen=True)
class Point:
    """Tasks and a fleet to repeat runs with."""

    name: str
    learners: int
    tasks: tuple[Task, ...]
    budget: float


@dataclass(frozen=True)
class Relation:
    """MED compared with another scheme by a metric, and what the thesis prints."""

    metric: str
    scheme: str
    thesis: str

    @property
    def is_relative(self) -> bool:
        """Whether the difference is relative; MMTT-Ideal drops almost nothing."""
        drops = self.metric == "drop_rate" and self.scheme == "mmtt"
        return drops or self.metric == "mean_cycle_s"

    @property
    def name(self) -> str:
        """Return the relation as the name of a row."""
        unit = "%" if self.is_relative else "points"
        return f"{METRICS[self.metric][0].split()[0]}, `med` against `{self.scheme}`, {unit}"


BY_LEARNERS = (
    Relation("mean_cycle_s", "mmtt", "up to -11"),
    Relation("mean_cycle_s", "mmtt-ideal", "up to +32"),
    Relation("satisfaction", "mmtt", "up to +10"),
    Relation("satisfaction", "mmtt-ideal", "down to -10"),
    Relation("fulfilment", "mmtt", "up to +4.3"),
    Relation("fulfilment", "mmtt-ideal", "down to -4"),
    Relation("drop_rate", "mmtt", "up to -41"),
    Relation("drop_rate", "mmtt-ideal", "up to +5"),
    Relation("occupancy", "mmtt", "up to +4.3"),
    Relation("occupancy", "mmtt-ideal", "down to -14"),
)
BY_TASKS = (
    Relation("mean_cycle_s", "mmtt", "up to -16"),
    Relation("mean_cycle_s", "mmtt-ideal", "up to +33"),
    Relation("satisfaction", "mmtt", "up to +4"),
    Relation("satisfaction", "mmtt-ideal", "down to -6"),
    Relation("fulfilment", "mmtt", "up to +3"),
    Relation("fulfilment", "mmtt-ideal", "down to -2"),
    Relation("drop_rate", "mmtt", "up to -32"),
    Relation("drop_rate", "mmtt-ideal", "up to +58 %"),
    Relation("occupancy", "mmtt", "higher"),
    Relation("occupancy", "mmtt-ideal", "down to -15"),
)


def by_learners() -> tuple[Point, ...]:
    """Return the points of 4 to 10 learners with the three tasks."""
    tasks = study_tasks()[:3]
    return tuple(Point(f"{count} learners", count, tasks, 300.0) for count in LEARNERS)


def by_tasks() -> tuple[Point, ...]:
    """Return the points of 1 to 4 tasks, with longer deadlines and a smaller budget."""
    tasks = tuple(
        msgspec.structs.replace(task, deadline_s=task.deadline_s + LONGER_S)
        for task in study_tasks()
    )
    return tuple(
        Point(f"{count} task{'s' * (count > 1)}", 10, tasks[:count], SMALLER_BUDGET)
        for count in range(1, 5)
    )


def study_tasks() -> tuple[Task, ...]:
    """Return the three tasks, and a second Fashion as the fourth."""
    names = ("mnist-ff", "mnist-cn", "fashion")
    tasks = [read_task(EXAMPLE / f"{name}.toml") for name in names]
    return (*tasks, msgspec.structs.replace(tasks[-1], name="fashion-2"))


def study_fleet(point: Point, seed: int, slowdown: float = 1.0) -> Fleet:
    """Return the fleet of a point, drawn by a seed."""
    table = read_fleet_table(EXAMPLE / "FLEET.toml")
    group = msgspec.structs.replace(table.group[0], count=point.learners)
    changes: dict[str, Any] = {"group": (group,), "budget": point.budget, "seed": seed}
    return build_fleet(
        msgspec.structs.replace(table, **changes, core_ops_per_s=CORE_OPS_PER_S / slowdown)
    )


def measure(
    points: Sequence[Point],
    schemes: Sequence[str],
    relations: Sequence[Relation] = (),
    *,
    like_thesis: bool = False,
    quick: bool = False,
) -> dict[str, Any]:
    """Run each scheme at each point on all seeds; return figures, and how MED compares."""
    seeds = range(FIRST_SEED, FIRST_SEED + (2 if quick else REPETITIONS))
    rows: dict[str, dict[str, Any]] = {}
    compared: dict[str, dict[str, Any]] = {each.name: {"thesis": each.thesis} for each in relations}
    for point in points:
        runs = {
            scheme: [run(point, scheme, seed, like_thesis=like_thesis) for seed in seeds]
            for scheme in schemes
        }
        print(f"  {point.name}", file=sys.stderr)
        for scheme, repeated in runs.items():
            rows[f"{point.name}, `{scheme}`"] = _figures(repeated)
        for relation in relations:
            compared[relation.name][point.name] = _compare(runs, relation)
    return {"rows": rows, "relations": compared, "seeds": [seeds[0], seeds[-1]], "own_s": 0.0}


def run(point: Point, scheme: str, seed: int, *, like_thesis: bool = False) -> Figures | None:
    """Run the tasks of a point once, without training; None if a task failed."""
    options = SimulationOptions(work="timing", scheme=scheme, seed=seed)
    fleet = study_fleet(point, seed, SLOWDOWN if like_thesis else 1.0)
    with late_halting() if like_thesis else nullcontext():
        report = run_tasks(prepare_tasks(point.tasks, fleet, options))
    if report.outcome != "finished":
        return None
    return {name: getattr(report, name) for name in METRICS} | {"rounds": len(report.rounds)}


def _figures(runs: Sequence[Figures | None]) -> dict[str, Any]:
    """Return the mean of each metric with its half width, over runs that finished."""
    done = [each for each in runs if each is not None]
    figures: dict[str, Any] = {
        column: _pair([scale * each[name] for each in done])
        for name, (column, scale) in METRICS.items()
    }
    rounds = round(mean(each["rounds"] for each in done), 2) if done else None
    return figures | {"rounds": rounds, "failed runs": len(runs) - len(done)}


def _compare(runs: Mapping[str, Sequence[Figures | None]], relation: Relation) -> Pair:
    """Return the mean difference of MED to a scheme on the same seeds, with its half width."""
    pairs = [
        (ours[relation.metric], theirs[relation.metric])
        for ours, theirs in zip(runs["med"], runs[relation.scheme], strict=True)
        if ours is not None and theirs is not None
    ]
    unit = mean(theirs for _, theirs in pairs) if pairs and relation.is_relative else 1.0
    if relation.metric == "drop_rate" and unit < LEAST_DROP_RATE:
        return None
    return _pair([100 * (ours - theirs) / unit for ours, theirs in pairs])


def _pair(values: Sequence[float]) -> Pair:
    interval = Interval.from_values(values)
    return (round(interval.mean, 3), round(interval.half_width, 3)) if interval.known else None
