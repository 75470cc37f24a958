"""Cost of a cycle without training: from one dispatch to the next.

Learners fetch the model and return it unchanged; it is averaged and evaluated. Flower's round is
the time from one evaluation on its server to the next, which covers the same steps.
"""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from benchmarks.live import flower_deployment, melisma_run
from melisma.fleet.task import PAPER_RULES

# Name: bytes of the model, Melisma's cycles, and Flower's rounds and clients.
SIZES = {"4 KB": (4_096, 50, 5, 4), "40 MB": (40_000_000, 20, 4, 1)}
LEARNERS, LIMIT_S = 4, 400.0
COLUMNS = ["clients", "cycles", "median ms", "95 % ms"]
PHASES = ("wait", "fetch model", "fetch shards", "load", "train", "upload")


def measure(quick: bool) -> dict[str, Any]:
    """Return rows by size and system, and the phases of Melisma's cycles."""
    rows: dict[str, dict[str, float]] = {}
    parts: dict[str, dict[str, float]] = {}
    flower_cpu_s, raw = 0.0, {}
    for name, (model_bytes, cycles, rounds, clients) in SIZES.items():
        run = melisma_run.run(task(model_bytes, 8 if quick else cycles), LEARNERS, LIMIT_S)
        melisma_s = _melisma_s(run["cycles"])
        rows[f"melisma, {name}"] = _row(LEARNERS, melisma_s)
        parts[f"melisma, {name}"] = _phase_medians(run["cycles"])
        flower_s, own_s = _flower_s(model_bytes, 2 if quick else rounds, clients)
        flower_cpu_s += own_s
        rows[f"Flower, {name}"] = _row(clients, flower_s)
        raw[name] = {"melisma s": melisma_s, "Flower s": flower_s}
    return {"rows": rows, "parts": parts, "raw": raw, "own_s": flower_cpu_s}


def task(model_bytes: int, cycles: int) -> dict[str, Any]:
    """Return a task without training, on data of a few bytes."""
    return {
        "name": "nothing",
        "model": "benchmarks.live.empty_task:NoTraining",
        "model_args": {"model_bytes": model_bytes},
        "data": "benchmarks.live.empty_task:samples",
        "scheme": "equal",
        "passes": 1,
        "deadline_s": 60.0,
        "cycles": cycles,
        "shard_samples": 1,
        "batch": 1,
        **PAPER_RULES,
    }


def _melisma_s(cycles: Sequence[dict[str, Any]]) -> list[float]:
    return [after["began_s"] - before["began_s"] for before, after in pairwise(cycles)]


def _flower_s(model_bytes: int, rounds: int, clients: int) -> tuple[list[float], float]:
    with flower_deployment.deploy(clients) as flower:
        config = {"task": "empty", "model-bytes": model_bytes, "rounds": rounds}
        results = flower.run(config)
        rounds_done = flower.rounds(results, lambda last: last["round"] >= rounds, LIMIT_S)
        own_s = flower.unseen_cpu_s()
    return [after["at"] - before["at"] for before, after in pairwise(rounds_done)], own_s


def _row(clients: int, taken_s: Sequence[float]) -> dict[str, float]:
    ordered = sorted(taken_s)
    return {
        "clients": clients,
        "cycles": len(ordered),
        "median ms": round(statistics.median(ordered) * 1e3, 1),
        "95 % ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))] * 1e3, 1),
    }


def _phase_medians(cycles: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return medians in ms of the learners' phases and of the orchestrator's own work."""
    work = [each["phases"] for cycle in cycles for each in cycle["assignments"]]
    medians = {
        phase: statistics.median(phases[index] for phases in work) * 1e3
        for index, phase in enumerate(PHASES)
    }
    for name in ("waited_s", "aggregate_s", "evaluate_s"):
        medians[name.removesuffix("_s")] = statistics.median(c[name] for c in cycles) * 1e3
    return {name: round(ms, 2) for name, ms in medians.items()}
