"""Capacity used in short cycles while one device becomes slow and the process of another is killed.

The four default devices of `melisma run`, emulated, with DAB and a deadline of 1 s. The phone has
noise with one factor for each 45 s of the run; the seed of the fleet is chosen such that its speed
is 0.98, 0.33, 1.01 and 1.17 times that of its profile. In cycle 50 the process of a Raspberry Pi is
killed by SIGKILL 0.4 s after the dispatch. Capacity is that of the learners present: the work of
the killed one is left out.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.live import melisma_run
from benchmarks.live.capacity import PUNCTUAL, lateness, percent, punctuality

SLOT_S, SEED = 45.0, 55584
KILL = melisma_run.Kill(learner=1, cycle=50, after_s=0.4)
CYCLES, LIMIT_S = 100, 300.0
FLEET = """
[fleet]
seed = {seed}

[[fleet.learner]]
name = "pi-kitchen"
profile = "raspberry-pi-3a"

[[fleet.learner]]
name = "pi-shed"
profile = "raspberry-pi-4"

[[fleet.learner]]
name = "phone"
profile = "phone"
noise = {{ compute = 0.6, correlation_s = {slot_s} }}

[[fleet.learner]]
name = "jetson"
profile = "jetson-nano"
"""
TASK = {
    "name": "digits",
    "model": "twonn",
    "data": "mnist",
    "scheme": "dab",
    "passes": 1,
    "deadline_s": 1.0,
    "shard_samples": 100,
    "batch": 32,
    "optimizer": {"name": "sgd", "lr": 0.1},
}
PERIODS = ("before", "one slow", "one slow, one killed", "after, without the killed")
ALL = "all cycles"
CAPACITY = "capacity of those present %"
COLUMNS = ["cycles", CAPACITY, "least of a cycle %", PUNCTUAL, "largest lateness %"]
TIMES = ["noticed after s", "handed on after s"]
KILL_COLUMNS = ["shards", "requested", "handed on", "repeated", *TIMES]


def measure(quick: bool) -> dict[str, Any]:
    """Return the capacity of each period, and what became of the killed learner's shards."""
    kill = KILL._replace(cycle=5) if quick else KILL
    with TemporaryDirectory(prefix="benchmark-disturbed-") as name:
        fleet = Path(name) / "fleet.toml"
        fleet.write_text(FLEET.format(seed=SEED, slot_s=SLOT_S))
        run = melisma_run.run(TASK | {"cycles": 10 if quick else CYCLES}, fleet, LIMIT_S, kill)
    cycles = [_figures(cycle, run["began_s"], kill) for cycle in run["cycles"]]
    periods = {name: [each for each in cycles if each["period"] == name] for name in PERIODS}
    rows = {name: _row(part) for name, part in periods.items() if part}
    return {
        "rows": {ALL: _row(cycles), **rows},
        "killed": {f"cycle {kill.cycle}": run["handed_on"]},
        "raw": cycles,
        "own_s": 0.0,
    }


def _figures(cycle: dict[str, Any], run_began_s: float, kill: melisma_run.Kill) -> dict[str, Any]:
    present = [each for each in cycle["assignments"] if each["status"] != "left"]
    allowed = [each["allowed_visits"] or 0.0 for each in present]
    counted = [each["counted_visits"] for each in present]
    return {
        "number": cycle["number"],
        "period": _period(cycle["began_s"] - run_began_s, cycle["number"] >= kill.cycle),
        "used": sum(map(min, counted, allowed)),
        "allowed": sum(allowed),
        "late": lateness(cycle),
        "handed_on": cycle["handed_on"],
    }


def _period(at_s: float, killed: bool) -> str:
    """Return the period in which a cycle began."""
    slow = SLOT_S <= at_s < 2 * SLOT_S
    return PERIODS[(2 if slow else 3) if killed else (1 if slow else 0)]


def _row(cycles: Sequence[dict[str, Any]]) -> dict[str, float]:
    used, allowed = (sum(each[key] for each in cycles) for key in ("used", "allowed"))
    return {
        "cycles": len(cycles),
        CAPACITY: percent(used / allowed),
        "least of a cycle %": percent(min(each["used"] / each["allowed"] for each in cycles)),
        **punctuality([each["late"] for each in cycles]),
    }
