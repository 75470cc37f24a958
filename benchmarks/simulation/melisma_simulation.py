"""One simulation of ours in a fresh process, by the same order as the peers get.

Evaluation is left out of the time: from what ended one cycle to the averaged model of the next.
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
from melisma.fleet.task import Task
from melisma.runs.trace import Step
from melisma.simulation.simulation import prepare, run

SAMPLES = 60_000


def task_for(order: dict[str, Any]) -> Task:
    """Every learner trains all it has once; nobody is near the deadline."""
    return msgspec.convert(
        {
            "name": "updates",
            "model": "mlp",
            "model_args": {"layers": order["widths"]},
            "data": "mnist",
            "mode": "federated",
            "scheme": "equal",
            "passes": 1,
            "deadline_s": 60.0,
            "cycles": order.get("timed", order["rounds"]),
            "shard_samples": SAMPLES // order["learners"],
            "batch": order["batch"],
            "optimizer": {"name": "sgd", "lr": order["lr"]},
            "simulation": {"work": "batched"},
        },
        Task,
    )


def like(learners: int) -> FleetTable:
    """So many like devices."""
    group = {"count": learners, "samples_per_s": 1e4, "bandwidth_bps": 1e9, "latency_s": 0.01}
    return msgspec.convert({"group": [group]}, FleetTable)


def main() -> None:
    """Follow the order in the file."""
    order = json.loads(Path(sys.argv[1]).read_text())
    staged = prepare(task_for(order), build_fleet(like(order["learners"])))
    seen: list[tuple[type, float]] = []

    def watch(step: Step) -> None:
        if isinstance(step.event, Aggregated | Evaluated):
            seen.append((type(step.event), time.monotonic()))

    report = run(staged, watch=watch)
    expected = SAMPLES * len(report.cycles)
    if report.samples_trained != expected:
        raise SystemExit(f"{report.samples_trained} samples were trained; expected {expected}")
    said = {"ended_s": _without_evaluation(seen), "unseen_s": 0.0}
    # After as many rounds as the others train.
    scored = report.cycles[order["rounds"] - 1]
    said |= {"accuracy": scored.accuracy, "loss": scored.loss}
    Path(order["out"]).write_text(json.dumps(said))


def _without_evaluation(seen: list[tuple[type, float]]) -> list[float]:
    """When each cycle would have ended had nothing been evaluated."""
    ended_s, spent_s, since_s = [], 0.0, 0.0
    for kind, at_s in seen:
        if kind is Aggregated:
            ended_s.append(at_s - spent_s)
            since_s = at_s
        else:
            spent_s += at_s - since_s
    return ended_s


if __name__ == "__main__":
    main()
