"""Run one simulation of Melisma in a new process, with the same job as its competitors.

The measured time excludes evaluation: it ends with the averaged model of each cycle.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from melisma.cycle.events import Aggregated, Evaluated
from melisma.fleet.files.fleet_builder import build_fleet
from melisma.fleet.files.fleet_file import FleetTable
from melisma.fleet.task import PAPER_RULES, Task
from melisma.runs.trace import Step
from melisma.simulation.simulation import prepare, run

SAMPLES = 60_000


def task_for(job: dict[str, Any]) -> Task:
    """Return a task in which every learner trains its samples once, long before the deadline."""
    return msgspec.convert(
        {
            "name": "updates",
            "model": "mlp",
            "model_args": {"layers": job["widths"]},
            "data": "mnist",
            "mode": "federated",
            "scheme": "equal",
            "passes": 1,
            "deadline_s": 60.0,
            "cycles": job.get("timed", job["rounds"]),
            "shard_samples": SAMPLES // job["learners"],
            "batch": job["batch"],
            "optimizer": {"name": "sgd", "lr": job["lr"]},
            "simulation": {"work": "batched"},
            **PAPER_RULES,
        },
        Task,
    )


def uniform_fleet(learners: int) -> FleetTable:
    """Return a fleet of equal devices."""
    group = {"count": learners, "samples_per_s": 1e4, "bandwidth_bps": 1e9, "latency_s": 0.01}
    return msgspec.convert({"group": [group]}, FleetTable)


def main() -> None:
    """Run the job in the file."""
    job = json.loads(Path(sys.argv[1]).read_text())
    prepared = prepare(task_for(job), build_fleet(uniform_fleet(job["learners"])))
    times: list[tuple[type, float]] = []

    def watch(step: Step) -> None:
        if isinstance(step.event, Aggregated | Evaluated):
            times.append((type(step.event), time.monotonic()))

    report = run(prepared, watch=watch)
    expected = SAMPLES * len(report.cycles)
    if report.visits_counted != expected:
        raise SystemExit(f"{report.visits_counted} visits were counted; expected {expected}")
    results = {"ended_s": _without_evaluation(times), "unseen_s": 0.0}
    # Score after the number of rounds that competitors train.
    scored = report.cycles[job["rounds"] - 1]
    results |= {"accuracy": scored.accuracy, "loss": scored.loss}
    Path(job["out"]).write_text(json.dumps(results))


def _without_evaluation(times: list[tuple[type, float]]) -> list[float]:
    """Return when each cycle would have ended without evaluation."""
    ended_s, spent_s, since_s = [], 0.0, 0.0
    for kind, at_s in times:
        if kind is Aggregated:
            ended_s.append(at_s - spent_s)
            since_s = at_s
        else:
            spent_s += at_s - since_s
    return ended_s


if __name__ == "__main__":
    main()
