"""The use of a fleet while tasks wait: the time of all learners in rounds that hold a task.

From the first such round until the round after the last one, each second of each learner is counted
once: as training that counts, or by the cause of its loss. In contrast to `capacity_used` of a
report, which ends with the deadline of each cycle, the time between the cycles counts, too.
Capacity used is training divided by all time but that of fetching models and uploading updates,
which a learner cannot avoid.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np

from benchmarks.service.med_study import Point, study_fleet, study_tasks
from melisma.cycle.events import PHASES
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task
from melisma.runs.cycle_figures import Cycle
from melisma.runs.service_report import ServiceReport
from melisma.service import commands, events
from melisma.service.round_planning import plan_round
from melisma.simulation.service.service_simulation import prepare_tasks, run_tasks
from melisma.simulation.simulation import SimulationOptions

SEEDS = range(80_301, 80_306)
TASKS, CYCLES, SLOWDOWN = 9, 3, 2.4
DEADLINE_S = 40.0
TRAINING, FIXED = "training", "model and update"
LOSSES = (
    "not counted",
    "within the cycle",
    "other cycles of the round",
    "between rounds",
    "without a task",
)
COLUMNS = ["capacity %", *(f"{name} %" for name in (FIXED, *LOSSES)), "planning CPU s", "rounds"]
TRAIN, DOWN, UP = (PHASES.index(name) for name in ("train", "fetch model", "upload"))


@dataclass(frozen=True)
class Setting:
    """Tasks that queue, on a fleet, by a scheme."""

    scheme: str = "med"
    equal_deadlines: bool = False
    learners: int = 10
    extension: bool = True


SETTINGS = {
    "`med`": Setting(),
    "`med`, equal deadlines": Setting(equal_deadlines=True),
    "`fifo`": Setting("fifo"),
    "`fifo`, equal deadlines": Setting("fifo", equal_deadlines=True),
    "`fifo`, 20 learners": Setting("fifo", learners=20),
    "`fifo`, no extension": Setting("fifo", extension=False),
    "`smallest-demand`": Setting("smallest-demand"),
    "`venn`": Setting("venn"),
}


def measure(quick: bool) -> dict[str, Any]:
    """Run each setting on all seeds; return the medians."""
    seeds = SEEDS[:1] if quick else SEEDS
    rows = {}
    for name, setting in SETTINGS.items():
        runs = [measure_run(setting, seed) for seed in seeds]
        rows[name] = {column: round(median(run[column] for run in runs), 2) for column in COLUMNS}
        print(f"  {name}: {rows[name]}", file=sys.stderr)
    return {"rows": rows, "seeds": [seeds[0], seeds[-1]], "own_s": 0.0}


def measure_run(setting: Setting, seed: int) -> dict[str, float]:
    """Return where the time of the learners went while tasks waited, and the time to plan."""
    tasks, fleet = queue_tasks(setting), queue_fleet(setting, seed)
    options = SimulationOptions(work="timing", scheme=setting.scheme, seed=seed)
    with _time_plans() as planning_s:
        report = run_tasks(prepare_tasks(tasks, fleet, options))
    seconds = time_of_learners(report, fleet.learners)
    total_s = sum(seconds.values())
    shares = {f"{name} %": 100 * value / total_s for name, value in seconds.items()}
    capacity = 100 * seconds[TRAINING] / (total_s - seconds[FIXED])
    longest_s = max(planning_s.values())
    return {
        "capacity %": capacity,
        "planning CPU s": longest_s,
        "rounds": len(report.rounds),
    } | shares


def queue_tasks(setting: Setting) -> list[Task]:
    """Return copies of the tasks of the study, more than fit, by the rules of a plain task."""
    kinds = study_tasks()[:3]
    plain = Task(name="plain", deadline_s=1.0)
    rules = {name: getattr(plain, name) for name in ("overlap", "quorum", "late", "guard")}
    changes: dict[str, Any] = rules | {"extension": setting.extension, "cycles": CYCLES}
    if setting.equal_deadlines:
        changes["deadline_s"] = DEADLINE_S
    count = TASKS * setting.learners // 10
    return [
        msgspec.structs.replace(kinds[index % 3], name=f"task-{index}", **changes)
        for index in range(count)
    ]


def queue_fleet(setting: Setting, seed: int) -> Fleet:
    """Return devices of which two or three tasks take all, without a budget."""
    return study_fleet(Point("", setting.learners, (), float("inf")), seed, SLOWDOWN)


def time_of_learners(report: ServiceReport, learners: int) -> dict[str, float]:
    """Return the seconds of all learners by use, in the rounds that held a task."""
    seconds = dict.fromkeys((TRAINING, FIXED, *LOSSES), 0.0)
    cycles = [cycle for task in report.tasks for cycle in task.ended_cycles]
    for now, after in pairwise(report.rounds):
        if not now.held:
            continue
        of_round = [cycle for cycle in cycles if now.began_s <= cycle.began_s < after.began_s]
        closed_s = max(cycle.closed_s for cycle in of_round)
        busy = sum(_add_cycle(seconds, cycle, closed_s) for cycle in of_round)
        seconds["between rounds"] += busy * (after.began_s - closed_s)
        seconds["without a task"] += (learners - busy) * (after.began_s - now.began_s)
    return seconds


def _add_cycle(seconds: dict[str, float], cycle: Cycle, closed_s: float) -> int:
    """Add the time of the learners of a cycle until its round closed; return their number."""
    work = cycle.assignments
    learners = np.unique(work.learner).size
    phases = np.nan_to_num(work.phases)
    counts = work.counted_visits > 0
    train_s, fixed_s = phases[:, TRAIN], phases[:, DOWN] + phases[:, UP]
    seconds[TRAINING] += float(train_s[counts].sum())
    seconds["not counted"] += float(train_s[~counts].sum())
    seconds[FIXED] += float(fixed_s.sum())
    within_s = learners * (cycle.closed_s - cycle.began_s) - float((train_s + fixed_s).sum())
    seconds["within the cycle"] += within_s
    seconds["other cycles of the round"] += learners * (closed_s - cycle.closed_s)
    return learners


@contextmanager
def _time_plans() -> Iterator[dict[int, float]]:
    """Yield the CPU seconds that each round took to plan, tasks that did not fit included."""
    taken_s: dict[int, float] = {}

    def timed(
        command: commands.PlanRound, at_s: float, *, repeatable: bool
    ) -> events.RoundPlanned | events.RoundInfeasible:
        began_s = time.process_time()
        result = plan_round(command, at_s, repeatable=repeatable)
        taken_s[command.round] = taken_s.get(command.round, 0.0) + time.process_time() - began_s
        return result

    with patch("melisma.simulation.service.service_driver.plan_round", timed):
        yield taken_s
