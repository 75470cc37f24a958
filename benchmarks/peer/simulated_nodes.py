"""Nodes without an orchestrator in virtual time: accuracy, the effect of the lag d, and growth."""

import time
from typing import Any

import numpy as np

from melisma.fleet.task import Task
from melisma.peer.algorithms import AetSgd, Algorithm, EventTriggeredSgd, GossipSgd, LocalSgd
from melisma.peer.group import Peers, PeerSettings
from melisma.peer.topologies import topology_for
from melisma.runs.peer_report import PeerReport
from melisma.simulation.peers.delays import Delays
from melisma.simulation.peers.peer_simulation import PeerOptions, simulate_peers

SAMPLES = 32_000
"""Samples that each node trains, for any batch size."""
NODES = 5
RUNS: dict[str, tuple[Algorithm, int, str]] = {
    "AET-SGD": (AetSgd(), 16, "none"),
    "AET-SGD, 8 bits": (AetSgd(), 16, "q8"),
    "AET-SGD, 4 bits": (AetSgd(), 16, "q4"),
    "AET-SGD, 1 % of the numbers": (AetSgd(), 16, "topk:0.01"),
    "AET-SGD, gain 1 as printed": (AetSgd(gain=1.0), 16, "none"),
    "local, 50 steps": (LocalSgd(steps=50), 16, "none"),
    "gossip, 10 steps": (GossipSgd(steps=10), 16, "none"),
    "event-triggered": (EventTriggeredSgd(), 16, "none"),
    "AET-SGD, batch 1": (AetSgd(), 1, "none"),
    "event-triggered, batch 1": (EventTriggeredSgd(), 1, "none"),
}
ACCURACY = [
    "accuracy %",
    "worst node %",
    "iterations",
    "samples",
    "rounds",
    "messages",
    "MB sent",
    "rounds / AET-SGD",
    "MB / AET-SGD",
]
LAGS = (0, 1, 2, 3, 5, 7, 10)
KINDS: dict[str, Delays] = {
    "iteration": Delays(drawn="iteration"),
    "round": Delays(drawn="round"),
    "node": Delays(drawn="node"),
    "round, tail 1.5": Delays(drawn="round", tail=1.5),
    "round, tail 1.1": Delays(drawn="round", tail=1.1),
}
LAG = ["seconds", "d = 0 / this", "waited %", "accuracy %"]
SEEDS = 3
SIZES = (125, 250, 500, 1000)
GRAPHS = ("ring", "regular:8")
GROWTH = ["nodes", "edges", "messages", "seconds", "us per round, node and edge"]


def task_of(model: str, batch: int) -> Task:
    """Return a task on MNIST, split evenly among the nodes."""
    return Task(name="peers", model=model, data="mnist", deadline_s=1.0, batch=batch)


def peers_of(
    task: Task, algorithm: Algorithm, iterations: int, shape: str = "ring", nodes: int = NODES
) -> Peers:
    """Return a group of nodes on a topology."""
    group = PeerSettings(task, algorithm, iterations)
    return Peers(group, topology_for(shape, nodes, 1), shape)


def accuracy(quick: bool) -> dict[str, Any]:
    """Train the same number of samples with each algorithm, in a ring of five, LeNet on MNIST."""
    samples = SAMPLES // 20 if quick else SAMPLES
    rows: dict[str, dict[str, float]] = {}
    began = time.process_time()
    for name, (algorithm, batch, compression) in RUNS.items():
        group = PeerSettings(task_of("lenet", batch), algorithm, samples // batch, compression)
        report = simulate_peers(Peers(group, topology_for("ring", NODES, 1), "ring"))
        rows[name] = _row(report) | {"iterations": samples // batch}
        base = rows["AET-SGD"]
        rows[name]["rounds / AET-SGD"] = rows[name]["rounds"] / base["rounds"]
        rows[name]["MB / AET-SGD"] = rows[name]["MB sent"] / base["MB sent"]
        print(f"    {name}: {rows[name]['accuracy %']:.2f} %", flush=True)
    return {"rows": rows, "own_s": time.process_time() - began}


def _row(report: PeerReport) -> dict[str, float]:
    accuracies = [100 * (node.accuracy or 0.0) for node in report.nodes]
    return {
        "accuracy %": float(np.mean(accuracies)),
        "worst node %": min(accuracies),
        "samples": report.total("samples") / NODES,
        "rounds": report.total("updates") / NODES,
        "messages": report.total("messages"),
        "MB sent": report.total("sent_bytes") / 1e6,
    }


def lag(quick: bool) -> dict[str, Any]:
    """Vary d from 0 to 10: time of 60,000 iterations; accuracy of 1,500 with a small model."""
    began, rows = time.process_time(), {}
    for kind, delays in KINDS.items():
        base = 0.0
        for d in LAGS:
            runs = [
                _simulate_timing(delays, d, seed) for seed in range(1, 2 if quick else SEEDS + 1)
            ]
            seconds = float(np.mean([run.seconds for run in runs]))
            waited = float(np.mean([run.total("waiting_s") / NODES / run.seconds for run in runs]))
            base = base or seconds
            rows[f"{kind}, d = {d}"] = {
                "seconds": seconds,
                "d = 0 / this": base / seconds,
                "waited %": 100 * waited,
                "accuracy %": 100 * _accuracy(delays, d, 300 if quick else 1500),
            }
    return {"rows": rows, "own_s": time.process_time() - began}


def _simulate_timing(delays: Delays, d: int, seed: int) -> PeerReport:
    peers = peers_of(task_of("lenet", 16), AetSgd(max_lag=d), 60_000)
    return simulate_peers(peers, PeerOptions("timing", _with_seed(delays, seed)))


def _accuracy(delays: Delays, d: int, iterations: int) -> float:
    peers = peers_of(task_of("twonn", 16), AetSgd(max_lag=d), iterations)
    return simulate_peers(peers, PeerOptions("train", delays)).accuracy


def _with_seed(delays: Delays, seed: int) -> Delays:
    return Delays(drawn=delays.drawn, tail=delays.tail, seed=seed)


def growth(quick: bool) -> dict[str, Any]:
    """Vary nodes and edges: timing of 2,000 iterations of each node."""
    began, rows = time.process_time(), {}
    for shape in GRAPHS:
        for nodes in SIZES[:2] if quick else SIZES:
            peers = peers_of(task_of("lenet", 16), AetSgd(), 2_000, shape, nodes)
            start = time.perf_counter()
            report = simulate_peers(peers, PeerOptions("timing"))
            seconds = time.perf_counter() - start
            edges = len(peers.topology.edges)
            rounds = report.nodes[0].updates
            rows[f"{shape}, {nodes:,}"] = {
                "nodes": nodes,
                "edges": edges,
                "messages": report.total("messages"),
                "seconds": seconds,
                "us per round, node and edge": 1e6 * seconds / rounds / (nodes + edges),
            }
    return {"rows": rows, "own_s": time.process_time() - began}
