"""Samples that count, while learners or the orchestrator are killed again and again.

Three devices join an orchestrator on loopback, each in processes of its own, and train in cycles of
a few seconds; Flower runs as many clients with a pass of the same length in each round. The time
from the start of a process until it is killed has an exponential distribution, with a mean of some
cycles; whatever is killed is started again at once. Goodput is the number of samples trained that
enter averages within a fixed time, as a share of that of a run that is left alone. Each figure is
the median over seeds.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

import numpy as np

CYCLE_S, CYCLES, LEARNERS, SEEDS = 4.0, 25, 3, (0, 1, 2)
BETWEEN: Final = {"every cycle": 1, "every 5 cycles": 5, "every 20 cycles": 20}
"""Mean times between kills, in cycles."""
ORCHESTRATOR, EACH_LEARNER = "orchestrator", "each learner"
ALONE, KILLS = "samples/s left alone", "kills"
COLUMNS: Final = [ALONE, *(f"{name} %" for name in BETWEEN), *(f"{KILLS} {n}" for n in BETWEEN)]


class KillableRun(Protocol):
    """A run that goes on until it is closed, and whose processes can be killed and restarted."""

    def is_up(self, kind: str, number: int) -> bool:
        """Whether a process runs."""
        ...

    def restart(self, kind: str, number: int) -> None:
        """Kill a process and start it again."""
        ...

    def end(self) -> int:
        """End the run; return the samples that entered averages while it ran."""
        ...


Start = Callable[[Path], AbstractContextManager[KillableRun]]


def measure(start: Start, quick: bool, seeds: Sequence[int] = SEEDS) -> dict[str, Any]:
    """Return a row for each kind of process that is killed."""
    seeds, seconds = (seeds[:1], 4 * CYCLE_S) if quick else (seeds, CYCLES * CYCLE_S)
    alone, _ = _goodput(start, None, 1.0, seconds, 0)
    rows: dict[str, dict[str, float]] = {}
    for kind in (EACH_LEARNER, ORCHESTRATOR):
        row = rows[kind] = {ALONE: round(alone)}
        for name, mean in BETWEEN.items():
            runs = [_goodput(start, kind, mean * CYCLE_S, seconds, seed) for seed in seeds]
            row[f"{name} %"] = round(100 * statistics.median(rate for rate, _ in runs) / alone, 1)
            row[f"{KILLS} {name}"] = statistics.median(kills for _, kills in runs)
    # Descendants of killed processes are not children of this one: their time is not known.
    return {"rows": rows, "own_s": 0.0}


def _goodput(
    start: Start, kind: str | None, mean_s: float, seconds: float, seed: int
) -> tuple[float, int]:
    """Return the samples in a second of one run, and how often its processes were killed."""
    with TemporaryDirectory(prefix="goodput-") as name, start(Path(name)) as run:
        began = time.monotonic()
        kills = disturb(run, kind, mean_s, seconds, np.random.default_rng(seed))
        samples = run.end()
        return samples / (time.monotonic() - began), kills


def disturb(
    run: KillableRun, kind: str | None, mean_s: float, seconds: float, rng: np.random.Generator
) -> int:
    """Kill processes of a kind for some seconds; return the kills."""
    ends_at, kills = time.monotonic() + seconds, 0
    targets = [] if kind is None else [0] if kind == ORCHESTRATOR else [*range(LEARNERS)]
    due_at: dict[int, float] = {}
    while time.monotonic() < ends_at:
        time.sleep(0.02)
        for target in targets:
            if target not in due_at and run.is_up(str(kind), target):
                due_at[target] = time.monotonic() + float(rng.exponential(mean_s))
            if due_at.get(target, math.inf) <= time.monotonic():
                run.restart(str(kind), target)
                kills += 1
                del due_at[target]
    return kills
