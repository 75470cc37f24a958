"""Small scenarios for tests of the simulation."""

from typing import Any

import msgspec

from melisma.cycle import commands
from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.files.fleet_file import FleetTable
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import PAPER_RULES, Task
from melisma.runs.report import Report
from melisma.runs.trace import Step
from melisma.simulation.compute.compute import TimingOnly
from melisma.simulation.driver import Driver
from melisma.simulation.faults import parse_faults
from melisma.simulation.invariants.invariants import run_checked
from melisma.simulation.scenario import Scenario, even_local_shard_samples

TASK = {
    **PAPER_RULES,
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


def make_task(**settings: Any) -> Task:
    return msgspec.convert(TASK | settings, Task)


def make_fleet(learners: list[dict[str, Any]] | None = None, **settings: Any) -> Fleet:
    return build_fleet(msgspec.convert({"learner": learners or LEARNERS} | settings, FleetTable))


def make_scenario(faults: str = "", fleet: Fleet | None = None, **settings: Any) -> Scenario:
    fleet, task = fleet or make_fleet(), make_task(**settings)
    sizes = even_local_shard_samples(task, fleet)
    return Scenario("r1", task, fleet, sizes, parse_faults(faults, fleet.learners))


def run(faults: str = "", fleet: Fleet | None = None, **settings: Any) -> Report:
    """Run a scenario, check the invariants after each step, and return its report."""
    scenario = make_scenario(faults, fleet, **settings)
    return Report.from_trace(run_checked(lambda watch: Driver(scenario, TimingOnly(), watch).run()))


def commands_of(report: Report, kind: type[commands.Command]) -> list[Any]:
    return [each for step in report.trace for each in step.commands if isinstance(each, kind)]


def run_steps(scenario: Scenario) -> list[Step]:
    steps: list[Step] = []
    Driver(scenario, TimingOnly(), steps.append).run()
    return steps
