"""Capacity and punctuality of unlike simulated devices, with several fleets and seeds each.

Three fleets of 300 devices in three operating states with noise of 20 %, and 500 phones that sleep
a third of the time. All run in virtual time without training, so the load of the machine does not
matter. The task has the default rules.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from melisma.runs.report import Report
from melisma.simulation.simulation import SimulationOptions, simulate

SEEDS = (1, 2, 3, 4)
TOLERANCE = 0.01
LEAST_CAPACITY, LEAST_PUNCTUAL, MOST_OUTSIDE = 88.0, 98.0, 5.0
CAPACITY, PUNCTUAL, OUTSIDE = "capacity used %", "cycles within 1 % %", "outside cycles %"
COLUMNS = [
    *("runs", "cycles", CAPACITY, "least of a run %", PUNCTUAL, "largest lateness %"),
    *(OUTSIDE, "late %", "gone %"),
]
NOISE = "[fleet]\nnoise = { compute = 0.2, bandwidth = 0.2 }\n"
STATES = "states = { compute = [1.0, 0.5, 1.0], bandwidth = [1.0, 1.0, 0.3] }"
PHONES = f"""
{NOISE}
[[fleet.group]]
count = 300
profile = "phone"
spread = {{ compute = 0.4, bandwidth_bps = 0.6 }}
{STATES}
"""
MIXTURE = f"""
{NOISE}
[[fleet.group]]
count = 180
profile = "phone"
spread = {{ compute = 0.5, bandwidth_bps = 0.8 }}
states = {{ compute = [1.0, 0.6, 0.3], bandwidth = [1.0, 0.5, 0.5] }}
[[fleet.group]]
count = 80
profile = "raspberry-pi-4"
spread = {{ compute = 0.2, bandwidth_bps = 0.3 }}
{STATES}
[[fleet.group]]
count = 40
profile = "laptop"
spread = {{ compute = 0.6, bandwidth_bps = 0.3 }}
states = {{ compute = [1.0, 0.5, 0.25], bandwidth = [1.0, 1.0, 0.3] }}
"""
UPLINKS = f"""
{NOISE}
[[fleet.group]]
count = 200
name = "home"
samples_per_s = 800.0
downlink_bps = 30e6
uplink_bps = 3e6
latency_s = 0.02
spread = {{ compute = 0.8, bandwidth_bps = 0.5 }}
{STATES}
[[fleet.group]]
count = 100
name = "mobile"
samples_per_s = 250.0
downlink_bps = 10e6
uplink_bps = 2e6
latency_s = 0.05
spread = {{ compute = 0.3, bandwidth_bps = 0.8 }}
states = {{ compute = [1.0, 0.5, 0.5], bandwidth = [1.0, 1.0, 0.3] }}
"""
SLEEPERS = """
[[fleet.group]]
count = 500
profile = "phone"
spread = { compute = 0.4, bandwidth_bps = 0.6 }
availability = { awake_s = 600, asleep_s = 300 }
"""
TASK = """
[task]
name = "fleets"
model = "twonn"
data = "mnist"
mode = "{mode}"
scheme = "dab"
passes = 2
deadline_s = {deadline_s}
cycles = 20
shard_samples = 20
batch = 32
[task.simulation]
work = "timing"
"""


class Setting(NamedTuple):
    """A fleet, and the mode and the deadline of its task."""

    fleet: str
    mode: str
    deadline_s: float


SETTINGS = {
    "300 phones": Setting(PHONES, "parallelized", 120.0),
    "300 devices of three kinds": Setting(MIXTURE, "parallelized", 60.0),
    "300 devices with slow uplinks, federated": Setting(UPLINKS, "federated", 60.0),
    "500 phones that sleep a third of the time": Setting(SLEEPERS, "parallelized", 60.0),
}


def measure(quick: bool) -> dict[str, Any]:
    """Run each fleet with each seed."""
    seeds = SEEDS[:1] if quick else SEEDS
    rows = {
        name: _row([run(setting, seed) for seed in seeds]) for name, setting in SETTINGS.items()
    }
    return {"rows": rows, "own_s": 0.0}


def run(setting: Setting, seed: int, learners: int | None = None) -> Report:
    """Run a fleet, or `learners` in its proportions, with a seed."""
    with TemporaryDirectory(prefix="benchmark-fleets-") as name:
        task, fleet = Path(name) / "task.toml", Path(name) / "fleet.toml"
        task.write_text(TASK.format(mode=setting.mode, deadline_s=setting.deadline_s))
        fleet.write_text(setting.fleet)
        return simulate(task, fleet, SimulationOptions(learners=learners, seed=seed))


def _row(reports: Sequence[Report]) -> dict[str, float]:
    """Return the figures of several runs of a fleet; their cycles have the same weight."""
    late = [each for report in reports for each in lateness(report)]
    capacity = [report.capacity_used for report in reports]
    lost = [report.capacity_lost for report in reports]
    return {
        "runs": len(reports),
        "cycles": len(late),
        CAPACITY: _percent(capacity),
        "least of a run %": _percent([min(capacity)]),
        PUNCTUAL: _percent([each <= TOLERANCE for each in late]),
        "largest lateness %": _percent([max(late)]),
        OUTSIDE: _percent([report.outside_share for report in reports]),
        **{f"{loss} %": _percent([each[loss] for each in lost]) for loss in ("late", "gone")},
    }


def lateness(report: Report) -> list[float]:
    """Return how late each cycle closed, as a fraction of the deadline; negative is early."""
    return [
        (cycle.closed_s - cycle.began_s) / cycle.deadline_s - 1 for cycle in report.ended_cycles
    ]


def _percent(fractions: Sequence[float]) -> float:
    """Return the mean of fractions as a rounded percentage."""
    return round(100 * sum(fractions) / len(fractions), 2)
