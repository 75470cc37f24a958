"""Lateness of short cycles: the four default devices of `melisma run`, emulated, with DAB.

A cycle ends when it closes. Lateness is a fraction of the deadline.
"""

import statistics
from typing import Any

from benchmarks.live import melisma_run
from melisma.cli.options import DEFAULT_FLEET

DEADLINE_S, CYCLES, LIMIT_S, TOLERANCE = 1.0, 110, 400.0, 0.03
TASK = {
    "name": "digits",
    "model": "twonn",
    "data": "mnist",
    "scheme": "dab",
    "passes": 1,
    "deadline_s": DEADLINE_S,
    "cycles": CYCLES,
    "batch": 32,
    "optimizer": {"name": "sgd", "lr": 0.1},
}
COLUMNS = ["cycles", "within 3 % %", "by the deadline %", "median %", "95 % %", "largest %"]
LEARNER_COLUMNS = ["late", "dropped", "shards", "median %", "95 % %", "largest %"]


def measure(quick: bool) -> dict[str, Any]:
    """Return the lateness of cycles and learners in percent of the deadline; negative is early."""
    run = melisma_run.run(TASK | {"cycles": 15 if quick else CYCLES}, DEFAULT_FLEET, LIMIT_S)
    cycles = run["cycles"]
    waited = [_lateness(c["waited_s"]) for c in cycles if c["waited_s"] is not None]
    within = sum(late <= 100 * TOLERANCE for late in waited)
    row = {
        "cycles": len(cycles),
        "within 3 % %": round(100 * within / len(cycles), 1),
        "by the deadline %": round(100 * sum(late <= 0 for late in waited) / len(cycles), 1),
        **_spread(waited),
    }
    return {
        "rows": {f"DAB, {DEADLINE_S:g} s": row},
        "learners": _learners(cycles),
        "raw": {"late %": [round(late, 2) for late in waited]},
        "slowest": _slowest(cycles),
        "own_s": 0.0,
    }


def _lateness(seconds: float) -> float:
    return 100 * (seconds / DEADLINE_S - 1)


def _spread(late: list[float]) -> dict[str, float]:
    ordered = sorted(late)
    return {
        "median %": round(statistics.median(ordered), 2),
        "95 % %": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 2),
        "largest %": round(ordered[-1], 2),
    }


def _learners(cycles: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the lateness of each learner's updates, counted from the dispatch of their cycle."""
    rows: dict[str, dict[str, float]] = {}
    work = [(cycle, each) for cycle in cycles for each in cycle["assignments"]]
    for name in dict.fromkeys(each["name"] for _, each in work):
        own_work = [(cycle, each) for cycle, each in work if each["name"] == name]
        lateness = [
            _lateness(each["arrived_s"] - cycle["began_s"])
            for cycle, each in own_work
            if each["arrived_s"] is not None
        ]
        rows[name] = {
            "late": sum(late > 100 * TOLERANCE for late in lateness),
            "dropped": sum(each["status"] == "dropped" for _, each in own_work),
            "shards": statistics.median(each["shards"] for _, each in own_work),
            **(_spread(lateness) if lateness else {}),
        }
    return rows


def _slowest(cycles: list[dict[str, Any]], count: int = 5) -> list[dict[str, Any]]:
    """Return the latest cycles with the phases of the last learner, to show the reason."""
    ended = [each for each in cycles if each["waited_s"] is not None]
    rows = []
    for cycle in sorted(ended, key=lambda each: -float(each["waited_s"]))[:count]:
        in_time = [each for each in cycle["assignments"] if each["arrived_s"] is not None]
        last = max(in_time, key=lambda each: float(each["arrived_s"]), default=None)
        dropped = [each["name"] for each in cycle["assignments"] if each["status"] == "dropped"]
        rows.append(
            {
                "cycle": cycle["number"],
                "waited_s": cycle["waited_s"],
                "last": last and last["name"],
                "phases": last and [round(phase or 0.0, 4) for phase in last["phases"]],
                "dropped": dropped,
            }
        )
    return rows
