"""Run Melisma in a new process: a job as JSON in, the cycles of the run as JSON out.

The job has a `task` with its keys, and a `fleet`: a file, or a number of learners with the speed of
one core of this machine on links without delay. A `kill` names a learner by number, a cycle, and
the seconds from the dispatch of that cycle to the SIGKILL of the learner's process. Without its
`journal`, a run keeps its steps in memory alone.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.harness import processes, usage

LEARNER = 'name = "learner-{}"\ncompute = 1.0\nbandwidth_bps = 1e15\nlatency_s = 0.0\n'


class Kill(NamedTuple):
    """The learner whose process is killed, and when: in a cycle, seconds after its dispatch."""

    learner: int
    cycle: int
    after_s: float


def run(
    task: Mapping[str, Any],
    fleet: int | Path,
    limit_s: float,
    kill: Kill | None = None,
    *,
    journal: bool = True,
) -> dict[str, Any]:
    """Train in a new process; `began_at` is the time of its start."""
    source = fleet if isinstance(fleet, int) else str(fleet)
    job = {"task": dict(task), "fleet": source, "kill": kill, "journal": journal}
    began_at = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.live.melisma_run"],
        input=json.dumps(job),
        cwd=processes.ROOT,
        env=processes.environment(),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the run of Melisma failed: {done.stderr.strip()[-1000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if result["outcome"] not in ("finished", "reached goal"):
        raise RuntimeError(f"the run of Melisma {result['outcome']}: {result['reason']}")
    return {**result, "began_at": began_at, "ended_at": time.time()}


def main() -> None:
    """Run the job on standard input and print the result."""
    from benchmarks.live.unrecorded_journal import without_journal

    job = json.load(sys.stdin)
    with TemporaryDirectory(prefix="benchmark-melisma-") as name:
        with nullcontext() if job["journal"] else without_journal():
            result = _train(job, Path(name))
        print(json.dumps(result))


def _train(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    from melisma.cycle.commands import Dispatch
    from melisma.cycle.events import Evaluated
    from melisma.live.preparation import prepare
    from melisma.live.training import run

    fleet, task = folder / "fleet.toml", folder / "task.toml"
    if isinstance(job["fleet"], int):
        rows = (LEARNER.format(number) for number in range(job["fleet"]))
        fleet.write_text("".join(f"[[fleet.learner]]\n{row}" for row in rows))
    else:
        fleet.write_text(Path(job["fleet"]).read_text())
    task.write_text(_toml(job["task"]))
    evaluated_at: list[float] = []
    before_mb: list[float] = []
    learner_pids: list[int] = []
    kill = Kill(*job["kill"]) if job["kill"] else None

    def watch(step: Any) -> None:
        if isinstance(step.event, Evaluated):
            evaluated_at.append(time.time())
        dispatches = [each for each in step.commands if isinstance(each, Dispatch)]
        if dispatches and not learner_pids:
            # The launcher is the child of this process. This delays the first cycle only.
            _, *learners = usage.descendants(os.getpid())
            learner_pids.extend(learners)
            before_mb.extend(map(usage.resident_mb, learner_pids))
        if kill is not None and any(each.cycle == kill.cycle for each in dispatches):
            pid = learner_pids[kill.learner]
            threading.Timer(kill.after_s, os.kill, (pid, signal.SIGKILL)).start()

    report = run(prepare(task, fleet, folder=folder / "run"), watch=watch)
    return {
        "outcome": report.outcome,
        "reason": report.reason,
        "began_s": report.began_s,
        "ended_s": report.ended_s,
        "handed_on": kill and handed_on(report.trace, kill, job["task"]["shard_samples"]),
        "evaluated_at": evaluated_at,
        "before_mb": before_mb,
        "cycles": report.as_dict()["cycles"],
    }


def handed_on(trace: Iterable[Any], kill: Kill, shard_samples: int) -> dict[str, Any]:
    """Return what became of the shards that the killed learner had in its last cycle.

    `requested` are the shards that the others requested after its departure was noticed: no more
    can be handed on, because they have no time for more. `repeated` are the visits that the others
    made beyond their plans in that cycle, in shards: time in which shards were on their way.
    """
    from melisma.cycle.commands import Dispatch, Extend
    from melisma.cycle.events import LearnersLeft

    steps, given, taken = list(trace), set[int](), dict[int, float]()
    of_cycle = [
        (step.event.at_s, each)
        for step in steps
        for each in step.commands
        if isinstance(each, Dispatch | Extend) and each.cycle == kill.cycle
    ]
    left = [step.event for step in steps if isinstance(step.event, LearnersLeft)]
    left_s = min((each.at_s for each in left if kill.learner in each.learners), default=None)
    if left_s is None or not of_cycle:
        raise RuntimeError(f"learner {kill.learner} did not leave in cycle {kill.cycle}")
    for at_s, each in of_cycle:
        for learner, shards in zip(each.learners.tolist(), each.shards, strict=True):
            if learner == kill.learner:
                given.update(shards.tolist())
            elif at_s >= left_s:
                taken |= {shard: at_s for shard in shards.tolist() if shard in given}
    killed_s = of_cycle[0][0] + kill.after_s
    requested, repeated = _time_of_others(steps, kill.cycle, left_s)
    return {
        "shards": len(given),
        "requested": requested,
        "handed on": len(taken),
        "repeated": round(repeated / shard_samples, 1),
        "noticed after s": round(left_s - killed_s, 3),
        "handed on after s": round(max(taken.values()) - killed_s, 3) if taken else None,
    }


def _time_of_others(steps: Iterable[Any], cycle: int, left_s: float) -> tuple[int, int]:
    """Return the shards requested in a cycle since `left_s`, and its visits beyond the plans."""
    from melisma.cycle.events import ShardsRequested, UpdatesReceived

    requested = repeated = 0
    for event in (step.event for step in steps):
        if isinstance(event, ShardsRequested) and event.cycle == cycle and event.at_s >= left_s:
            requested += int(event.shards.sum())
        if isinstance(event, UpdatesReceived) and event.cycle == cycle:
            repeated += int((event.visits - event.visits_of_plan).sum())
    return requested, repeated


def _toml(task: Mapping[str, Any]) -> str:
    return "[task]\n" + "".join(f"{key} = {_value(value)}\n" for key, value in task.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)


if __name__ == "__main__":
    main()
