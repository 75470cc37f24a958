"""Five live nodes: seconds and bytes to a target accuracy with Melisma and with p2pfl.

LeNet on the first 10,000 samples of MNIST, a fifth at each node, with the same samples at the same
node for both systems, from the same parameters, by plain SGD with a constant rate in batches of 16.
Each node is a process with one thread. Nodes evaluate the first 2,000 test samples themselves,
within the measured time: Melisma after the first round that ends at least 125 steps after the last
score, p2pfl after each round, which is a pass over 125 batches. The target is reached when the mean
of the last scores of all nodes reaches it. Seconds count from the start of training at the first
node; bytes are those of all messages of all nodes, as passed to Axon or to p2pfl's sockets, up to
each node's last score before that time.

Melisma uses a ring. p2pfl connects all training nodes with each other, so they are connected from
the start; it elects the training nodes (here all), gossips partial means and ends a round when all
nodes have the mean of all. A round is one pass, its minimum. By default it sends models to two
neighbours per second; the row "p2pfl" sends to all nodes, twenty times per second, until they are
complete, which is sooner and takes more bytes. Messages before its first round are not counted.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np

from benchmarks.harness import environments, processes
from melisma.fleet.task import Task
from melisma.learning.data.datasets import DataSet, Split, load_dataset
from melisma.learning.trainer_factory import trainer_for
from melisma.live.peer.local_group import run_peers
from melisma.peer.algorithms import AetSgd, Algorithm, GossipSgd
from melisma.peer.group import Peers, PeerSettings, partition_samples
from melisma.peer.topologies import topology_for

P2PFL = "p2pfl.txt"
NODES, REPEATS, MAX_TRIES, LIMIT_S = 5, 1, 3, 240.0
SAMPLES, TEST_SAMPLES, BATCH, LEARNING_RATE, TARGET_ACCURACY = 10_000, 2_000, 16, 0.05, 0.9
PASS_STEPS = SAMPLES // NODES // BATCH
"""Steps of one pass over a node's samples."""
PASSES, QUICK_PASSES = 6, 4
"""Passes of each node; a round of p2pfl is one pass."""
COLUMNS = [
    "to target s",
    "MB to target",
    "samples to target",
    "accuracy %",
    "wall s",
    "messages",
    "MB sent",
]
MELISMA: dict[str, tuple[Algorithm, str]] = {
    "melisma, aet": (AetSgd(learning_rate=LEARNING_RATE, decay=0.0), "none"),
    "melisma, aet q8": (AetSgd(learning_rate=LEARNING_RATE, decay=0.0), "q8"),
    "melisma, gossip (10 steps)": (
        GossipSgd(learning_rate=LEARNING_RATE, decay=0.0, steps=10),
        "none",
    ),
}
P2PFL_SETTINGS: dict[str, dict[str, float]] = {
    "p2pfl": {
        # 400 equal rounds are 20 s, as by default.
        "GOSSIP_MODELS_FREC": 20,
        "GOSSIP_MODELS_PER_ROUND": 4,
        "GOSSIP_EXIT_ON_X_EQUAL_ROUNDS": 400,
    },
    "p2pfl, its defaults": {},
}
"""Values for p2pfl's `Settings`."""
NodeResults = list[dict[str, Any]]
"""For each node its `scores`, its `messages` and the start `began_s`."""


def digits() -> DataSet:
    """Return a part of MNIST, the same for both systems."""
    data = load_dataset("mnist")
    return DataSet(
        Split(data.train.samples[:SAMPLES], data.train.labels[:SAMPLES]),
        Split(data.test.samples[:TEST_SAMPLES], data.test.labels[:TEST_SAMPLES]),
    )


def task_of(seed: int) -> Task:
    """Return a task that trains LeNet on `digits`."""
    return Task(
        name="peers",
        model="lenet",
        data=f"{__name__}:digits",
        deadline_s=1.0,
        batch=BATCH,
        seed=seed,
    )


def measure(quick: bool) -> dict[str, Any]:
    """Run all rows in turn and return medians."""
    environments.python(P2PFL)
    raw: dict[str, list[dict[str, Any]]] = {name: [] for name in (*MELISMA, *P2PFL_SETTINGS)}
    for seed in range(1, 2 if quick else REPEATS + 1):
        for name, runs in raw.items():
            with TemporaryDirectory(prefix="five-live-nodes-") as folder:
                runs.append(_run(name, seed, QUICK_PASSES if quick else PASSES, Path(folder)))
            print(f"    {name}: {json.dumps(runs[-1]['row'])}", flush=True)
    return {
        "rows": {name: _medians(runs) for name, runs in raw.items()},
        "raw": raw,
        "own_s": 0.0,
    }


def _run(name: str, seed: int, passes: int, folder: Path) -> dict[str, Any]:
    """Run once; p2pfl may fail and is then tried again, and its failures are recorded."""
    run, failures = _run_melisma if name in MELISMA else _run_p2pfl, list[str]()
    while True:
        run_folder = folder / str(len(failures))
        run_folder.mkdir()
        began = time.perf_counter()
        try:
            nodes = run(name, seed, passes, run_folder)
        except RuntimeError as error:
            failures.append(str(error))
            print(f"    {error}", file=sys.stderr)
            if name in MELISMA or len(failures) == MAX_TRIES:
                raise
        else:
            row = _row(nodes, time.perf_counter() - began)
            return {"row": row, "failures": failures, "nodes": nodes}


