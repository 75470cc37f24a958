"""Forecast the cycles of a run: simulate it in virtual time, without training anything.

Decisions, sleep, hours, batteries, operating states, noise and traces are those of a simulation of
the same files, so that a plan and a simulation agree. If something is drawn at random, runs with
the next seeds are simulated, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any

import msgspec
import numpy as np

from melisma.cycle.sampling import sample_size
from melisma.fleet.array_types import Ints
from melisma.fleet.availability import Availability, Changes
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task
from melisma.runs.cycle_figures import TIMER_TOLERANCE, Cycle
from melisma.runs.progress import RunProgress
from melisma.runs.report import Report
from melisma.runs.unassigned import REASONS
from melisma.simulation.churn import SleepSpans, changes_of_run
from melisma.simulation.compute.compute import TimingOnly
from melisma.simulation.driver import Driver
from melisma.simulation.scenario import Scenario, even_local_shard_samples

# Larger numbers hardly change the shares: of more learners, some at equal distances are followed,
# with their part of the data.
MAX_CYCLES, MAX_LEARNERS = 30, 2000
# Batteries may be empty after many cycles: more of them are simulated if there are few learners.
MAX_BATTERY_CYCLES = 300
# A plan keeps its deadline if at least this fraction of the cycles does.
MIN_CYCLES_IN_TIME = 0.9


@dataclass(frozen=True)
class Forecast:
    """Means over the cycles of simulated runs, up to `MAX_CYCLES`; with batteries, more.

    `awake_at_start` and `awake_on_average` are fractions of all learners, present and not asleep
    when a cycle begins, and `out_of_battery` those whose battery gets empty; `finishing` is the
    fraction of updates in time for which the learner trained all of its planned shards;
    `weight_in_time` the fraction of the dispatched weight that arrives by the deadline, and
    `cycles_in_time` the fraction of cycles that close by then. `capacity_used` is the mean over
    cycles, and `max_staleness` the largest of any cycle. `cycles` is the number of cycles of a run,
    `cycle_s` their median length, and `run_s` how long it takes. `failure` is why the run fails, if
    it does.
    """

    awake_at_start: float
    awake_on_average: float
    finishing: float
    weight_in_time: float
    cycles_in_time: float
    capacity_used: float = 0.0
    max_staleness: float = 0.0
    cycles: float = 0.0
    cycle_s: float = 0.0
    run_s: float = 0.0
    out_of_battery: float = 0.0
    failure: str = ""

    @property
    def keeps_deadline(self) -> bool:
        """Whether the run succeeds and at least `MIN_CYCLES_IN_TIME` of its cycles are in time."""
        return not self.failure and self.cycles_in_time >= MIN_CYCLES_IN_TIME


def forecast(task: Task, fleet: Fleet) -> Forecast:
    """Return a forecast of the run of a task on a fleet."""
    task, fleet = _limit_learners(task, fleet)
    cycles = min(task.expected_cycles, _max_cycles(fleet))
    if task.total_s is None:
        task = msgspec.structs.replace(task, cycles=cycles)
    if not fleet.present_at_start.any():
        failure = "no learner is present at the start"
        return Forecast(0.0, 0.0, 0.0, 0.0, 0.0, failure=failure)
    runs = ceil(MAX_CYCLES / cycles) if is_random(task, fleet) else 1
    simulated = [_simulate(task, replace(fleet, seed=fleet.seed + run)) for run in range(runs)]
    reports = [run.report for run in simulated]
    ended = [cycle for report in reports for cycle in report.ended_cycles]
    worked = [cycle for cycle in ended if len(cycle.assignments)]
    return Forecast(
        awake_at_start=float(fleet.present_at_start.mean()),
        awake_on_average=_mean([share for run in simulated for share in run.awake]),
        finishing=_mean([_finishing(cycle) for cycle in worked]),
        weight_in_time=_mean([_weight_in_time(cycle) for cycle in worked]),
        cycles_in_time=_mean([float(cycle.met_deadline) for cycle in ended]),
        capacity_used=_mean([cycle.capacity_used for cycle in worked]),
        max_staleness=float(np.nanmax([0.0, *(cycle.max_staleness for cycle in worked)])),
        cycles=_mean([float(len(report.ended_cycles)) for report in reports]),
        cycle_s=float(np.median([cycle.deadline_s for cycle in ended])) if ended else 0.0,
        run_s=max(report.ended_s - report.began_s for report in reports),
        out_of_battery=_mean([run.out_of_battery for run in simulated]),
        failure=_failure(reports[0]),
    )


def _max_cycles(fleet: Fleet) -> int:
    """Return how many cycles to simulate, more of them if batteries may get empty."""
    if not fleet.availability.battery.is_limited:
        return MAX_CYCLES
    return min(MAX_CYCLES * MAX_LEARNERS // fleet.learners, MAX_BATTERY_CYCLES)


def first_cycle_failure(task: Task, fleet: Fleet) -> str:
    """Return why the first cycle of a run fails; empty if it does not."""
    task, fleet = _limit_learners(msgspec.structs.replace(task, cycles=1), fleet)
    return _failure(_simulate(task, fleet).report) if fleet.present_at_start.any() else ""


@dataclass(frozen=True)
class _SimulatedRun:
    """A report, the fraction of learners awake in each cycle, and that whose battery got empty."""

    report: Report
    awake: list[float]
    out_of_battery: float


def _simulate(task: Task, fleet: Fleet) -> _SimulatedRun:
    progress = RunProgress()
    scenario = Scenario("forecast", task, fleet, even_local_shard_samples(task, fleet))
    driver = Driver(scenario, TimingOnly(), progress.apply)
    driver.run()
    report = progress.report()
    sleep = SleepSpans(changes_of_run(fleet, scenario.horizon_s), fleet.learners)
    awake = [_awake(cycle, sleep, fleet.learners) for cycle in report.cycles]
    return _SimulatedRun(report, awake, float(driver.energy.ran_empty.mean()))


def _failure(report: Report) -> str:
    return report.reason if report.outcome == "failed" else ""


def is_random(task: Task, fleet: Fleet) -> bool:
    """Return whether a run depends on the seed of the fleet."""
    changes = fleet.changes(task.expected_s)
    several_states = fleet.state_probability.shape[1] > 1
    return several_states or changes.at_s.size > 0 or not fleet.variation.is_constant


def _in_time(cycle: Cycle) -> Any:
    deadline_at_s = cycle.began_s + cycle.deadline_s * (1.0 + TIMER_TOLERANCE)
    work = cycle.assignments
    return work.with_status("counted") & (work.arrived_s <= deadline_at_s)


def _weight_in_time(cycle: Cycle) -> float:
    samples = cycle.assignments.samples
    total = samples.sum()
    return float(samples[_in_time(cycle)].sum() / total) if total else 0.0


def _finishing(cycle: Cycle) -> float:
    """Return the fraction of updates in time that cover what was planned, NaN without any."""
    work, in_time = cycle.assignments, _in_time(cycle)
    # A learner that was given more has trained what it was given first.
    finished = (work.visits >= work.planned_visits) | (work.extensions > 0)
    return float(finished[in_time].mean()) if in_time.any() else np.nan


def _awake(cycle: Cycle, sleep: SleepSpans, learners: int) -> float:
    """Return the fraction of learners that are present and awake when a cycle begins."""
    began_s, idle = np.full(learners, cycle.began_s), cycle.unassigned
    awake = sleep.end_s(np.arange(learners), began_s, np.zeros(learners)) <= began_s
    awake[idle.learner[idle.reason == REASONS.index("absent")]] = False
    return float(awake.mean())


def _mean(shares: list[float]) -> float:
    """Return the mean of the known shares; 0 if there are none."""
    known = [share for share in shares if not np.isnan(share)]
    return float(np.mean(known)) if known else 0.0


def _limit_learners(task: Task, fleet: Fleet) -> tuple[Task, Fleet]:
    """Return up to `MAX_LEARNERS` of the learners, and the task with their part of the data.

    A sample of a number of learners and the orchestrator's link are reduced in proportion.
    """
    step = ceil(fleet.learners / MAX_LEARNERS)
    if step == 1:
        return task, fleet
    followed = np.arange(0, fleet.learners, step)
    part = followed.size / fleet.learners
    shards = max(followed.size, round(task.shards * part))
    samples = shards * task.shard_samples
    if task.mode == "federated":
        samples = int(fleet.local_samples(task)[followed].sum())
    sizes = msgspec.structs.replace(task.sizes, samples=samples)
    sample = task.sample
    if isinstance(sample, int):
        sample = sample_size(sample / fleet.learners, followed.size)
    task = msgspec.structs.replace(task, sizes=sizes, sample=sample)
    link = fleet.orchestrator.scaled(part)
    return task, replace(take_learners(fleet, followed), orchestrator=link)


def take_learners(fleet: Fleet, learners: Ints) -> Fleet:
    """Return a fleet of these learners, in ascending order."""
    kept = np.isin(fleet.availability.traced.learners, learners)
    traced = fleet.availability.traced.select(kept)
    numbers = np.searchsorted(learners, traced.learners)
    availability: Availability = _take_columns(fleet.availability, learners)
    subset: Fleet = _take_columns(fleet, learners)
    return replace(
        subset,
        availability=replace(
            availability,
            traced=Changes(traced.at_s, numbers, traced.kinds),
            hours=_take_columns(availability.hours, learners),
            battery=_take_columns(availability.battery, learners),
        ),
        noise=_take_columns(fleet.noise, learners),
        names=tuple(fleet.names[learner] for learner in learners.tolist()),
        discloses=tuple(fleet.discloses[learner] for learner in learners.tolist()),
        groups=_take_groups(fleet.groups, learners),
    )


def _take_groups(groups: Mapping[str, range], learners: Ints) -> dict[str, range]:
    """Return the new numbers of the learners of each group; groups without any are left out."""
    parts = {
        name: range(*np.searchsorted(learners, (group.start, group.stop)).tolist())
        for name, group in groups.items()
    }
    return {name: part for name, part in parts.items() if part}


def _take_columns(table: Any, learners: Ints) -> Any:
    """Return a dataclass with these rows of all arrays."""
    columns = {column.name: getattr(table, column.name) for column in fields(table)}
    arrays = {name: v[learners] for name, v in columns.items() if isinstance(v, np.ndarray)}
    return replace(table, **arrays)
