"""Five live nodes, seconds and bytes to a target accuracy: our algorithms beside p2pfl's.

LeNet on the first 10,000 samples of MNIST, a fifth of them at each node, the same samples at the
same node for everybody, from the same parameters, by plain SGD of one step size in batches of 16;
each node is a process with one thread. Nodes score the first 2,000 test samples, at home and on the
clock: ours after the first round that ends 125 steps or more after the last score, p2pfl's after
each of its rounds, a pass over 125 batches. The target is reached when the mean of what nodes last
scored is. Seconds are since the first node began to train; bytes are of all messages of all nodes,
as they were handed to Axon or to p2pfl's sockets, until each node's last score before that.

Ours are a ring. p2pfl connects all nodes that train with each other, and so they are from the
beginning; it votes who trains, which is everybody, gossips partial means and ends a round when all
have the mean of all. A round is a pass, the least that it can be told. By default it sends models
to two neighbours a second; the row without a word sends to all, twenty times a second, until they
have what they lack: sooner, and more bytes. What it sends before its first round is not counted.
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
NODES, TIMES, TRIES, LIMIT_S = 5, 1, 3, 240.0
SAMPLES, TESTED, BATCH, ETA, TARGET = 10_000, 2_000, 16, 0.05, 0.9
EVERY = SAMPLES // NODES // BATCH
"""Steps of a pass over a node's samples."""
PASSES, LOOKED_AT = 6, 4
"""Of each node, and for a first look: a round of p2pfl's is one."""
COLUMNS = [
    "to target s",
    "MB to target",
    "samples to target",
    "accuracy %",
    "wall s",
    "messages",
    "MB sent",
]
OURS: dict[str, tuple[Algorithm, str]] = {
    "melisma, aet": (AetSgd(learning_rate=ETA, decay=0.0), "none"),
    "melisma, aet q8": (AetSgd(learning_rate=ETA, decay=0.0), "q8"),
    "melisma, gossip (10 steps)": (GossipSgd(learning_rate=ETA, decay=0.0, steps=10), "none"),
}
THEIRS: dict[str, dict[str, float]] = {
    "p2pfl": {
        # As long without news as by default, 20 s, before it is given up.
        "GOSSIP_MODELS_FREC": 20,
        "GOSSIP_MODELS_PER_ROUND": 4,
        "GOSSIP_EXIT_ON_X_EQUAL_ROUNDS": 400,
    },
    "p2pfl, its defaults": {},
}
"""By its `Settings`."""
Said = list[dict[str, Any]]
"""Of each node its `scores`, and when it `began`."""


def digits() -> DataSet:
    """Some of MNIST, for everybody."""
    data = load_dataset("mnist")
    return DataSet(
        Split(data.train.samples[:SAMPLES], data.train.labels[:SAMPLES]),
        Split(data.test.samples[:TESTED], data.test.labels[:TESTED]),
    )


def task_of(seed: int) -> Task:
    """LeNet on them."""
    return Task(
        name="peers",
        model="lenet",
        data=f"{__name__}:digits",
        deadline_s=1.0,
        batch=BATCH,
        seed=seed,
    )


def measure(quick: bool) -> dict[str, Any]:
    """All in turn, several times; medians."""
    environments.python(P2PFL)
    raw: dict[str, list[dict[str, Any]]] = {name: [] for name in (*OURS, *THEIRS)}
    for seed in range(1, 2 if quick else TIMES + 1):
        for name, found in raw.items():
            with TemporaryDirectory(prefix="five-live-nodes-") as folder:
                found.append(_run(name, seed, LOOKED_AT if quick else PASSES, Path(folder)))
            print(f"    {name}: {json.dumps(found[-1]['row'])}", flush=True)
    return {
        "rows": {name: _medians(found) for name, found in raw.items()},
        "raw": raw,
        "own_s": 0.0,
    }


def _run(name: str, seed: int, passes: int, folder: Path) -> dict[str, Any]:
    """One run; p2pfl may stop half-way, and is tried again: how often is told."""
    run, failures = _ours if name in OURS else _theirs, list[str]()
    while True:
        place = folder / str(len(failures))
        place.mkdir()
        began = time.perf_counter()
        try:
            said = run(name, seed, passes, place)
        except RuntimeError as error:
            failures.append(str(error))
            print(f"    {error}", file=sys.stderr)
            if name in OURS or len(failures) == TRIES:
                raise
        else:
            row = _row(said, time.perf_counter() - began)
            return {"row": row, "failures": failures, "nodes": said}


