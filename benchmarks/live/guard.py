"""The guard of the mean: the time that it adds to averaging, and honest updates that it reduces.

*Cost*: updates that arrived are in memory, and in files that are in the page cache. *At arrival* is
the distance of all updates from their start, which an orchestrator computes as they come in, while
others train. *At averaging* are the norm of the parameters and the decision about all updates. A
few different updates are used again and again. Processor time of one thread; medians.

*Honest runs*: whole runs in virtual time with real training, in which no update is forged.
"""

import statistics
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from benchmarks.harness.parts import Benchmark, Part, Results, cell
from benchmarks.harness.targets import Target
from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.files.fleet_file import FleetTable
from melisma.fleet.task import Task
from melisma.learning.aggregation import SpooledUpdate, UpdateSpool, weighted_mean
from melisma.learning.parameters import Layout
from melisma.learning.update_guard import UpdateChanges, UpdateGuard, distance, norm_of
from melisma.simulation.simulation import simulate

COUNTS = (4, 40, 400)
SIZES = {"160 kB": 40_000, "40 MB": 10_000_000}
DIFFERENT_UPDATES = 8
MIN_REPEATS, MIN_SECONDS = 3, 1.0
COST_COLUMNS = ["averaging ms", "at averaging ms", "at arrival ms", "arrival ms per update"]

SEEDS, CYCLES, SAMPLES_PER_LEARNER = (1, 2, 3), 10, 400
FLEETS = (4, 12, 40)
DATA: dict[str, dict[str, Any]] = {
    "IID": {"mode": "parallelized", "scheme": "proportional"},
    "Dirichlet 0.3": {"partition": {"kind": "dirichlet", "alpha": 0.3}},
    "sorted by label": {"partition": {"kind": "sorted"}},
}
FEDERATED = {"mode": "federated", "scheme": "equal", "passes": 1}
OPTIMIZERS = {"SGD": {"lr": 0.1}, "Adam": {"name": "adam", "lr": 0.001}}
SPEEDS = (500.0, 250.0, 125.0, 62.5)
"""Samples per second of the devices, in turn."""
CLIP_COLUMNS = ["updates", "clipped", "left out", "clipped %", "accuracy %"]


def cost(quick: bool) -> dict[str, Any]:
    """Return a row for each number and size of updates."""
    rows: dict[str, dict[str, float]] = {}
    for size, floats in SIZES.items():
        with TemporaryDirectory(prefix="benchmark-guard-") as folder:
            for count in COUNTS[: 2 if quick else None]:
                rows[f"{count} x {size}"] = _measure_cost(Path(folder), count, floats)
    return {"rows": rows, "own_s": 0.0}


