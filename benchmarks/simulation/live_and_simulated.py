"""Live and simulated runs of the same files, by `melisma.train` and by `simulate`.

The speeds of the four emulated devices are given in samples per second, so that the speed of the
machine does not matter.

`measure` compares plans, by the rules of the papers. A plan is the number of shards and passes of
each learner. Shards, passes and deadline are chosen such that an error of one percent in the speed
of a learner gives the same plan; a test holds that. With fine shards it does not, and plans differ.

`measure_visits` compares work, by the default rules, with which learners train until the deadline:
samples trained by each learner in each cycle, repeated passes included.
"""

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

from benchmarks.harness import processes
from melisma.fleet.files.task_file import read_task
from melisma.fleet.task import PAPER_RULES
from melisma.learning.trainer_factory import trainer_for

DEADLINE_S, CYCLES, LIMIT_S = 6.35, 5, 300.0


class Setting(NamedTuple):
    """The settings in which tasks differ."""

    scheme: str
    passes: int | None
    shard_samples: int = 300
    rules: Mapping[str, Any] = MappingProxyType(PAPER_RULES)

    @property
    def fine(self) -> bool:
        """Whether shards are so small that measured costs give a different plan each time."""
        return self.shard_samples < 300


SETTINGS = {
    "equal": Setting("equal", 1),
    "proportional": Setting("proportional", 4),
    "synchronous": Setting("synchronous", None),
    "dab": Setting("dab", 4),
    "synchronous, fine shards": Setting("synchronous", None, 50),
    "dab, fine shards": Setting("dab", 4, 50),
}
DEFAULT_RULES: Mapping[str, Any] = MappingProxyType({})
DEFAULT_SETTINGS = {
    "dab": Setting("dab", 4, 100, DEFAULT_RULES),
    "staleness": Setting("staleness", None, 100, DEFAULT_RULES),
    "proportional": Setting("proportional", 4, 100, DEFAULT_RULES),
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
data = "benchmarks.simulation.mnist_part:load"
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
VISITS_ERROR = "visits, median error %"
VISITS_COLUMNS = [
    "visits, live",
    "visits, simulated",
    VISITS_ERROR,
    "visits, largest error %",
    "cycle, live s",
    "cycle, simulated s",
    "median error %",
    "capacity, live %",
    "capacity, simulated %",
    "accuracy, live %",
    "accuracy, simulated %",
]


def measure(quick: bool) -> dict[str, Any]:
    """Measure each setting with the papers' rules live, then simulated."""
    rows, raw = {}, {}
    for name in ("equal",) if quick else SETTINGS:
        with TemporaryDirectory(prefix="benchmark-live-") as folder:
            run_folder = Path(folder)
            write_files(run_folder, SETTINGS[name], 2 if quick else CYCLES)
            raw[name] = {mode: _run(mode, run_folder) for mode in ("live", "simulated")}
            apart = _model_distance(run_folder, **raw[name])
            rows[name] = _compare(**raw[name]) | {"parameters apart %": apart}
    return {"rows": rows, "raw": _without_models(raw), "own_s": 0.0}


def measure_visits(quick: bool) -> dict[str, Any]:
    """Measure each setting with the default rules live, then simulated."""
    rows, raw = {}, {}
    for name in ("dab",) if quick else DEFAULT_SETTINGS:
        with TemporaryDirectory(prefix="benchmark-visits-") as folder:
            write_files(Path(folder), DEFAULT_SETTINGS[name], 2 if quick else CYCLES)
            raw[name] = {mode: _run(mode, Path(folder)) for mode in ("live", "simulated")}
            rows[name] = _compare(**raw[name]) | _compare_visits(**raw[name])
    return {"rows": rows, "raw": _without_models(raw), "own_s": 0.0}


def _without_models(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the results without the paths of models, whose folders are deleted."""
    return {
        name: {
            mode: {key: value for key, value in run.items() if key != "model"}
            for mode, run in runs.items()
        }
        for name, runs in raw.items()
    }


def write_files(
    folder: Path, setting: Setting, cycles: int, speeds: Mapping[str, float] = MappingProxyType({})
) -> None:
    """Write task and fleet; `speeds` are factors of the speeds of some devices."""
    scheme, passes, shard, rules = setting
    task = TASK.format(scheme=scheme, shard_samples=shard, deadline_s=DEADLINE_S, cycles=cycles)
    keys = {"passes": passes, **rules} if passes else rules
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    (folder / "task.toml").write_text(task + "".join(lines))
    devices = (
        f'[[fleet.learner]]\nname = "{name}"\nsamples_per_s = {rate * speeds.get(name, 1.0)}\n'
        f"bandwidth_bps = {bps:g}\nlatency_s = 0.01\n"
        for name, (rate, bps) in DEVICES.items()
    )
    (folder / "fleet.toml").write_text("".join(devices))


def _run(mode: str, folder: Path) -> dict[str, Any]:
    command = ["-m", "benchmarks.simulation.single_run", mode, str(folder)]
    result: dict[str, Any] = json.loads(processes.run_python(command, LIMIT_S).splitlines()[-1])
    return result


def _compare(live: dict[str, Any], simulated: dict[str, Any]) -> dict[str, float]:
    pairs = list(zip(live["cycles"], simulated["cycles"], strict=True))
    times_s = [(a["cycle_s"], b["cycle_s"]) for a, b in pairs]
    errors = [100 * abs(b / a - 1) for a, b in times_s]
    gaps = [gap for a, b in pairs for gap in _gaps(a["plan"], b["plan"])]
    return {
        "cycle, live s": statistics.median(a for a, _ in times_s),
        "cycle, simulated s": statistics.median(b for _, b in times_s),
        "median error %": statistics.median(errors),
        "largest error %": max(errors),
        "same plans": sum(a["plan"] == b["plan"] for a, b in pairs),
        "of cycles": len(pairs),
        "shards apart": statistics.mean(gaps) if gaps else 0.0,
        "accuracy, live %": 100 * live["accuracy"],
        "accuracy, simulated %": 100 * simulated["accuracy"],
    }


def _compare_visits(live: dict[str, Any], simulated: dict[str, Any]) -> dict[str, float]:
    pairs = [
        (a["visits"].get(name, 0), b["visits"].get(name, 0))
        for a, b in zip(live["cycles"], simulated["cycles"], strict=True)
        for name in DEVICES
    ]
    errors = [100 * abs(b / a - 1) if a else 100.0 for a, b in pairs]
    return {
        "visits, live": sum(a for a, _ in pairs),
        "visits, simulated": sum(b for _, b in pairs),
        VISITS_ERROR: statistics.median(errors),
        "visits, largest error %": max(errors),
        "capacity, live %": 100 * live["capacity_used"],
        "capacity, simulated %": 100 * simulated["capacity_used"],
    }


def _gaps(live: dict[str, list[int]], simulated: dict[str, list[int]]) -> list[int]:
    """Return the difference in shards of each learner, if the plans of a cycle differ."""
    if live == simulated:
        return []
    nothing = [0, 0]
    return [
        abs(live.get(name, nothing)[0] - simulated.get(name, nothing)[0])
        for name in live.keys() | simulated.keys()
    ]


def _model_distance(folder: Path, live: dict[str, Any], simulated: dict[str, Any]) -> float:
    """Return the distance between the models in percent of the distance that the live one moved."""
    start = trainer_for(read_task(folder / "task.toml")).initial()
    live_model, simulated_model = load_file(live["model"]), load_file(simulated["model"])
    return 100 * _distance(live_model, simulated_model) / _distance(live_model, start)


def _distance(a: dict[str, Any], b: dict[str, Any]) -> float:
    squares = (np.square(array - b[name], dtype=np.float64).sum() for name, array in a.items())
    return float(np.sqrt(sum(squares)))