def _medians(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of each figure that all runs have: those to the target are missing where it was missed."""
    rows = [run["row"] for run in runs]
    shared = [name for name in COLUMNS if all(name in row for row in rows)]
    return {name: round(statistics.median(row[name] for row in rows), 2) for name in shared}


def _row(said: Said, wall_s: float) -> dict[str, float]:
    lasts = [node["scores"][-1] for node in said]
    row = {
        "accuracy %": 100 * _mean(lasts, "accuracy"),
        "wall s": wall_s,
        "messages": _sum(said, "messages"),
        "MB sent": _sum(lasts, "sent_bytes") / 1e6,
    }
    at = _reached(said)
    if at is None:
        return row
    began_s = min(node["began_s"] for node in said)
    return row | {
        "to target s": max(score["at_s"] for score in at) - began_s,
        "MB to target": _sum(at, "sent_bytes") / 1e6,
        "samples to target": _sum(at, "samples"),
    }


def _reached(said: Said) -> Said | None:
    """What nodes had last scored when the mean of it first reached the target."""
    events = [(score["at_s"], place) for place, node in enumerate(said) for score in node["scores"]]
    for at_s, _ in sorted(events):
        heard = [[each for each in node["scores"] if each["at_s"] <= at_s] for node in said]
        last = [scores[-1] for scores in heard if scores]
        if len(last) == len(said) and _mean(last, "accuracy") >= TARGET:
            return last
    return None


def _mean(of: Said, name: str) -> float:
    return _sum(of, name) / len(of)


def _sum(of: Said, name: str) -> float:
    return float(sum(each[name] for each in of))


def _ours(name: str, seed: int, passes: int, folder: Path) -> Said:
    algorithm, compression = OURS[name]
    group = PeerSettings(task_of(seed), algorithm, passes * EVERY, compression)
    peers = Peers(group, topology_for("ring", NODES, seed), "ring")
    report = run_peers(peers, folder=folder / "run", score_every=EVERY)
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


def _theirs(name: str, seed: int, passes: int, folder: Path) -> Said:
    """Five processes of p2pfl, ended when all have told how it went."""
    order = {
        "data": str(_data(seed, folder)),
        "out": str(folder / "node"),
        "ports": [processes.free_port() for _ in range(NODES)],
        "rounds": passes,
        "batch": BATCH,
        "lr": ETA,
        "settings": THEIRS[name],
    }
    path = folder / "order.json"
    path.write_text(json.dumps(order))
    limit_s = time.monotonic() + LIMIT_S
    with ExitStack() as stack:
        nodes = []
        for place in range(NODES):
            nodes.append(_started(path, place))
            stack.callback(processes.end, nodes[-1])
        return [
            _told(f"{name}, node {place}", nodes, folder / f"node-{place}.json", limit_s)
            for place in range(NODES)
        ]


def _started(order: Path, place: int) -> "subprocess.Popen[str]":
    # It logs to the folder that it is started in.
    with (order.parent / f"log-{place}.txt").open("w") as log:
        return subprocess.Popen(
            [
                environments.python(P2PFL),
                "-m",
                "benchmarks.competitors.p2pfl_nodes",
                order,
                str(place),
            ],
            cwd=order.parent,
            env=processes.environment() | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def _told(
    name: str, nodes: "Sequence[subprocess.Popen[str]]", path: Path, limit_s: float
) -> dict[str, Any]:
    while not path.exists():
        if time.monotonic() > limit_s or any(node.poll() is not None for node in nodes):
            log = path.with_name(f"{path.stem.replace('node', 'log')}.txt")
            raise RuntimeError(f"{name} has not ended: {log.read_text().strip()[-1500:]}")
        time.sleep(0.1)
    # It scores before it begins to train; that is the beginning.
    began, *scores = json.loads(path.read_text())
    since = ("sent_bytes", "messages", "models")
    scores = [
        score
        | {key: score[key] - began[key] for key in since}
        | {"samples": score["steps"] * BATCH}
        for score in scores
    ]
    return {
        "began_s": began["at_s"],
        "messages": scores[-1]["messages"],
        "scores": scores,
        "before": began,
    }


def _data(seed: int, folder: Path) -> Path:
    """Our samples, who has which, and the parameters that our task begins with."""
    data, task = digits(), task_of(seed)
    parts = partition_samples(task, data.train.labels, NODES)
    arrays = {f"start-{n}": each for n, each in enumerate(trainer_for(task).initial().values())}
    arrays |= {f"part-{place}": samples for place, samples in enumerate(parts)}
    arrays |= {"train-x": data.train.samples, "train-y": data.train.labels}
    arrays |= {"test-x": data.test.samples, "test-y": data.test.labels}
    np.savez(folder / "data.npz", allow_pickle=False, **arrays)
    return folder / "data.npz"
