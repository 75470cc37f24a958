"""How punctual short cycles are: the four devices of `melisma run`, emulated, by DAB.

A cycle ends when nobody is waited for any longer. How late it is, is a part of the deadline.
"""

import statistics
from pathlib import Path
from typing import Any

from benchmarks.live import melisma_run
from melisma.cli.options import DEFAULT_FLEET

DEADLINE_S, CYCLES, LIMIT_S, TARDY = 1.0, 110, 400.0, 0.03
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
    """Lateness of cycles and of each learner in percent of the deadline; negative is early."""
    run = melisma_run.run(TASK | {"cycles": 15 if quick else CYCLES}, _fleet(), LIMIT_S)
    cycles = run["cycles"]
    waited = [_late(c["waited_s"]) for c in cycles if c["waited_s"] is not None]
    within = sum(late <= 100 * TARDY for late in waited)
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


def _fleet() -> Path:
    return DEFAULT_FLEET


def _late(seconds: float) -> float:
    return 100 * (seconds / DEADLINE_S - 1)


def _spread(late: list[float]) -> dict[str, float]:
    ordered = sorted(late)
    return {
        "median %": round(statistics.median(ordered), 2),
        "95 % %": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 2),
        "largest %": round(ordered[-1], 2),
    }


def _learners(cycles: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Each learner's updates, from the dispatch of their cycle."""
    rows: dict[str, dict[str, float]] = {}
    work = [(cycle, each) for cycle in cycles for each in cycle["assignments"]]
    for name in dict.fromkeys(each["name"] for _, each in work):
        mine = [(cycle, each) for cycle, each in work if each["name"] == name]
        took = [
            _late(each["arrived_s"] - cycle["began_s"])
            for cycle, each in mine
            if each["arrived_s"] is not None
        ]
        rows[name] = {
            "late": sum(late > 100 * TARDY for late in took),
            "dropped": sum(each["status"] == "dropped" for _, each in mine),
            "shards": statistics.median(each["shards"] for _, each in mine),
            **(_spread(took) if took else {}),
        }
    return rows


def _slowest(cycles: list[dict[str, Any]], count: int = 5) -> list[dict[str, Any]]:
    """The latest cycles, with who was last and what it did when, to see why."""
    ended = [each for each in cycles if each["waited_s"] is not None]
    found = []
    for cycle in sorted(ended, key=lambda each: -float(each["waited_s"]))[:count]:
        in_time = [each for each in cycle["assignments"] if each["arrived_s"] is not None]
        last = max(in_time, key=lambda each: float(each["arrived_s"]), default=None)
        dropped = [each["name"] for each in cycle["assignments"] if each["status"] == "dropped"]
        found.append(
            {
                "cycle": cycle["number"],
                "waited_s": cycle["waited_s"],
                "last": last and last["name"],
                "phases": last and [round(phase or 0.0, 4) for phase in last["phases"]],
                "dropped": dropped,
            }
        )
    return found
