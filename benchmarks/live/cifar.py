"""Seconds to 45 % accuracy on CIFAR-10 on four unlike devices, beside Flower.

The network of Flower's tutorial, 20,000 samples, batches of 32, SGD at 0.02 with a momentum of 0.9,
one seed. Devices train 250 to 1,500 samples per second in both systems: a process sleeps after each
batch until a device of that speed would be done. Links are not slowed down. Melisma uses its
default rules with DAB and a deadline of 8 s, and sends the samples over loopback; Flower averages
with FedAvg, one pass in each round, and its clients read their samples from disk. Flower is
measured with equal shares, and with shares in proportion to the speeds of the devices, which its
user has to know beforehand.

Seconds count from the start of the first process, and again from the first cycle. The time of the
devices in cycles is divided into training, waiting for the slowest device, and the rest: transfers,
averaging and evaluation, and in Flower the process that it starts for each message.
"""

import json
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.live import flower_deployment, melisma_run
from melisma.cycle.events import PHASES
from melisma.fleet.task import Task
from melisma.learning.data.datasets import load_dataset
from melisma.learning.task_sizes import limit_samples

TARGET_ACCURACY, SAMPLES, SEED = 0.45, 20_000, 1
# Flower is stopped after the first round that ends later than this, if it has not reached it.
ENOUGH_S, LIMIT_S = 150.0, 400.0
RATES = {"slow": 250, "middle": 500, "brisk": 1000, "fast": 1500}
ROUNDS, BATCH, LEARNING_RATE, MOMENTUM = 30, 32, 0.02, 0.9
TASK: dict[str, Any] = {
    "name": "photographs",
    "model": "benchmarks.live.cifar_net:build",
    "data": "cifar-10",
    "scheme": "dab",
    "passes": 1,
    "deadline_s": 8.0,
    "cycles": ROUNDS,
    "shard_samples": 100,
    "batch": BATCH,
    "optimizer": {"name": "sgd", "lr": LEARNING_RATE, "momentum": MOMENTUM},
    "stop": {"accuracy": TARGET_ACCURACY},
    "seed": SEED,
    "sizes": {"samples": SAMPLES},
}
LEARNER = """
[[fleet.learner]]
name = "{}"
samples_per_s = {}
bandwidth_bps = 1e15
latency_s = 0.0
"""
MELISMA = "melisma"
EQUAL, PROPORTIONAL = "Flower, equal shares", "Flower, shares by speed"
TO_TARGET, FROM_FIRST = "to 45 % s", "from the first cycle s"
COLUMNS = [
    *("cycles", TO_TARGET, FROM_FIRST, "cycle s", "visits", "accuracy %"),
    *("training %", "waiting for the slowest %", "other %"),
]
INSTANTS_S = (15, 30, 45, 60, 90, 120, 180)
CURVE_COLUMNS = [f"{instant} s" for instant in INSTANTS_S]
TRAIN = PHASES.index("train")
Row = dict[str, float | None]


class Curve(NamedTuple):
    """The instants at which cycles began and models were evaluated, with their accuracy."""

    process_at: float
    first_at: float
    evaluated_at: list[float]
    accuracy: list[float]

    @property
    def seconds(self) -> list[float]:
        """Seconds from the first cycle to each evaluation."""
        return [at - self.first_at for at in self.evaluated_at]

    def after(self, seconds: float) -> float | None:
        """Return the accuracy of the latest model in percent, None before the first."""
        known = [a for at, a in zip(self.seconds, self.accuracy, strict=True) if at <= seconds]
        return round(100 * known[-1], 1) if known and seconds <= self.seconds[-1] else None


def measure(quick: bool) -> dict[str, Any]:
    """Measure Melisma, then Flower with each split; a quick run leaves out equal shares."""
    speeds, fair = np.array([*RATES.values()]), np.ones(len(RATES))
    splits = {PROPORTIONAL: speeds} if quick else {PROPORTIONAL: speeds, EQUAL: fair}
    rows, raw, curves, own_s = {}, {}, {}, 0.0
    rows[MELISMA], raw[MELISMA], curves[MELISMA] = _run_melisma()
    for name, shares in splits.items():
        rows[name], raw[name], curves[name], unseen_s = _run_flower(shares)
        own_s += unseen_s
    after = {
        name: {f"{instant} s": curve.after(instant) for instant in INSTANTS_S}
        for name, curve in curves.items()
    }
    return {"rows": rows, "curves": after, "raw": raw, "own_s": own_s}


