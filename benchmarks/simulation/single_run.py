"""Run a task on a fleet, live or simulated, in a new process.

`python -m benchmarks.simulation.single_run live|simulated FOLDER` reads the two files in the folder
and leaves the model there.
"""

import json
import sys
from pathlib import Path
from typing import Any

from melisma.runs.report import Report


def main() -> None:
    """Print cycles, accuracy and the path of the model."""
    mode, name = sys.argv[1:]
    folder = Path(name)
    report = _run(mode, folder / "task.toml", folder / "fleet.toml", folder / mode)
    if report.outcome != "finished":
        raise SystemExit(f"run {report.outcome}: {report.reason}")
    print(json.dumps(_summary(report)))


def _run(mode: str, task: Path, fleet: Path, folder: Path) -> Report:
    if mode == "live":
        from melisma.live.training import train

        return train(task, fleet, folder=folder)
    from melisma.simulation.simulation import SimulationOptions, simulate

    # Train one learner after another, as live: sums in another order would change the models.
    return simulate(task, fleet, SimulationOptions(work="train"), folder=folder)


def _summary(report: Report) -> dict[str, Any]:
    cycles = []
    for cycle in report.as_dict()["cycles"]:
        plan = {each["name"]: [each["shards"], each["passes"]] for each in cycle["assignments"]}
        visits = {each["name"]: each["visits"] for each in cycle["assignments"]}
        cycles.append({"cycle_s": cycle["cycle_s"], "plan": plan, "visits": visits})
    return {
        "cycles": cycles,
        "accuracy": report.accuracy,
        "capacity_used": report.capacity_used,
        "model": str(report.model),
    }


if __name__ == "__main__":
    main()
