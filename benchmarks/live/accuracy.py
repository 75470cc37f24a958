"""Seconds to 90 % of MNIST with TwoNN, from nothing running to the model that has it.

Four learners, each a quarter of the samples a cycle, one pass in batches of 32, SGD at 0.1; one
thread each. Ours hands the samples out over loopback; Flower's clients find theirs on disk. With
each seed both begin with the same parameters; how samples are split and ordered is each one's own.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.live import flower_deployment, melisma_run
from melisma.learning.data.datasets import load_dataset

GOAL, LEARNERS, TIMES, LIMIT_S = 0.9, 4, 3, 300.0
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
    "stop": {"accuracy": GOAL},
}
COLUMNS = ["cycles", "to 90 % s", "accuracy %", "before the first cycle s", "a cycle s"]


def measure(quick: bool) -> dict[str, Any]:
    """One after the other in turn, medians of each."""
    ours, theirs, own_s = [], [], 0.0
    for seed in range(1, 2 if quick else TIMES + 1):
        ours.append(_ours(seed))
        figures, unseen_s = _theirs(seed)
        theirs.append(figures)
        own_s += unseen_s
    rows = {"melisma": _medians(ours), "Flower": _medians(theirs)}
    return {"rows": rows, "raw": {"melisma": ours, "Flower": theirs}, "own_s": own_s}


def _medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}


def _ours(seed: int) -> dict[str, float]:
    run = melisma_run.run({**TASK, "seed": seed}, LEARNERS, LIMIT_S)
    cycles, at = run["cycles"], run["evaluated_at"]
    first_s = cycles[0]["waited_s"] + cycles[0]["aggregate_s"] + cycles[0]["evaluate_s"]
    return {
        "cycles": len(cycles),
        "to 90 % s": at[-1] - run["began_at"],
        "accuracy %": 100 * cycles[-1]["accuracy"],
        "before the first cycle s": at[0] - first_s - run["began_at"],
        "a cycle s": (at[-1] - at[0] + first_s) / len(cycles),
        "until its process ended s": run["ended_at"] - run["began_at"],
    }


def _theirs(seed: int) -> tuple[dict[str, float], float]:
    with TemporaryDirectory(prefix="beside-mnist-") as name:
        _laid_out(Path(name), seed)
        config = {
            "what": "mnist",
            "data": name,
            "rounds": TASK["cycles"],
            "passes": TASK["passes"],
            "batch": TASK["batch"],
            "lr": 0.1,
            "seed": seed,
        }
        with flower_deployment.deployed(LEARNERS) as flower:
            told = flower.run(config)
            found = flower.rounds(told, lambda last: last["accuracy"] >= GOAL, LIMIT_S)
            own_s = flower.unseen_cpu_s()
    rounds = found[-1]["round"]
    return {
        "cycles": rounds,
        "to 90 % s": found[-1]["at"] - flower.began_at,
        "accuracy %": 100 * found[-1]["accuracy"],
        "before the first cycle s": found[0]["at"] - flower.began_at,
        "a cycle s": (found[-1]["at"] - found[0]["at"]) / rounds,
        "from `flwr run` s": found[-1]["at"] - flower.up_at,
    }, own_s


def _laid_out(folder: Path, seed: int) -> None:
    """The samples in random order, a quarter a client; not in the time that is measured."""
    data = load_dataset("mnist")
    order = np.random.default_rng(seed).permutation(len(data.train))
    for number, part in enumerate(np.array_split(order, LEARNERS)):
        samples, labels = data.train.samples[part], data.train.labels[part]
        np.savez(folder / f"{number}.npz", samples=samples, labels=labels)
    np.savez(folder / "test.npz", samples=data.test.samples, labels=data.test.labels)