def _medians(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return the medians of figures that all runs have; a run may have missed the target."""
    rows = [run["row"] for run in runs]
    shared = [name for name in COLUMNS if all(name in row for row in rows)]
    return {name: round(statistics.median(row[name] for row in rows), 2) for name in shared}


def _row(nodes: NodeResults, wall_s: float) -> dict[str, float]:
    lasts = [node["scores"][-1] for node in nodes]
    row = {
        "accuracy %": 100 * _mean(lasts, "accuracy"),
        "wall s": wall_s,
        "messages": _sum(nodes, "messages"),
        "MB sent": _sum(lasts, "sent_bytes") / 1e6,
    }
    at = _scores_at_target(nodes)
    if at is None:
        return row
    began_s = min(node["began_s"] for node in nodes)
    return row | {
        "to target s": max(score["at_s"] for score in at) - began_s,
        "MB to target": _sum(at, "sent_bytes") / 1e6,
        "samples to target": _sum(at, "samples"),
    }


def _scores_at_target(nodes: NodeResults) -> NodeResults | None:
    """Return the last score of each node when their mean first reached the target."""
    times_s = [score["at_s"] for node in nodes for score in node["scores"]]
    for at_s in sorted(times_s):
        past = [[score for score in node["scores"] if score["at_s"] <= at_s] for node in nodes]
        last = [scores[-1] for scores in past if scores]
        if len(last) == len(nodes) and _mean(last, "accuracy") >= TARGET_ACCURACY:
            return last
    return None


def _mean(rows: NodeResults, name: str) -> float:
    return _sum(rows, name) / len(rows)


def _sum(rows: NodeResults, name: str) -> float:
    return float(sum(row[name] for row in rows))


def _run_melisma(name: str, seed: int, passes: int, folder: Path) -> NodeResults:
    algorithm, compression = MELISMA[name]
    group = PeerSettings(task_of(seed), algorithm, passes * PASS_STEPS, compression)
    peers = Peers(group, topology_for("ring", NODES, seed), "ring")
    report = run_peers(peers, folder=folder / "run", score_every=PASS_STEPS)
    if not report.succeeded:
        raise RuntimeError(f"{name}: {[f'{node.name}: {node.reason}' for node in report.nodes]}")
    return [
        {
            "began_s": node.started_s,
            "messages": node.messages,
            "scores": msgspec.to_builtins(node.scores),
        }
        for node in report.nodes
    ]


def _run_p2pfl(name: str, seed: int, passes: int, folder: Path) -> NodeResults:
    """Start five processes of p2pfl; end them when all have written their results."""
    job = {
        "data": str(_write_data(seed, folder)),
        "out": str(folder / "node"),
        "ports": [processes.free_port() for _ in range(NODES)],
        "rounds": passes,
        "batch": BATCH,
        "lr": LEARNING_RATE,
        "settings": P2PFL_SETTINGS[name],
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    limit_s = time.monotonic() + LIMIT_S
    with ExitStack() as stack:
        nodes = []
        for index in range(NODES):
            nodes.append(_start(path, index))
            stack.callback(processes.end, nodes[-1])
        return [
            _read_scores(f"{name}, node {index}", nodes, folder / f"node-{index}.json", limit_s)
            for index in range(NODES)
        ]


def _start(job: Path, index: int) -> "subprocess.Popen[str]":
    # p2pfl writes its logs to the current folder.
    with (job.parent / f"log-{index}.txt").open("w") as log:
        return subprocess.Popen(
            [
                environments.python(P2PFL),
                "-m",
                "benchmarks.competitors.p2pfl_nodes",
                str(job),
                str(index),
            ],
            cwd=job.parent,
            env=processes.environment() | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def _read_scores(
    name: str, nodes: "Sequence[subprocess.Popen[str]]", path: Path, limit_s: float
) -> dict[str, Any]:
    while not path.exists():
        if time.monotonic() > limit_s or any(node.poll() is not None for node in nodes):
            log = path.with_name(f"{path.stem.replace('node', 'log')}.txt")
            raise RuntimeError(f"{name} failed or timed out: {log.read_text().strip()[-1500:]}")
        time.sleep(0.1)
    # The first score is from before training.
    began, *scores = json.loads(path.read_text())
    counters = ("sent_bytes", "messages", "models")
    scores = [
        score
        | {key: score[key] - began[key] for key in counters}
        | {"samples": score["steps"] * BATCH}
        for score in scores
    ]
    return {
        "began_s": began["at_s"],
        "messages": scores[-1]["messages"],
        "scores": scores,
        "before": began,
    }


def _write_data(seed: int, folder: Path) -> Path:
    """Write the samples, their partition and the initial parameters of the task."""
    data, task = digits(), task_of(seed)
    parts = partition_samples(task, data.train.labels, NODES)
    arrays = {f"start-{n}": array for n, array in enumerate(trainer_for(task).initial().values())}
    arrays |= {f"part-{index}": samples for index, samples in enumerate(parts)}
    arrays |= {"train-x": data.train.samples, "train-y": data.train.labels}
    arrays |= {"test-x": data.test.samples, "test-y": data.test.labels}
    np.savez(folder / "data.npz", allow_pickle=False, **arrays)
    return folder / "data.npz"
