"""Error of predictions from a benchmark of 8 shards: `melisma bench`.

The four default devices of `melisma run`, emulated. FLOPS predicts from the speed of multiplying
matrices, instead of a subset of the task.
"""

import json
import statistics
from typing import Any

from benchmarks.harness import processes
from melisma.cli.options import DEFAULT_FLEET, DEFAULT_TASK
from melisma.fleet.files.fleet_builder import read_fleet

MELISMA = "from melisma.cli import main; main()"
SHARDS, REPEATS, LIMIT_S = 8, 3, 120.0
COLUMNS = ["subset, training %", "subset, download %", "FLOPS, training %"]


def measure(quick: bool) -> dict[str, Any]:
    """Return absolute errors in percent of the measured time, as medians of several runs."""
    names = read_fleet(DEFAULT_FLEET).names
    raw: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(1 if quick else REPEATS):
        for name in names:
            raw[name].append(_errors(name))
    rows = {
        name: {
            column: round(statistics.median(abs(run[column]) for run in runs), 2)
            for column in COLUMNS
        }
        for name, runs in raw.items()
    }
    all_runs = [run for runs in raw.values() for run in runs]
    for title, largest in (("median over devices", False), ("largest of all runs", True)):
        rows[title] = {
            column: round(
                max(abs(run[column]) for run in all_runs)
                if largest
                else statistics.median(rows[name][column] for name in names),
                2,
            )
            for column in COLUMNS
        }
    return {"rows": rows, "raw": raw, "own_s": 0.0}


def _errors(name: str) -> dict[str, float]:
    """Run `melisma bench` once and return its errors."""
    device = ["--fleet", str(DEFAULT_FLEET), "--learner", name]
    command = ["-c", MELISMA, "bench", str(DEFAULT_TASK), *device]
    report = json.loads(
        processes.run_python([*command, "--shards", str(SHARDS), "--json"], LIMIT_S)
    )
    errors = (
        report["train"]["predictions"][-1]["error_percent"],
        report["download"]["predictions"][-1]["error_percent"],
        report["flops"]["error_percent"],
    )
    return dict(zip(COLUMNS, errors, strict=True))
