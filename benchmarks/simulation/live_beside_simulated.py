"""Live beside simulated: the same files, by `melisma.train` and by `simulate`.

Four emulated devices whose speeds are said in samples a second, so that the machine's own does not
matter. A plan is the number of shards and passes of each learner. Shards, passes and deadline are
such that costs measured one part in a hundred off give the same plan; of fine shards, where they do
not, it is told how far the plans are apart.
"""

import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

from benchmarks.harness import processes
from melisma.fleet.task import read_task
from melisma.learning.trainer_factory import trainer_for

DEADLINE_S, CYCLES, LIMIT_S = 6.15, 5, 300.0


class Setting(NamedTuple):
    """What a task says beside what all of them say."""

    scheme: str
    passes: int | None
    shard_samples: int = 300

    @property
    def fine(self) -> bool:
        """Whether plans are so fine that what was measured never gives the same one twice."""
        return self.shard_samples < 300


SETTINGS = {
    "equal": Setting("equal", 1),
    "proportional": Setting("proportional", 4),
    "synchronous": Setting("synchronous", None),
    "dab": Setting("dab", 4),
    "synchronous, fine shards": Setting("synchronous", None, 50),
    "dab, fine shards": Setting("dab", 4, 50),
}
DEVICES = {
    "slow": (500, 10e6),
    "middle": (1000, 20e6),
    "brisk": (1500, 30e6),
    "fast": (2500, 50e6),
}
TASK = """
[task]
name = "both"
model = "twonn"
data = "benchmarks.simulation.mnist_part:some"
scheme = "{scheme}"
deadline_s = {deadline_s}
cycles = {cycles}
shard_samples = {shard_samples}
batch = 32
optimizer = {{ name = "sgd", lr = 0.1 }}
"""
COLUMNS = [
    "cycle, live s",
    "cycle, simulated s",
    "median error %",
    "largest error %",
    "same plans",
    "of cycles",
    "shards apart",
    "accuracy, live %",
    "accuracy, simulated %",
    "parameters apart %",
]


def measure(quick: bool) -> dict[str, Any]:
    """Each setting live, then simulated."""
    rows, raw = {}, {}
    for name in ("equal",) if quick else SETTINGS:
        with TemporaryDirectory(prefix="beside-live-") as folder:
            here = Path(folder)
            _laid_out(here, SETTINGS[name], 2 if quick else CYCLES)
            raw[name] = {how: _said(how, here) for how in ("live", "simulated")}
            apart = _apart(here, **raw[name])
            rows[name] = _compared(**raw[name]) | {"parameters apart %": apart}
    return {"rows": rows, "raw": raw, "own_s": 0.0}


def _laid_out(folder: Path, setting: Setting, cycles: int) -> None:
    scheme, passes, shard = setting
    task = TASK.format(scheme=scheme, shard_samples=shard, deadline_s=DEADLINE_S, cycles=cycles)
    (folder / "task.toml").write_text(task + (f"passes = {passes}\n" if passes else ""))
    devices = (
        f'[[fleet.learner]]\nname = "{name}"\nsamples_per_s = {rate}\n'
        f"bandwidth_bps = {bps:g}\nlatency_s = 0.01\n"
        for name, (rate, bps) in DEVICES.items()
    )
    (folder / "fleet.toml").write_text("".join(devices))


def _said(how: str, folder: Path) -> dict[str, Any]:
    pair = ["-m", "benchmarks.simulation.pair", how, str(folder)]
    found: dict[str, Any] = json.loads(processes.said(pair, LIMIT_S).splitlines()[-1])
    return found


def _compared(live: dict[str, Any], simulated: dict[str, Any]) -> dict[str, float]:
    pairs = list(zip(live["cycles"], simulated["cycles"], strict=True))
    both = [(a["cycle_s"], b["cycle_s"]) for a, b in pairs]
    errors = [100 * abs(b / a - 1) for a, b in both]
    gaps = [gap for a, b in pairs for gap in _gaps(a["plan"], b["plan"])]
    return {
        "cycle, live s": statistics.median(a for a, _ in both),
        "cycle, simulated s": statistics.median(b for _, b in both),
        "median error %": statistics.median(errors),
        "largest error %": max(errors),
        "same plans": sum(a["plan"] == b["plan"] for a, b in pairs),
        "of cycles": len(pairs),
        "shards apart": statistics.mean(gaps) if gaps else 0.0,
        "accuracy, live %": 100 * live["accuracy"],
        "accuracy, simulated %": 100 * simulated["accuracy"],
    }


def _gaps(live: dict[str, list[int]], simulated: dict[str, list[int]]) -> list[int]:
    """How many shards each learner's plans differ by, in a cycle whose plans do."""
    if live == simulated:
        return []
    nothing = [0, 0]
    return [
        abs(live.get(name, nothing)[0] - simulated.get(name, nothing)[0])
        for name in live.keys() | simulated.keys()
    ]


def _apart(folder: Path, live: dict[str, Any], simulated: dict[str, Any]) -> float:
    """The distance of the two models by the distance that the live one moved."""
    start = trainer_for(read_task(folder / "task.toml")).initial()
    one, other = load_file(live["model"]), load_file(simulated["model"])
    return 100 * _distance(one, other) / _distance(one, start)


def _distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    gaps = (np.square(array - other[name], dtype=np.float64).sum() for name, array in one.items())
    return float(np.sqrt(sum(gaps)))
