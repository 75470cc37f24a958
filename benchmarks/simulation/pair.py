"""The same task on the same fleet, live or simulated, in a fresh process: what became of it.

`python -m benchmarks.simulation.pair live|simulated FOLDER`, where the folder has the two files;
the model is left there.
"""

import json
import sys
from pathlib import Path
from typing import Any

from melisma.runs.report import Report


def main() -> None:
    """Print cycles, outcome and where the model is."""
    how, name = sys.argv[1:]
    folder = Path(name)
    report = _run(how, folder / "task.toml", folder / "fleet.toml", folder / how)
    if report.outcome != "done":
        raise SystemExit(f"it {report.outcome}: {report.reason}")
    print(json.dumps(_told(report)))


def _run(how: str, task: Path, fleet: Path, folder: Path) -> Report:
    if how == "live":
        from melisma.live.training import train

        return train(task, fleet, folder=folder)
    from melisma.simulation.simulation import SimulationOptions, simulate

    # One by one, as live: sums in another order would part the models in thousands of steps.
    return simulate(task, fleet, SimulationOptions(work="train"), folder=folder)


def _told(report: Report) -> dict[str, Any]:
    cycles = []
    for cycle in report.as_dict()["cycles"]:
        plan = {each["name"]: [each["shards"], each["passes"]] for each in cycle["assignments"]}
        cycles.append({"cycle_s": cycle["cycle_s"], "plan": plan})
    return {"cycles": cycles, "accuracy": report.accuracy, "model": str(report.model)}


if __name__ == "__main__":
    main()
