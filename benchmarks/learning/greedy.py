"""Greedy learners: accuracy with and without them, who is found, and what the checks cost.

Ten simulated devices train MNIST in parallel; three of them cheat in one way, or each in another
one. All runs of a seed have the same data, devices and initial model. The cost counts what the
orchestrator trains and evaluates to check updates, as a part of what all learners report.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec
import numpy as np

from benchmarks.harness.parts import Benchmark, Part
from melisma.cycle import commands, events
from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.files.fleet_file import FleetTable
from melisma.fleet.task import Task
from melisma.learning.verification.reexecution import Verdict
from melisma.runs.trace import Step
from melisma.simulation.fault_sources import find_faults
from melisma.simulation.simulation import SimulationOptions, prepare
from melisma.simulation.simulation import run as run_prepared

SEEDS = (11, 12, 13)
LEARNERS, GREEDY = 10, 3
FLEET = {
    "group": [
        {"name": "slow", "count": 5, "samples_per_s": 400.0, "bandwidth_bps": 100e6},
        {"name": "fast", "count": 5, "samples_per_s": 1600.0, "bandwidth_bps": 100e6},
    ]
}
TASK: dict[str, Any] = {
    "name": "greedy",
    "model": "twonn",
    "data": "mnist",
    "scheme": "dab",
    "passes": 1,
    "deadline_s": 3.0,
    "cycles": 8,
    "shard_samples": 100,
    "sizes": {"samples": 20000},
    "simulation": {"work": "train"},
}
LONG_CYCLES = 150
KINDS = ("speed", "ask", "less", "noise", "copy")
CHEATS = {kind: f"greedy {kind} 1,6,8" for kind in KINDS}
CHEATS["mixed"] = "greedy less 1; greedy noise 6; greedy copy 8"
FILTERED: dict[str, Any] = {  # many passes over 200 samples of each learner
    "verify": "filter",
    "scheme": "equal",
    "sizes": {"samples": 2000},
    "shard_samples": 20,
    "deadline_s": 6.0,
    "cycles": 6,
}
UNCHECKED = ("noise", "mixed")  # also without checks
COLUMNS = [
    *("accuracy %", "lowest %", "highest %"),
    *("greedy updates", "greedy checked", "greedy wrong", "greedy suspected"),
    *("honest updates", "honest checked", "honest wrong", "honest suspected"),
    "cost %",
]


class Counts:
    """Verdicts on greedy and honest learners, and the cost of the checks."""

    def __init__(self, greedy: Sequence[int]) -> None:
        self.greedy = greedy
        self.checks, self.wrong = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self.check_visits = self.visits = 0.0
        self.suspicions = np.zeros(2, np.int64)
        self.updates = np.zeros(2, np.int64)

    def watch(self, step: Step) -> None:
        """Count the checks of a step."""
        event = step.event
        if isinstance(event, events.UpdatesReceived):
            self.visits += float(event.visits.sum())
            self._add(self.updates, event.learners)
        for command in step.commands:
            if isinstance(command, commands.Suspect):
                self._add(self.suspicions, command.learners)
        if not isinstance(event, events.Aggregated):
            return
        verified = event.verified
        self.check_visits += verified.visits
        self._add(self.checks, verified.learners[verified.verdicts != Verdict.UNCHECKED])
        self._add(self.wrong, verified.learners[verified.verdicts == Verdict.WRONG])

    def _add(self, counts: "np.ndarray[Any, np.dtype[np.int64]]", learners: Any) -> None:
        cheats = np.isin(learners, self.greedy)
        counts += (int(cheats.sum()), int((~cheats).sum()))


def simulate_greedy(settings: dict[str, Any], faults: str, seed: int) -> tuple[float, Counts]:
    """Run the task with these settings and faults; return the accuracy and the counts."""
    task = msgspec.convert(TASK | settings, Task)
    fleet = build_fleet(msgspec.convert(FLEET, FleetTable))
    prepared = prepare(task, fleet, SimulationOptions(seed=seed, faults=faults))
    greedy = {n for fault in find_faults(faults, task, fleet, None) for n in fault.learners}
    counts = Counts(sorted(greedy))
    report = run_prepared(prepared, watch=counts.watch).require_success()
    return 100 * report.accuracy, counts


def measure_cheats(quick: bool) -> dict[str, Any]:
    """Run honest learners, and those that cheat in each way, checked and unchecked."""
    seeds = SEEDS[:1] if quick else SEEDS
    rows = {
        "honest, not checked": _row({}, "", seeds),
        "honest, checked": _row({"verify": "audit"}, "", seeds),
    }
    for name, faults in CHEATS.items():
        if name in UNCHECKED:
            rows[f"{name}, not checked"] = _row({}, faults, seeds)
        rows[f"{name}, checked"] = _row({"verify": "audit"}, faults, seeds)
    return {"rows": rows, "own_s": 0.0}


def measure_filter(quick: bool) -> dict[str, Any]:
    """Run learners that the first filter alone watches, with many passes over few samples."""
    seeds = SEEDS[: 1 if quick else 2]
    cheats = {"honest": "", **{kind: CHEATS[kind] for kind in ("less", "noise", "copy")}}
    return {"rows": {n: _row(FILTERED, f, seeds) for n, f in cheats.items()}, "own_s": 0.0}


def measure_cost(quick: bool) -> dict[str, Any]:
    """Run honest learners for many cycles; return the cost of the checks."""
    cycles = (4,) if quick else (8, LONG_CYCLES)
    rows = {
        f"{number} cycles": _row({"verify": "audit", "cycles": number}, "", SEEDS[:1])
        for number in cycles
    }
    return {"rows": rows, "own_s": 0.0}


def _row(settings: dict[str, Any], faults: str, seeds: Sequence[int]) -> dict[str, float | None]:
    results = [simulate_greedy(settings, faults, seed) for seed in seeds]
    accuracies = [accuracy for accuracy, _ in results]
    counts = [count for _, count in results]
    cost = sum(c.check_visits for c in counts) / sum(c.visits for c in counts)
    totals = [
        int(sum(int(getattr(c, name)[column]) for c in counts))
        for column in (0, 1)
        for name in ("updates", "checks", "wrong", "suspicions")
    ]
    values = (median(accuracies), min(accuracies), max(accuracies), *totals, 100 * cost)
    return {name: round(value, 2) for name, value in zip(COLUMNS, values, strict=True)}


BENCHMARK = Benchmark(
    "greedy",
    {
        "greedy_cheats": Part(
            "Three of ten learners cheat: accuracy after 8 cycles, median of three seeds",
            measure_cheats,
            COLUMNS,
            timed=False,
        ),
        "greedy_filter": Part(
            "The first filter alone, after many passes over 2,000 samples",
            measure_filter,
            COLUMNS,
            timed=False,
        ),
        "greedy_cost": Part(
            "The cost of the checks of honest learners", measure_cost, COLUMNS, timed=False
        ),
    },
    ["melisma", "numpy", "torch"],
)


def run(quick: bool = False, only: tuple[str, ...] = ()) -> dict[str, object]:
    """Measure the parts, print them and return the results for the JSON file."""
    return BENCHMARK.run(quick, only)
