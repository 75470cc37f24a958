"""One run of ours in a fresh process: an order in as JSON, what became of each cycle out.

The order has the keys of a task, and `fleet`: a file, or a number of learners like this machine's
own core on a link that holds nothing up.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import processes, usage

LEARNER = 'name = "learner-{}"\ncompute = 1.0\nbandwidth_bps = 1e15\nlatency_s = 0.0\n'


def run(task: Mapping[str, Any], fleet: int | Path, limit_s: float) -> dict[str, Any]:
    """Train in a process of its own; `began_at` is when that was started."""
    order = {"task": dict(task), "fleet": fleet if isinstance(fleet, int) else str(fleet)}
    began_at = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.live.melisma_run"],
        input=json.dumps(order),
        cwd=processes.ROOT,
        env=processes.environment(),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"our run failed: {done.stderr.strip()[-1000:]}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if said["outcome"] not in ("done", "stopped"):
        raise RuntimeError(f"our run {said['outcome']}: {said['reason']}")
    return {**said, "began_at": began_at, "ended_at": time.time()}


def main() -> None:
    """Follow the order on standard input."""
    order = json.load(sys.stdin)
    with TemporaryDirectory(prefix="beside-ours-") as name:
        print(json.dumps(_trained(order, Path(name))))


def _trained(order: dict[str, Any], folder: Path) -> dict[str, Any]:
    from melisma.cycle.commands import Dispatch
    from melisma.cycle.events import Evaluated
    from melisma.live.training import train

    fleet, task = folder / "fleet.toml", folder / "task.toml"
    if isinstance(order["fleet"], int):
        rows = (LEARNER.format(number) for number in range(order["fleet"]))
        fleet.write_text("".join(f"[[fleet.learner]]\n{row}" for row in rows))
    else:
        fleet.write_text(Path(order["fleet"]).read_text())
    task.write_text(_toml(order["task"]))
    evaluated_at: list[float] = []
    before_mb: list[float] = []

    def watch(step: Any) -> None:
        if isinstance(step.event, Evaluated):
            evaluated_at.append(time.time())
        if not before_mb and any(isinstance(each, Dispatch) for each in step.commands):
            before_mb.extend(_learners_mb())

    report = train(task, fleet, folder=folder / "run", watch=watch)
    told = report.as_dict()
    return {
        "outcome": report.outcome,
        "reason": report.reason,
        "evaluated_at": evaluated_at,
        "before_mb": before_mb,
        "cycles": told["cycles"],
    }


def _learners_mb() -> list[float]:
    """What each learner holds: they are the processes that this one started."""
    return [usage.resident_mb(pid) for pid in usage.descendants(os.getpid())]


def _toml(task: Mapping[str, Any]) -> str:
    return "[task]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in task.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)


if __name__ == "__main__":
    main()
