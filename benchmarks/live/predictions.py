"""How well a benchmark of 8 shards foretells what further ones take: `melisma bench`.

Each of the four devices of `melisma run`, emulated; beside the subset benchmark FLOPS, which asks
how fast the device multiplies matrices.
"""

import json
import statistics
from typing import Any

from benchmarks.harness import processes
from melisma.cli.options import DEFAULT_FLEET, DEFAULT_TASK
from melisma.fleet.files.fleet_builder import read_fleet

MELISMA = "from melisma.cli import main; main()"
SHARDS, TIMES, LIMIT_S = 8, 3, 120.0
COLUMNS = ["subset, training %", "subset, download %", "FLOPS, training %"]


def measure(quick: bool) -> dict[str, Any]:
    """Errors in percent of what it took, without their sign: the median of several runs."""
    names = read_fleet(DEFAULT_FLEET).names
    raw: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(1 if quick else TIMES):
        for name in names:
            raw[name].append(_errors(name))
    rows = {
        name: {
            column: round(statistics.median(abs(run[column]) for run in runs), 2)
            for column in COLUMNS
        }
        for name, runs in raw.items()
    }
    every = [run for runs in raw.values() for run in runs]
    for title, of in (("median over devices", None), ("largest of all runs", max)):
        rows[title] = {
            column: round(
                max(abs(run[column]) for run in every)
                if of
                else statistics.median(rows[name][column] for name in names),
                2,
            )
            for column in COLUMNS
        }
    return {"rows": rows, "raw": raw, "own_s": 0.0}


def _errors(name: str) -> dict[str, float]:
    """One run of `melisma bench`."""
    where = ["--fleet", str(DEFAULT_FLEET), "--learner", name]
    command = ["-c", MELISMA, "bench", str(DEFAULT_TASK), *where]
    said = json.loads(processes.said([*command, "--shards", str(SHARDS), "--json"], LIMIT_S))
    found = (
        said["train"]["sb"][-1]["error_percent"],
        said["download"]["sb"][-1]["error_percent"],
        said["flops"]["error_percent"],
    )
    return dict(zip(COLUMNS, found, strict=True))
