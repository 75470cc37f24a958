"""Scenes small enough to be read."""

from typing import Any

import msgspec

from melisma.cycle import commands
from melisma.fleet.fleet import Fleet
from melisma.fleet.fleet_builder import muster
from melisma.fleet.fleet_file import FleetTable
from melisma.fleet.task import Task
from melisma.runs.report import Report
from melisma.runs.trace import Step
from melisma.simulation.compute.compute import TimingOnly
from melisma.simulation.driver import Driver
from melisma.simulation.faults import parse_faults
from melisma.simulation.invariants import run_checked
from melisma.simulation.scenario import Scenario, local_shard_sizes

TASK = {
    "name": "digits",
    "model": "twonn",
    "data": "mnist",
    "scheme": "dab",
    "passes": 2,
    "deadline_s": 10.0,
    "cycles": 3,
    "shard_samples": 100,
    "sizes": {"samples": 4000},
}
LEARNERS = [
    {"name": "tortoise", "samples_per_s": 200.0, "bandwidth_bps": 20e6, "latency_s": 0.01},
    {"name": "hare", "samples_per_s": 800.0, "bandwidth_bps": 50e6, "latency_s": 0.005},
    {"name": "fox", "samples_per_s": 500.0, "bandwidth_bps": 10e6, "latency_s": 0.02},
]


def task(**said: Any) -> Task:
    return msgspec.convert(TASK | said, Task)


def fleet(learners: list[dict[str, Any]] | None = None, **said: Any) -> Fleet:
    return muster(msgspec.convert({"learner": learners or LEARNERS} | said, FleetTable))


def scene(faults: str = "", among: Fleet | None = None, **said: Any) -> Scenario:
    where, what = among or fleet(), task(**said)
    own = local_shard_sizes(what, where)
    return Scenario("r1", what, where, own, parse_faults(faults, where.learners))


def run(faults: str = "", among: Fleet | None = None, **said: Any) -> Report:
    """The report of a run in which all that must hold, holds."""
    one = scene(faults, among, **said)
    return Report.of(run_checked(lambda watch: Driver(one, TimingOnly(), watch).run()))


def emitted(report: Report, kind: type[commands.Command]) -> list[Any]:
    return [each for step in report.trace for each in step.commands if isinstance(each, kind)]


def steps(one: Scenario) -> list[Step]:
    seen: list[Step] = []
    Driver(one, TimingOnly(), seen.append).run()
    return seen
