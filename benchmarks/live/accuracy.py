"""Seconds to 90 % accuracy on MNIST with TwoNN, from the start of the first process.

Four learners with one thread each train a quarter of the samples in each cycle, one pass in batches
of 32, SGD at 0.1, by the rules of the papers: a cycle ends with that pass. Melisma sends the
samples over loopback; Flower's clients read theirs from disk. Both start from the same parameters
for each seed, but split and order the samples differently.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.live import flower_deployment, melisma_run
from melisma.fleet.task import PAPER_RULES
from melisma.learning.data.datasets import load_dataset

TARGET_ACCURACY, LEARNERS, SEEDS, LIMIT_S = 0.9, 4, 3, 300.0
TASK = {
    "name": "digits",
    "model": "twonn",
    "data": "mnist",
    "scheme": "equal",
    "passes": 1,
    "deadline_s": 60.0,
    "cycles": 20,
    "batch": 32,
    "optimizer": {"name": "sgd", "lr": 0.1},
    "stop": {"accuracy": TARGET_ACCURACY},
    **PAPER_RULES,
}
COLUMNS = ["cycles", "to 90 % s", "accuracy %", "before the first cycle s", "cycle s"]


def measure(quick: bool) -> dict[str, Any]:
    """Measure both in turn and return the medians of each."""
    melisma, flower, own_s = [], [], 0.0
    for seed in range(1, 2 if quick else SEEDS + 1):
        melisma.append(_run_melisma(seed))
        figures, unseen_s = _run_flower(seed)
        flower.append(figures)
        own_s += unseen_s
    rows = {"melisma": _medians(melisma), "Flower": _medians(flower)}
    return {"rows": rows, "raw": {"melisma": melisma, "Flower": flower}, "own_s": own_s}


def _medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}


def _run_melisma(seed: int) -> dict[str, float]:
    run = melisma_run.run({**TASK, "seed": seed}, LEARNERS, LIMIT_S)
    cycles, at = run["cycles"], run["evaluated_at"]
    first_s = cycles[0]["waited_s"] + cycles[0]["aggregate_s"] + cycles[0]["evaluate_s"]
    return {
        "cycles": len(cycles),
        "to 90 % s": at[-1] - run["began_at"],
        "accuracy %": 100 * cycles[-1]["accuracy"],
        "before the first cycle s": at[0] - first_s - run["began_at"],
        "cycle s": (at[-1] - at[0] + first_s) / len(cycles),
        "until its process ended s": run["ended_at"] - run["began_at"],
    }


def _run_flower(seed: int) -> tuple[dict[str, float], float]:
    with TemporaryDirectory(prefix="benchmark-mnist-") as name:
        _write_samples(Path(name), seed)
        config = {
            "task": "mnist",
            "data": name,
            "rounds": TASK["cycles"],
            "passes": TASK["passes"],
            "batch": TASK["batch"],
            "lr": 0.1,
            "seed": seed,
        }
        with flower_deployment.deploy(LEARNERS) as flower:
            results = flower.run(config)
            rounds = flower.rounds(
                results, lambda last: last["accuracy"] >= TARGET_ACCURACY, LIMIT_S
            )
            own_s = flower.unseen_cpu_s()
    last_round = rounds[-1]["round"]
    return {
        "cycles": last_round,
        "to 90 % s": rounds[-1]["at"] - flower.began_at,
        "accuracy %": 100 * rounds[-1]["accuracy"],
        "before the first cycle s": rounds[0]["at"] - flower.began_at,
        "cycle s": (rounds[-1]["at"] - rounds[0]["at"]) / last_round,
        "from `flwr run` s": rounds[-1]["at"] - flower.up_at,
    }, own_s


def _write_samples(folder: Path, seed: int) -> None:
    """Write the samples in random order, a quarter for each client; this is not timed."""
    data = load_dataset("mnist")
    order = np.random.default_rng(seed).permutation(len(data.train))
    for number, part in enumerate(np.array_split(order, LEARNERS)):
        samples, labels = data.train.samples[part], data.train.labels[part]
        np.savez(folder / f"{number}.npz", samples=samples, labels=labels)
    np.savez(folder / "test.npz", samples=data.test.samples, labels=data.test.labels)
