"""Learner updates a second: ours beside a plain loop, pfl-research and Flower's simulation.

MNIST is dealt to all learners, each trains one pass a round in batches of 32 by SGD at 0.1, and all
updates are averaged by samples. Everybody begins with the same parameters, in a process of its own;
the first round is not counted, and nobody evaluates in what is. The whole set is run several times
in turn, but for what takes minutes, and the median of each counts.
"""

import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from benchmarks.harness import environments, processes
from benchmarks.simulation import melisma_simulation
from melisma.learning.data.datasets import load_dataset
from melisma.learning.trainer_factory import trainer_for

PFL, FLOWER = "pfl.txt", "flower-sim.txt"
ROUNDS, TIMES, BATCH, LR, LIMIT_S = 6, 3, 32, 0.1, 240.0
WIDTHS = {"784-50-20-10": [784, 50, 20, 10]}  # TwoNN
LEARNERS = (100, 1000)
SEED = 1
COLUMNS = ["updates/s", "ours / theirs", "a round s", "accuracy %", "test loss x 1000"]
TORCHRUN = ("torch.distributed.run", "--standalone", f"--nproc-per-node={os.cpu_count()}", "-m")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
OURS = "melisma"


class Contestant(NamedTuple):
    """An environment, and what is run in it."""

    requirements: str | None
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = MappingProxyType({})


CONTESTANTS = {
    OURS: Contestant(None, ("benchmarks.simulation.melisma_simulation",)),
    "plain loop": Contestant(None, ("benchmarks.competitors.plain_loop",)),
    "plain loop, 1 thread": Contestant(None, ("benchmarks.competitors.plain_loop",), ONE_THREAD),
    "pfl-research": Contestant(PFL, ("benchmarks.competitors.pfl_fedavg",)),
    "pfl-research, 1 thread": Contestant(PFL, ("benchmarks.competitors.pfl_fedavg",), ONE_THREAD),
    "pfl-research, torchrun": Contestant(PFL, (*TORCHRUN, "benchmarks.competitors.pfl_fedavg")),
    "Flower, Ray": Contestant(FLOWER, ("benchmarks.competitors.flower_sim",)),
}
LONGER = 6
"""Times as many rounds of ours are timed, so that it is measured about as long as the others."""
ONCE = {"Flower, Ray": 3}
"""Minutes a run, and far behind: run once, for so many rounds."""
LOOKED_AT = (OURS, "plain loop, 1 thread", "pfl-research, 1 thread", "Flower, Ray")
"""For a first look: those whom others on the machine do not bring to a standstill."""
WANTED = {"plain loop": 3, "pfl-research": 5, "Flower": 15}
"""Times as many updates of ours as of theirs; of several ways to run a peer the fastest counts."""


def settings(quick: bool = False) -> list[tuple[str, int]]:
    """Widths by name, and numbers of learners."""
    every = list(product(WIDTHS, LEARNERS))
    return every[:1] if quick else every


def name_of(contestant: str, setting: tuple[str, int]) -> str:
    """The name of a row."""
    widths, learners = setting
    return f"{contestant}, {learners:,} x {melisma_simulation.SAMPLES // learners}, {widths}"


def measure(quick: bool) -> dict[str, Any]:
    """All in turn, several times; medians."""
    raw: dict[str, list[dict[str, float]]] = {}
    among = LOOKED_AT if quick else tuple(CONTESTANTS)
    for each in CONTESTANTS.values():
        environments.python(each.requirements)
    own_s = 0.0
    with TemporaryDirectory(prefix="beside-simulation-") as folder:
        for turn in range(1 if quick else TIMES):
            for setting, contestant in product(settings(quick), among):
                if turn and contestant in ONCE:
                    continue
                rounds = 2 if quick else ONCE.get(contestant, ROUNDS)
                found, unseen_s = _run(contestant, setting, Path(folder), rounds)
                raw.setdefault(name_of(contestant, setting), []).append(found)
                own_s += unseen_s
    return {"rows": _rows(raw, list(product(settings(quick), among))), "raw": raw, "own_s": own_s}


def _rows(
    raw: dict[str, list[dict[str, float]]], among: Sequence[tuple[tuple[str, int], str]]
) -> dict[str, dict[str, float]]:
    """Medians; ours comes first, for the ratios of the others."""
    rows: dict[str, dict[str, float]] = {}
    for setting, contestant in among:
        name = name_of(contestant, setting)
        rows[name] = {
            column: statistics.median(run[column] for run in raw[name]) for column in raw[name][0]
        }
        ours = rows[name_of(OURS, setting)]["updates/s"]
        rows[name]["ours / theirs"] = ours / rows[name]["updates/s"]
    return rows


def _run(
    contestant: str, setting: tuple[str, int], folder: Path, rounds: int
) -> tuple[dict[str, float], float]:
    widths, learners = setting
    timed = LONGER * rounds if contestant == OURS else rounds
    order = {
        "data": str(_data(folder, widths)),
        "out": str(folder / "out.json"),
        "learners": learners,
        "widths": WIDTHS[widths],
        "rounds": rounds,
        "timed": timed,
        "batch": BATCH,
        "lr": LR,
    }
    path = folder / "order.json"
    path.write_text(json.dumps(order))
    said = _said(contestant, path, folder / "out.json")
    seconds = (said["ended_s"][-1] - said["ended_s"][0]) / (timed - 1)
    return {
        "updates/s": learners / seconds,
        "accuracy %": 100 * said["accuracy"],
        "test loss x 1000": 1000 * said["loss"],
        "a round s": seconds,
    }, float(said["unseen_s"])


def _said(contestant: str, order: Path, out: Path) -> dict[str, Any]:
    """What a contestant in a process of its own wrote; it is ended with all that it started."""
    requirements, arguments, variables = CONTESTANTS[contestant]
    out.unlink(missing_ok=True)
    popen = subprocess.Popen(
        [environments.python(requirements), "-m", *arguments, str(order)],
        cwd=processes.ROOT,
        env={**processes.environment(), **_quiet(order.parent), **variables},
        stdout=subprocess.DEVNULL,
        stderr=(complaints := (order.parent / "complaints.txt").open("w+")),
        text=True,
        start_new_session=True,
    )
    try:
        popen.wait(LIMIT_S)
    finally:
        processes.end(popen)
        complaints.close()
    if not out.exists():
        words = (order.parent / "complaints.txt").read_text().strip()
        raise RuntimeError(f"{contestant} failed: {words[-1500:]}")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def _quiet(folder: Path) -> dict[str, str]:
    """Nobody reports to its makers, or leaves anything in the home folder."""
    off = dict.fromkeys(("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"), "0")
    return {**off, "FLWR_HOME": str(folder / "flwr")}


def _data(folder: Path, widths: str) -> Path:
    """Our data in random order, and the parameters that our task begins with."""
    path = folder / f"{widths}.npz"
    if path.exists():
        return path
    data = load_dataset("mnist")
    mixed = np.random.default_rng(SEED).permutation(len(data.train))
    order = {"widths": WIDTHS[widths], "rounds": 1, "learners": 100, "batch": BATCH, "lr": LR}
    start = trainer_for(melisma_simulation.task_for(order)).initial().values()
    arrays = {f"start-{number}": array for number, array in enumerate(start)}
    arrays |= {"train-x": data.train.samples[mixed], "train-y": data.train.labels[mixed]}
    arrays |= {"test-x": data.test.samples, "test-y": data.test.labels}
    np.savez(path, allow_pickle=False, **arrays)
    return path
