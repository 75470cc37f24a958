"""Capacity that `melisma run` uses without files: MNIST on four emulated devices, 6 s a cycle.

Capacity used is the number of visits that count, divided by the visits that the measured rate of
each learner would have allowed between its dispatch and the deadline, after its fixed phases. The
first two cycles are separate, since learners have only a short benchmark to plan with. Lateness is
a fraction of the deadline. Training and the columns after it are shares of all learners' time from
dispatch to the deadline.
"""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import processes
from melisma.runs.capacity import LOSSES

MELISMA = "from melisma.cli import main; main()"
RUNS = dict.fromkeys(("dab", "staleness", "synchronous", "proportional"), 5)
FIRST_CYCLES, TOLERANCE, LIMIT_S = 2, 0.03, 180.0
FIRST, REST, PUNCTUAL = "cycles 1-2 %", "from cycle 3 %", "within 3 % %"
COLUMNS = [
    *("runs", "cycles", FIRST, REST, "least from cycle 3 %", PUNCTUAL, "largest lateness %"),
    *("outside cycles s", "training %", "fixed %", *(f"{loss} %" for loss in LOSSES)),
]


def measure(quick: bool) -> dict[str, Any]:
    """Run the command several times with each scheme, one run after another."""
    raw = {
        scheme: [_run(scheme) for _ in range(1 if quick else runs)] for scheme, runs in RUNS.items()
    }
    return {"rows": {scheme: _row(runs) for scheme, runs in raw.items()}, "raw": raw, "own_s": 0.0}


def _run(scheme: str) -> dict[str, Any]:
    with TemporaryDirectory(prefix="benchmark-capacity-") as name:
        options = ["--json", "--scheme", scheme, "--out", str(Path(name) / "run")]
        report = json.loads(processes.run_python(["-c", MELISMA, "run", *options], LIMIT_S))
    if report["outcome"] != "finished":
        raise RuntimeError(f"the run of {scheme} {report['outcome']}: {report['reason']}")
    return {"outside_s": report["outside_s"], "cycles": [*map(_figures, report["cycles"])]}


def _figures(cycle: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of a cycle that the table or an explanation needs."""
    return {
        "capacity": cycle["capacity_used"],
        "late": lateness(cycle),
        "time_use": cycle["time_use"],
        "learners": {
            each["name"]: {
                "capacity": each["capacity_used"],
                "status": each["status"],
                "phases": [None if s is None else round(s, 4) for s in each["phases"]],
            }
            for each in cycle["assignments"]
        },
    }


def lateness(cycle: dict[str, Any]) -> float:
    """Return how late a cycle closed, as a fraction of its deadline; negative is early."""
    return float((cycle["closed_s"] - cycle["began_s"]) / cycle["deadline_s"] - 1)


def _row(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    cycles = [cycle for run in runs for cycle in run["cycles"]]
    first, rest = (
        [[cycle["capacity"] for cycle in run["cycles"][part]] for run in runs]
        for part in (slice(FIRST_CYCLES), slice(FIRST_CYCLES, None))
    )
    return {
        "runs": len(runs),
        "cycles": len(cycles),
        FIRST: percent(statistics.median(map(statistics.mean, first))),
        REST: percent(statistics.median(map(statistics.mean, rest))),
        "least from cycle 3 %": percent(min(map(min, rest))),
        "outside cycles s": round(statistics.median(run["outside_s"] for run in runs), 2),
        **punctuality([cycle["late"] for cycle in cycles]),
        **_time_uses([cycle["time_use"] for cycle in cycles]),
    }


def punctuality(late: Sequence[float]) -> dict[str, float]:
    """Return the share of cycles that are at most 3 % late, and the largest lateness."""
    return {
        PUNCTUAL: percent(statistics.mean(each <= TOLERANCE for each in late)),
        "largest lateness %": percent(max(late)),
    }


def _time_uses(cycles: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean share of each use over cycles, which have nearly the same length."""
    return {f"{use} %": percent(statistics.mean(each[use] for each in cycles)) for use in cycles[0]}


def percent(fraction: float) -> float:
    """Return a fraction as a rounded percentage."""
    return round(100 * fraction, 2)
