"""What a cycle costs when there is nothing to train: from one dispatch to the next.

Learners get the model, return it as it came, and it is averaged and scored. Flower's round is taken
from one evaluation on its server to the next, which is the same stretch.
"""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from benchmarks.live import flower_deployment, melisma_run

# Name: bytes of the model, our cycles, and Flower's rounds and clients.
SIZES = {"4 KB": (4_096, 50, 5, 4), "40 MB": (40_000_000, 20, 4, 1)}
LEARNERS, LIMIT_S = 4, 400.0
COLUMNS = ["clients", "cycles", "median ms", "95 % ms"]
PHASES = ("wait", "fetch model", "fetch shards", "load", "train", "upload")


def measure(quick: bool) -> dict[str, Any]:
    """Rows by size and system, and where the time of our cycles goes."""
    rows: dict[str, dict[str, float]] = {}
    parts: dict[str, dict[str, float]] = {}
    others_own_s, raw = 0.0, {}
    for name, (model_bytes, cycles, rounds, clients) in SIZES.items():
        ours = melisma_run.run(task(model_bytes, 8 if quick else cycles), LEARNERS, LIMIT_S)
        taken_s = _ours_s(ours["cycles"])
        rows[f"melisma, {name}"] = _row(LEARNERS, taken_s)
        parts[f"melisma, {name}"] = _parts(ours["cycles"])
        theirs_s, own_s = _theirs_s(model_bytes, 2 if quick else rounds, clients)
        others_own_s += own_s
        rows[f"Flower, {name}"] = _row(clients, theirs_s)
        raw[name] = {"melisma s": taken_s, "Flower s": theirs_s}
    return {"rows": rows, "parts": parts, "raw": raw, "own_s": others_own_s}


def task(model_bytes: int, cycles: int) -> dict[str, Any]:
    """Nothing to train, on data of a few bytes."""
    return {
        "name": "nothing",
        "model": "benchmarks.live.empty_task:Nothing",
        "model_args": {"model_bytes": model_bytes},
        "data": "benchmarks.live.empty_task:samples",
        "scheme": "equal",
        "passes": 1,
        "deadline_s": 60.0,
        "cycles": cycles,
        "shard_samples": 1,
        "batch": 1,
    }


def _ours_s(cycles: Sequence[dict[str, Any]]) -> list[float]:
    return [after["began_s"] - before["began_s"] for before, after in pairwise(cycles)]


def _theirs_s(model_bytes: int, rounds: int, clients: int) -> tuple[list[float], float]:
    with flower_deployment.deployed(clients) as flower:
        config = {"what": "empty", "model-bytes": model_bytes, "rounds": rounds}
        told = flower.run(config)
        found = flower.rounds(told, lambda last: last["round"] >= rounds, LIMIT_S)
        own_s = flower.unseen_cpu_s()
    return [after["at"] - before["at"] for before, after in pairwise(found)], own_s


def _row(clients: int, taken_s: Sequence[float]) -> dict[str, float]:
    ordered = sorted(taken_s)
    return {
        "clients": clients,
        "cycles": len(ordered),
        "median ms": round(statistics.median(ordered) * 1e3, 1),
        "95 % ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))] * 1e3, 1),
    }


def _parts(cycles: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Medians in ms: each phase of the learners, then what the orchestrator does on its own."""
    work = [each["phases"] for cycle in cycles for each in cycle["assignments"]]
    found = {
        phase: statistics.median(phases[place] for phases in work) * 1e3
        for place, phase in enumerate(PHASES)
    }
    for name in ("waited_s", "aggregate_s", "evaluate_s"):
        found[name.removesuffix("_s")] = statistics.median(c[name] for c in cycles) * 1e3
    return {name: round(ms, 2) for name, ms in found.items()}
