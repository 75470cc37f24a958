"""Visits that count, while simulated learners or the orchestrator crash again and again.

Crashes are drawn as in `benchmarks.live.goodput`, in virtual time and over more cycles.
"""

import statistics
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.live.goodput import (
    ALONE,
    BETWEEN,
    CYCLE_S,
    EACH_LEARNER,
    KILLS,
    LEARNERS,
    ORCHESTRATOR,
    SEEDS,
)
from benchmarks.live.joined_run import TASK, averaged_visits
from melisma.runs.folder import TRACE_FILE
from melisma.runs.trace import read_trace
from melisma.simulation.simulation import SimulationOptions, simulate

CYCLES, QUICK_CYCLES = 300, 40
RESTART_S = 2.0
"""About the time in which a process of Melisma starts again, with NumPy alone."""
DEVICE = '[[fleet.learner]]\nname = "device-{}"\nprofile = "laptop"\n'


def measure(quick: bool) -> dict[str, Any]:
    """Return a row for each kind of process that crashes."""
    cycles = QUICK_CYCLES if quick else CYCLES
    rows: dict[str, dict[str, float]] = {}
    with TemporaryDirectory(prefix="goodput-") as name:
        rate = partial(_samples_per_s, Path(name))
        alone = rate(cycles, "")
        for kind in (EACH_LEARNER, ORCHESTRATOR):
            rows[kind] = {ALONE: round(alone)}
            for between, mean in BETWEEN.items():
                drawn = [draw_crashes(kind, mean * CYCLE_S, cycles * CYCLE_S, n) for n in SEEDS]
                shares = [rate(cycles, "; ".join(crashes)) / alone for crashes in drawn]
                rows[kind] |= {
                    f"{between} %": round(100 * statistics.median(shares), 1),
                    f"{KILLS} {between}": statistics.median(map(len, drawn)),
                }
    return {"rows": rows, "own_s": 0.0}


def draw_crashes(kind: str, mean_s: float, until_s: float, seed: int) -> list[str]:
    """Return the crashes of all processes of a kind, as text of faults, in order."""
    rng = np.random.default_rng(seed)
    targets = [ORCHESTRATOR] if kind == ORCHESTRATOR else [*map(str, range(LEARNERS))]
    crashes = []
    for target in targets:
        at_s = float(rng.exponential(mean_s))
        while at_s < until_s:
            crashes.append((at_s, f"crash {target} at {at_s:.2f} for {RESTART_S:g}"))
            at_s += RESTART_S + float(rng.exponential(mean_s))
    return [text for _, text in sorted(crashes)]


def _samples_per_s(folder: Path, cycles: int, faults: str) -> float:
    """Return the samples averaged in a second of virtual time."""
    task, fleet = folder / "task.toml", folder / "fleet.toml"
    task.write_text(
        TASK.format(cycle_s=CYCLE_S, cycles=100_000).replace(
            "cycles = 100000", f"cycles = 100000\ntotal_s = {cycles * CYCLE_S}"
        )
    )
    fleet.write_text("".join(map(DEVICE.format, range(LEARNERS))))
    with TemporaryDirectory(dir=folder) as run:
        simulate(task, fleet, SimulationOptions(work="timing", faults=faults), folder=run)
        return averaged_visits(read_trace(Path(run) / TRACE_FILE)) / (cycles * CYCLE_S)
