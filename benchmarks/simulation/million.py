"""Timing-only runs of up to a million learners: `melisma simulate` in its own process.

Ten cycles with DAB on phones and Raspberry Pis, each slightly different; seconds are those of the
whole process, from its start to its end.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.harness import processes

CYCLES, SHARD_SAMPLES, LIMIT_S = 10, 50, 900.0
SIZES = (10_000, 100_000, 1_000_000)
TRACED_LEARNERS = 100_000
"""Learners of the run with a trace: the trace of a million would be several gigabytes."""
FLEET = """
[fleet]
[[fleet.group]]
count = 600
profile = "phone"
spread = { compute = 0.3, bandwidth_bps = 0.5 }
[[fleet.group]]
count = 400
profile = "raspberry-pi-4"
spread = { compute = 0.3, bandwidth_bps = 0.5 }
"""
VARYING = """
noise = { compute = 0.2, bandwidth = 0.2 }
states = { compute = [1.0, 0.6], bandwidth = [1.0, 0.5] }"""
"""Of both groups in the rows with noise and operating states."""
TASK = """
[task]
name = "million"
model = "twonn"
data = "mnist"
mode = "{mode}"
scheme = "dab"
passes = 5
{bound}deadline_s = 30.0
cycles = {cycles}
shard_samples = {shard_samples}
batch = 32
[task.sizes]
samples = {samples}
[task.simulation]
work = "timing"
"""
NOISY, TRACED = "noise and states", "with its trace"
COLUMNS = ["seconds", "peak GB", "µs per learner and cycle", "trace MB"]


class Kind(NamedTuple):
    """Shards for each learner, and a bound for the task file."""

    shards: int
    bound: str = ""


# Without a bound DAB gives each learner all shards that it requests, even if others have them:
# hundreds for each learner, and in a small fleet all shards.
KINDS = {"federated": Kind(8), "parallelized": Kind(5, "max_shards = 5\n")}


def name_of(kind: str, learners: int, variant: str = "") -> str:
    """Return the name of a row."""
    return f"{kind}, {learners:,}" + (f", {variant}" if variant else "")


def growth(kind: str, part: Mapping[str, Any]) -> float:
    """Return the seconds per learner of a million, divided by those of a tenth of it."""
    rows, most = part["rows"], SIZES[-1]
    large, small = (rows[name_of(kind, size)]["seconds"] for size in (most, most // 10))
    return float(large / small / 10)


def measure(quick: bool) -> dict[str, Any]:
    """Measure both kinds in each size, and one size with its trace."""
    rows = {}
    for kind in KINDS:
        for learners in SIZES[:1] if quick else SIZES:
            rows[name_of(kind, learners)] = _run(kind, learners)
        most = SIZES[0] if quick else SIZES[-1]
        rows[name_of(kind, most, NOISY)] = _run(kind, most, varying=VARYING)
        traced = SIZES[0] if quick else TRACED_LEARNERS
        rows[name_of(kind, traced, TRACED)] = _run(kind, traced, traced=True)
    return {"rows": rows, "own_s": 0.0}


def _run(kind: str, learners: int, *, varying: str = "", traced: bool = False) -> dict[str, float]:
    with TemporaryDirectory(prefix="benchmark-million-") as name:
        folder = Path(name)
        task, fleet, used = (folder / file for file in ("task.toml", "fleet.toml", "used.json"))
        task.write_text(_task(kind, learners))
        fleet.write_text(FLEET.replace("[[fleet.group]]", f"[[fleet.group]]{varying}"))
        command = ["simulate", str(task), "--fleet", str(fleet), "--learners", str(learners)]
        command += ["--out", str(folder / "out")] if traced else []
        began = time.monotonic()
        _simulate([str(used), *command, "--json"])
        seconds = time.monotonic() - began
        row = {
            "seconds": round(seconds, 2),
            "peak GB": round(json.loads(used.read_text())["peak_bytes"] / 1e9, 3),
            "µs per learner and cycle": round(1e6 * seconds / learners / CYCLES, 2),
        }
        trace = folder / "out" / "trace.jsonl"
        return row | ({"trace MB": round(trace.stat().st_size / 1e6, 1)} if traced else {})


def _task(kind: str, learners: int) -> str:
    shards, bound = KINDS[kind]
    samples = learners * shards * SHARD_SAMPLES
    return TASK.format(
        mode=kind,
        bound=bound,
        cycles=CYCLES,
        shard_samples=SHARD_SAMPLES,
        samples=samples,
    )


def _simulate(arguments: list[str]) -> None:
    command = ["-m", "benchmarks.simulation.measured_command", *arguments]
    output = processes.run_python(command, LIMIT_S)
    cycles = json.loads(output)["cycles"]
    if len(cycles) != CYCLES or any(cycle["ending"] != "aggregated" for cycle in cycles):
        raise RuntimeError(f"some cycles were not aggregated: {output[-600:]}")