def _run_melisma() -> tuple[Row, list[Any], Curve]:
    with TemporaryDirectory(prefix="benchmark-cifar-") as name:
        fleet = Path(name) / "fleet.toml"
        fleet.write_text("".join(LEARNER.format(*device) for device in RATES.items()))
        run = melisma_run.run(TASK, fleet, LIMIT_S)
    cycles, at = run["cycles"], run["evaluated_at"]
    first_at = at[0] - (cycles[0]["evaluated_s"] - cycles[0]["began_s"])
    curve = Curve(run["began_at"], first_at, at, [each["accuracy"] for each in cycles])
    ends_s = [*(each["began_s"] for each in cycles[1:]), cycles[-1]["evaluated_s"]]
    uses = [
        _uses(
            end_s - cycle["began_s"],
            [each["phases"][TRAIN] or 0.0 for each in cycle["assignments"]],
            [cycle["closed_s"] - (each["arrived_s"] or 0.0) for each in cycle["assignments"]],
        )
        for cycle, end_s in zip(cycles, ends_s, strict=True)
    ]
    visits = sum(each["visits_counted"] for each in cycles)
    return _row(curve, visits, uses), [_points(curve), uses], curve


def _run_flower(shares: NDArray[Any]) -> tuple[Row, list[Any], Curve, float]:
    with TemporaryDirectory(prefix="benchmark-cifar-") as name:
        folder = Path(name)
        _write_samples(folder, shares)
        config = {
            "task": "cifar",
            "data": name,
            "clients": str(folder / "clients.jsonl"),
            "samples-per-s": " ".join(map(str, RATES.values())),
            "rounds": ROUNDS,
            "passes": 1,
            "batch": BATCH,
            "lr": LEARNING_RATE,
            "momentum": MOMENTUM,
            "seed": SEED,
        }
        with flower_deployment.deploy(len(RATES)) as flower:
            results = flower.run(config)
            rounds = flower.rounds(
                results,
                lambda last: (
                    last["accuracy"] >= TARGET_ACCURACY or time.time() - flower.up_at > ENOUGH_S
                ),
                LIMIT_S,
            )
            own_s = flower.unseen_cpu_s()
        lines = (folder / "clients.jsonl").read_text().splitlines()
    at, accuracy = ([each[key] for each in rounds] for key in ("at", "accuracy"))
    # The initial model is evaluated just before the first round.
    curve = Curve(flower.began_at, at[0], at[1:], accuracy[1:])
    clients = [json.loads(line) for line in lines]
    uses = [_round_uses(begin, end, clients) for begin, end in pairwise(at)]
    return _row(curve, SAMPLES * len(uses), uses), [_points(curve), uses], curve, own_s


def _round_uses(begin: float, end: float, clients: Sequence[dict[str, float]]) -> dict[str, float]:
    own = [each for each in clients if begin < each["ended_at"] <= end]
    last = max(each["ended_at"] for each in own)
    return _uses(
        end - begin,
        [each["ended_at"] - each["began_at"] for each in own],
        [last - each["ended_at"] for each in own],
    )


def _uses(
    span_s: float, training_s: Sequence[float], waiting_s: Sequence[float]
) -> dict[str, float]:
    """Return the seconds of all devices in one cycle by use."""
    total_s, train_s, wait_s = span_s * len(RATES), sum(training_s), sum(waiting_s)
    return {
        "training": train_s,
        "waiting for the slowest": wait_s,
        "other": total_s - train_s - wait_s,
    }


def _row(curve: Curve, visits: int, uses: Sequence[dict[str, float]]) -> Row:
    total_s = sum(sum(each.values()) for each in uses)
    reached = curve.accuracy[-1] >= TARGET_ACCURACY
    return {
        "cycles": len(uses),
        TO_TARGET: round(curve.evaluated_at[-1] - curve.process_at, 1) if reached else None,
        FROM_FIRST: round(curve.seconds[-1], 1) if reached else None,
        "cycle s": round(curve.seconds[-1] / len(uses), 2),
        "visits": visits,
        "accuracy %": round(100 * curve.accuracy[-1], 2),
        **{f"{u} %": round(100 * sum(x[u] for x in uses) / total_s, 1) for u in uses[0]},
    }


def _points(curve: Curve) -> list[list[float]]:
    pairs = zip(curve.seconds, curve.accuracy, strict=True)
    return [[round(seconds, 2), round(accuracy, 4)] for seconds, accuracy in pairs]


def _write_samples(folder: Path, shares: NDArray[Any]) -> None:
    """Write the samples that Melisma trains in random order, a part for each client."""
    data = limit_samples(msgspec.convert(TASK, Task), load_dataset(TASK["data"]))
    order = np.random.default_rng(SEED).permutation(len(data.train))
    ends = np.rint(np.cumsum(shares) / np.sum(shares) * len(order)).astype(int)
    for number, part in enumerate(np.split(order, ends[:-1])):
        samples, labels = data.train.samples[part], data.train.labels[part]
        np.savez(folder / f"{number}.npz", samples=samples, labels=labels)
    np.savez(folder / "test.npz", samples=data.test.samples, labels=data.test.labels)
