"""A device that is killed during a cycle: when it is noticed, and what becomes of its work.

Melisma runs on three machines as in `machines`, and all processes of a device are killed by SIGKILL
in cycle 2. Flower runs on loopback with the same number of clients, one pass of about as many
seconds in each round; a SuperNode and its processes are killed during round 2. Flower says nothing
of a client that is gone: the time until its next round begins is that until it goes on without it.
Seconds to the first training count from the start of the last device; for Flower they include the
command that starts the app.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.harness import usage
from benchmarks.live import flower_deployment, machines
from benchmarks.live.melisma_run import Kill, handed_on
from melisma.learning.data.datasets import load_dataset
from melisma.runs.trace import read_trace

KILLED, CYCLE, AFTER_S = "pi", 2, 1.0
PASS_S, SAMPLES_PER_S, LIMIT_S = 8.0, 500, 240.0
NOTICED, HANDED_ON, FIRST = "noticed after s", "handed on after s", machines.FIRST
COLUMNS = ["shards", "handed on", NOTICED, HANDED_ON, FIRST]


def measure(quick: bool) -> dict[str, Any]:
    """Measure Melisma, then Flower."""
    del quick
    flower, own_s = _run_flower()
    return {"rows": {"melisma": _run_melisma(), "Flower": flower}, "own_s": own_s}


def _run_melisma() -> dict[str, float | None]:
    task = machines.TASK.format(name="mnist", model="cnn", deadline_s=PASS_S, cycles=3)
    with machines.start(task) as started:
        first_s = started.wait_for_dispatch(1) - started.joined_at
        started.wait_for_dispatch(CYCLE)
        time.sleep(AFTER_S)
        _kill_all(started.hosts[KILLED].namespace)
        report = started.report()
        names = [each["name"] for each in report["learners"]]
        kill = Kill(names.index(KILLED), CYCLE, AFTER_S)
        figures = handed_on(read_trace(started.trace), kill, shard_samples=100)
    return {name: figures[name] for name in COLUMNS[:4]} | {FIRST: round(first_s, 1)}


def _kill_all(namespace: str) -> None:
    """Kill all processes in a network namespace."""
    listed = subprocess.run(
        ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=True
    )
    for pid in map(int, listed.stdout.split()):
        os.kill(pid, signal.SIGKILL)


def _run_flower() -> tuple[dict[str, float | None], float]:
    learners = len(machines.LINKS_MBIT)
    with TemporaryDirectory(prefix="benchmark-killed-") as name:
        folder = Path(name)
        _write_samples(folder, learners)
        clients = folder / "clients.jsonl"
        config = {
            "task": "mnist",
            "data": name,
            "clients": str(clients),
            "samples-per-s": " ".join([str(SAMPLES_PER_S)] * learners),
            "rounds": 4,
            "passes": 1,
            "batch": 32,
            "lr": 0.05,
            "seed": 1,
        }
        with flower_deployment.deploy(learners) as flower:
            results = flower.run(config)
            flower.rounds(results, lambda last: last["round"] >= CYCLE - 1, LIMIT_S)
            # The next message has reached the clients by then.
            time.sleep(PASS_S / 2)
            killed_at = _kill(flower.supernodes[0].pid)
            rounds = _rounds_after_kill(results)
            own_s = flower.unseen_cpu_s()
        began = [json.loads(line)["began_at"] for line in clients.read_text().splitlines()]
    went_on_s = rounds[CYCLE]["at"] - killed_at
    row: dict[str, float | None] = {
        "shards": None,
        "handed on": 0,
        NOTICED: round(went_on_s, 1),
        HANDED_ON: None,
        FIRST: round(min(began) - flower.nodes_began_at, 1),
    }
    return row, own_s


def _rounds_after_kill(results: Path) -> list[dict[str, Any]]:
    """Wait until the round of the kill has ended; the other processes go on."""
    give_up_at = time.monotonic() + LIMIT_S
    while time.monotonic() < give_up_at:
        rounds = [json.loads(line) for line in results.read_text().splitlines()]
        if rounds[-1]["round"] >= CYCLE:
            return rounds
        time.sleep(0.05)
    raise RuntimeError(f"Flower did not go on in {LIMIT_S:g} s")


def _kill(pid: int) -> float:
    for each in (pid, *usage.descendants(pid)):
        os.kill(each, signal.SIGKILL)
    return time.time()


def _write_samples(folder: Path, learners: int) -> None:
    """Write as many samples for each client as it trains in the seconds of a pass."""
    data, count = load_dataset("mnist"), round(PASS_S * SAMPLES_PER_S)
    for number in range(learners):
        part = slice(number * count, (number + 1) * count)
        np.savez(
            folder / f"{number}.npz",
            samples=data.train.samples[part],
            labels=data.train.labels[part],
        )
    np.savez(folder / "test.npz", samples=data.test.samples, labels=data.test.labels)
