"""A run of Flower whose SuperNodes or SuperLink are killed and started again.

Each client trains one pass of as many seconds as a cycle lasts. FedAvg goes on with any number of
nodes, so that it need not wait for one that is gone. Nothing resumes an app whose SuperLink was
killed: what it averaged before is all that counts.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import usage
from benchmarks.live import flower_deployment
from benchmarks.live.flower_deployment import Deployment
from benchmarks.live.goodput import CYCLE_S, LEARNERS, ORCHESTRATOR
from melisma.learning.data.datasets import load_dataset

SAMPLES_PER_S, ROUNDS, LIMIT_S = 500, 100_000, 120.0


@contextmanager
def start(folder: Path) -> "Iterator[FlowerRun]":
    """Start the processes and the app, and wait until the first round has begun."""
    _write_samples(folder)
    config = {
        "task": "mnist",
        "data": str(folder),
        "samples-per-s": " ".join([str(SAMPLES_PER_S)] * LEARNERS),
        "rounds": ROUNDS,
        "least-nodes": 1,
        "passes": 1,
        "batch": 32,
        "lr": 0.05,
        "seed": 1,
    }
    with flower_deployment.deploy(LEARNERS) as deployment:
        results = deployment.run(config)
        deployment.rounds(results, lambda last: last["round"] >= 0, LIMIT_S)
        yield FlowerRun(deployment, results)


class FlowerRun:
    """The processes of a run."""

    def __init__(self, deployment: Deployment, results: Path) -> None:
        self._deployment, self._results = deployment, results

    def is_up(self, kind: str, number: int) -> bool:
        """Whether a SuperNode, or the SuperLink, runs."""
        return self._process(kind, number).popen.poll() is None

    def restart(self, kind: str, number: int) -> None:
        """Kill a SuperNode or the SuperLink with its descendants, and start it again."""
        process = self._process(kind, number)
        for pid in (process.pid, *usage.descendants(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.popen.wait()
        if kind == ORCHESTRATOR:
            self._deployment.start_superlink()
        else:
            self._deployment.start_supernode(number)

    def end(self) -> int:
        """Return the samples of all updates that were averaged so far."""
        lines = self._results.read_text().splitlines()
        return sum(int(json.loads(line)["samples"]) for line in lines)

    def _process(self, kind: str, number: int) -> Any:
        if kind == ORCHESTRATOR:
            return self._deployment.superlink
        return self._deployment.supernodes[number]


def _write_samples(folder: Path) -> None:
    """Write as many samples for each client as it trains in the seconds of a cycle."""
    data, count = load_dataset("mnist"), round(CYCLE_S * SAMPLES_PER_S)
    for number in range(LEARNERS):
        part = slice(number * count, (number + 1) * count)
        np.savez(
            folder / f"{number}.npz",
            samples=data.train.samples[part],
            labels=data.train.labels[part],
        )
    np.savez(folder / "test.npz", samples=data.test.samples[:1000], labels=data.test.labels[:1000])