def _measure_cost(folder: Path, count: int, floats: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    start = {"weight": rng.random(floats, dtype=np.float32)}
    updates = [
        {"weight": start["weight"] + rng.random(floats, dtype=np.float32)}
        for _ in range(min(count, DIFFERENT_UPDATES))
    ]
    layout = Layout.from_arrays(start)
    spool = UpdateSpool(folder, layout)
    paths = [spool.add(str(number), update) for number, update in enumerate(updates)]
    spooled = [SpooledUpdate(k, 1.0, paths[k % len(paths)]) for k in range(count)]

    def arrive() -> UpdateChanges:
        found = [distance(updates[k % len(updates)], start) for k in range(count)]
        return UpdateChanges(np.array(found), np.full(count, 100))

    changes = arrive()

    def decide() -> None:
        guard = UpdateGuard("clip")
        scales = guard.scales(changes, norm_of(start))
        guard.record(changes, scales)
        if not (scales == 1.0).all():
            raise RuntimeError("an update was reduced: the changes are alike")

    averaging_ms = _median_ms(lambda: weighted_mean(layout, spooled))
    arrival_ms = _median_ms(arrive)
    return {
        "averaging ms": averaging_ms,
        "at averaging ms": _median_ms(decide),
        "at arrival ms": arrival_ms,
        "arrival ms per update": arrival_ms / count,
    }


def _median_ms(work: Callable[[], object]) -> float:
    """Return the median processor time of several repetitions, after one that is not timed."""
    work()
    taken_s: list[float] = []
    while len(taken_s) < MIN_REPEATS or sum(taken_s) < MIN_SECONDS:
        began_s = time.thread_time()
        work()
        taken_s.append(time.thread_time() - began_s)
    return round(statistics.median(taken_s) * 1e3, 3)


def clips(quick: bool) -> dict[str, Any]:
    """Return a row for each fleet and kind of data, summed over seeds and optimizers."""
    rows: dict[str, dict[str, float]] = {}
    for learners, data in product(FLEETS[: 2 if quick else None], DATA):
        reports = [
            _run(learners, data, optimizer, seed)
            for optimizer, seed in product(OPTIMIZERS, SEEDS[: 1 if quick else None])
        ]
        updates = sum(int(report["updates"]) for report in reports)
        clipped = sum(int(report["clipped"]) for report in reports)
        rows[f"{learners} learners, {data}"] = {
            "updates": updates,
            "clipped": clipped,
            "left out": sum(int(report["left out"]) for report in reports),
            "clipped %": 100 * clipped / updates,
            "accuracy %": 100 * statistics.mean(report["accuracy"] for report in reports),
        }
    return {"rows": rows, "own_s": 0.0}


def _run(learners: int, data: str, optimizer: str, seed: int) -> dict[str, float]:
    """Simulate a run on devices of unequal speed; return how many updates the guard reduced."""
    settings = {
        "name": "guard",
        "model": "twonn",
        "data": "mnist",
        "deadline_s": 4.0,
        "cycles": CYCLES,
        "shard_samples": 25,
        "sizes": {"samples": SAMPLES_PER_LEARNER * learners},
        "optimizer": OPTIMIZERS[optimizer],
        "simulation": {"work": "batched"},
        "seed": seed,
        **({} if data == "IID" else FEDERATED),
        **DATA[data],
    }
    devices = [
        {"name": f"device-{k}", "samples_per_s": SPEEDS[k % len(SPEEDS)], "bandwidth_bps": 5e7}
        for k in range(learners)
    ]
    task = msgspec.convert(settings, Task)
    fleet = build_fleet(msgspec.convert({"learner": devices}, FleetTable))
    report = simulate(task, fleet)
    counted = sum(learner.cycles - learner.left for learner in report.learners)
    return {
        "updates": counted,
        "clipped": sum(report.clipped.values()),
        "left out": sum(report.left_out.values()),
        "accuracy": report.accuracy,
    }


def _most(column: str) -> Callable[[Results], float]:
    return lambda part: max(float(row[column]) for row in part["rows"].values())


def _share_of_averaging(row: str) -> Callable[[Results], float]:
    """Return a function that divides the time at averaging by that of averaging, in percent."""
    return lambda part: 100 * cell(row, "at averaging ms")(part) / cell(row, "averaging ms")(part)


PARTS = {
    "guard_cost": Part(
        "Time of the guard beside that of averaging",
        cost,
        COST_COLUMNS,
        tuple(
            Target(
                f"at averaging / averaging, {count} x {size}",
                _share_of_averaging(f"{count} x {size}"),
                25,
                unit="%",
            )
            for count, size in product(COUNTS[1:], SIZES)
        ),
    ),
    "guard_clips": Part(
        "Honest updates that the guard reduced",
        clips,
        CLIP_COLUMNS,
        (
            Target("clipped in the worst row", _most("clipped %"), 1, unit="%"),
            Target("left out", _most("left out"), 0),
        ),
        timed=False,
    ),
}
BENCHMARK = Benchmark("guard", PARTS, ["melisma", "numpy", "torch"])


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure the parts, print them and return the results for the JSON file."""
    return BENCHMARK.run(quick, only)
