"""Learner updates per second: Melisma, a plain loop, pfl-research and Flower's simulation.

MNIST is dealt to all learners, each trains one pass per round in batches of 32 by SGD at 0.1, and
all updates are averaged by samples. All systems start from the same parameters, each in its own
process; the first round and evaluation are not timed. The whole set runs several times in turn,
except for systems that take minutes, and the medians count.
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
ROUNDS, REPEATS, BATCH, LR, LIMIT_S = 6, 3, 32, 0.1, 240.0
WIDTHS = {"784-50-20-10": [784, 50, 20, 10]}  # TwoNN
LEARNERS = (100, 1000)
SEED = 1
COLUMNS = ["updates/s", "melisma / this", "round s", "accuracy %", "test loss x 1000"]
TORCHRUN = ("torch.distributed.run", "--standalone", f"--nproc-per-node={os.cpu_count()}", "-m")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
MELISMA = "melisma"


class Contestant(NamedTuple):
    """An environment and the arguments of its interpreter."""

    requirements: str | None
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = MappingProxyType({})


CONTESTANTS = {
    MELISMA: Contestant(None, ("benchmarks.simulation.melisma_simulation",)),
    "plain loop": Contestant(None, ("benchmarks.competitors.plain_loop",)),
    "plain loop, 1 thread": Contestant(None, ("benchmarks.competitors.plain_loop",), ONE_THREAD),
    "pfl-research": Contestant(PFL, ("benchmarks.competitors.pfl_fedavg",)),
    "pfl-research, 1 thread": Contestant(PFL, ("benchmarks.competitors.pfl_fedavg",), ONE_THREAD),
    "pfl-research, torchrun": Contestant(PFL, (*TORCHRUN, "benchmarks.competitors.pfl_fedavg")),
    "Flower, Ray": Contestant(FLOWER, ("benchmarks.competitors.flower_sim",)),
}
ROUNDS_FACTOR = 6
"""Melisma runs more rounds by this factor, so that it is timed about as long as the others."""
SLOW_ROUNDS = {"Flower, Ray": 3}
"""Rounds of systems that take minutes; they run once."""
QUICK_CONTESTANTS = (MELISMA, "plain loop, 1 thread", "pfl-research, 1 thread", "Flower, Ray")
"""Contestants of a quick run, which other load on the machine slows down least."""
MIN_SPEEDUPS = {"plain loop": 3, "pfl-research": 5, "Flower": 15}
"""Targets for updates/s of Melisma divided by those of a competitor in its fastest mode."""


def settings(quick: bool = False) -> list[tuple[str, int]]:
    """Return pairs of widths and numbers of learners."""
    pairs = list(product(WIDTHS, LEARNERS))
    return pairs[:1] if quick else pairs


def name_of(contestant: str, setting: tuple[str, int]) -> str:
    """Return the name of a row."""
    widths, learners = setting
    return f"{contestant}, {learners:,} x {melisma_simulation.SAMPLES // learners}, {widths}"


def measure(quick: bool) -> dict[str, Any]:
    """Run all contestants in turn, several times, and return medians."""
    raw: dict[str, list[dict[str, float]]] = {}
    contestants = QUICK_CONTESTANTS if quick else tuple(CONTESTANTS)
    for system in CONTESTANTS.values():
        environments.python(system.requirements)
    own_s = 0.0
    with TemporaryDirectory(prefix="benchmark-simulation-") as folder:
        for turn in range(1 if quick else REPEATS):
            for setting, contestant in product(settings(quick), contestants):
                if turn and contestant in SLOW_ROUNDS:
                    continue
                rounds = 2 if quick else SLOW_ROUNDS.get(contestant, ROUNDS)
                figures, unseen_s = _run(contestant, setting, Path(folder), rounds)
                raw.setdefault(name_of(contestant, setting), []).append(figures)
                own_s += unseen_s
    return {
        "rows": _rows(raw, list(product(settings(quick), contestants))),
        "raw": raw,
        "own_s": own_s,
    }


def _rows(
    raw: dict[str, list[dict[str, float]]], pairs: Sequence[tuple[tuple[str, int], str]]
) -> dict[str, dict[str, float]]:
    """Return medians; Melisma comes first, because the ratios of the others need it."""
    rows: dict[str, dict[str, float]] = {}
    for setting, contestant in pairs:
        name = name_of(contestant, setting)
        rows[name] = {
            column: statistics.median(run[column] for run in raw[name]) for column in raw[name][0]
        }
        melisma = rows[name_of(MELISMA, setting)]["updates/s"]
        rows[name]["melisma / this"] = melisma / rows[name]["updates/s"]
    return rows


def _run(
    contestant: str, setting: tuple[str, int], folder: Path, rounds: int
) -> tuple[dict[str, float], float]:
    widths, learners = setting
    timed = ROUNDS_FACTOR * rounds if contestant == MELISMA else rounds
    job = {
        "data": str(_write_data(folder, widths)),
        "out": str(folder / "out.json"),
        "learners": learners,
        "widths": WIDTHS[widths],
        "rounds": rounds,
        "timed": timed,
        "batch": BATCH,
        "lr": LR,
    }
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    results = _run_process(contestant, path, folder / "out.json")
    seconds = (results["ended_s"][-1] - results["ended_s"][0]) / (timed - 1)
    return {
        "updates/s": learners / seconds,
        "accuracy %": 100 * results["accuracy"],
        "test loss x 1000": 1000 * results["loss"],
        "round s": seconds,
    }, float(results["unseen_s"])


def _run_process(contestant: str, job: Path, out: Path) -> dict[str, Any]:
    """Run a contestant in its own process and return its results; end all its descendants."""
    requirements, arguments, variables = CONTESTANTS[contestant]
    out.unlink(missing_ok=True)
    popen = subprocess.Popen(
        [environments.python(requirements), "-m", *arguments, str(job)],
        cwd=processes.ROOT,
        env={**processes.environment(), **_quiet(job.parent), **variables},
        stdout=subprocess.DEVNULL,
        stderr=(stderr := (job.parent / "stderr.txt").open("w+")),
        text=True,
        start_new_session=True,
    )
    try:
        popen.wait(LIMIT_S)
    finally:
        processes.end(popen)
        stderr.close()
    if not out.exists():
        message = (job.parent / "stderr.txt").read_text().strip()
        raise RuntimeError(f"{contestant} failed: {message[-1500:]}")
    results: dict[str, Any] = json.loads(out.read_text())
    return results


def _quiet(folder: Path) -> dict[str, str]:
    """Disable telemetry, and keep files out of the home folder."""
    off = dict.fromkeys(("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"), "0")
    return {**off, "FLWR_HOME": str(folder / "flwr")}


def _write_data(folder: Path, widths: str) -> Path:
    """Write the data in random order and the initial parameters of the task."""
    path = folder / f"{widths}.npz"
    if path.exists():
        return path
    data = load_dataset("mnist")
    permutation = np.random.default_rng(SEED).permutation(len(data.train))
    job = {"widths": WIDTHS[widths], "rounds": 1, "learners": 100, "batch": BATCH, "lr": LR}
    start = trainer_for(melisma_simulation.task_for(job)).initial().values()
    arrays = {f"start-{number}": array for number, array in enumerate(start)}
    arrays |= {
        "train-x": data.train.samples[permutation],
        "train-y": data.train.labels[permutation],
    }
    arrays |= {"test-x": data.test.samples, "test-y": data.test.labels}
    np.savez(path, allow_pickle=False, **arrays)
    return path
