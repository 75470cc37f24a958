"""Accuracy on data that is not alike: each way to aggregate, with its default settings.

50 simulated devices have 120 digits each, of few kinds: two ranges of all digits sorted by label,
or random proportions of labels (Dirichlet, alpha = 0.1). Half of the devices are four times as fast
as the others, and all train until the deadline, so that numbers of local steps differ. Runs with
the same seed have the same data, devices and initial model. Nothing was tuned.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from benchmarks.harness.parts import Benchmark, Part
from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.files.fleet_file import FleetTable
from melisma.fleet.task import Task
from melisma.runs.report import Report
from melisma.simulation.simulation import SimulationOptions, simulate

SEEDS = (1, 2, 3)
CYCLES = 20
REACHED = 0.8
PARTITIONS: dict[str, dict[str, Any]] = {
    "sorted": {"kind": "sorted"},
    "dirichlet": {"kind": "dirichlet", "alpha": 0.1},
}
FLEET = {
    "group": [
        {"name": name, "count": 25, "samples_per_s": speed, "bandwidth_bps": 50e6}
        for name, speed in (("slow", 50.0), ("fast", 200.0))
    ]
}
TASK: dict[str, Any] = {
    "name": "unlike",
    "model": "twonn",
    "data": "mnist",
    "mode": "federated",
    "scheme": "dab",
    "passes": 1,
    "deadline_s": 3.0,
    "cycles": CYCLES,
    "shard_samples": 20,
    "batch": 20,
    "optimizer": {"lr": 0.05},
    "sizes": {"samples": 6000},
    "simulation": {"work": "batched"},
}
WAYS: dict[str, dict[str, Any]] = {
    "mean": {},
    "momentum": {"server": {"name": "momentum"}},
    "nesterov": {"server": {"name": "nesterov"}},
    "adam": {"server": {"name": "adam"}},
    "yogi": {"server": {"name": "yogi"}},
    "prox = 0.01": {"prox": 0.01},
    "normalize": {"normalize": True},
    "sample = 0.2": {"sample": 0.2},
}
FIGURES = ("accuracy %", "lowest %", "highest %", "cycles to 80 %")
COLUMNS = [f"{name}, {figure}" for name in PARTITIONS for figure in FIGURES]


def measure(quick: bool) -> dict[str, Any]:
    """Run each way on each partition with each seed."""
    seeds = SEEDS[:1] if quick else SEEDS
    rows = {
        way: {
            column: figure
            for name, partition in PARTITIONS.items()
            for column, figure in _figures(
                name, [simulate_way(settings | {"partition": partition}, seed) for seed in seeds]
            ).items()
        }
        for way, settings in WAYS.items()
    }
    return {"rows": rows, "own_s": 0.0}


def simulate_way(settings: dict[str, Any], seed: int) -> Report:
    """Run the task with these settings."""
    task = msgspec.convert(TASK | settings, Task)
    fleet = build_fleet(msgspec.convert(FLEET, FleetTable))
    return simulate(task, fleet, SimulationOptions(seed=seed))


def _figures(name: str, reports: Sequence[Report]) -> dict[str, float | None]:
    """Return the median accuracy after the last cycle, its range, and the median cycles to 80 %."""
    last = sorted(round(100 * report.accuracy, 1) for report in reports)
    cycles = [
        next((c.number for c in report.cycles if c.accuracy >= REACHED), CYCLES + 1)
        for report in reports
    ]
    needed = int(median(cycles))
    values = (median(last), last[0], last[-1], None if needed > CYCLES else needed)
    return {f"{name}, {figure}": value for figure, value in zip(FIGURES, values, strict=True)}


BENCHMARK = Benchmark(
    "non_iid",
    {
        "non_iid": Part(
            "Accuracy after 20 cycles on data that is not alike: median of three seeds",
            measure,
            COLUMNS,
            timed=False,
        )
    },
    ["melisma", "numpy", "torch"],
)


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure the part, print it and return the results for the JSON file."""
    return BENCHMARK.run(quick, only)
