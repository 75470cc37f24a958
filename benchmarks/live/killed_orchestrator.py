"""A run whose orchestrator is killed again and again, and resumed: what is kept, and how fast.

Orchestrator and learners are processes; `SIGKILL` hits at random instants, and at instants at which
a file of updates or parameters is being written. Each trace is checked by the invariants of the
fault search, and the final parameters are compared with those of a run that was left alone.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from benchmarks.harness import usage
from melisma.backports import RUN_MODULE
from melisma.runs.journal import Journal
from melisma.runs.trace import Step
from melisma.simulation.invariants.invariants import Invariants

ROOT: Final = Path(__file__).parents[2]
RUN_S: Final = 240.0
"""Time after which a process is taken to hang."""
GOES_ON: Final = ("the run goes on", "had not begun")
"""In the lines that a resumed run prints when it goes on, and when it begins."""
HAS_ENDED: Final = "the run has ended"
SAVING: Final = ("updates", "parameters")
TASK: Final = """
[task]
name = "paused"
model = "benchmarks.live.paused_task:PausedModel"
data = "benchmarks.live.paused_task:blobs"
scheme = "equal"
passes = {passes}
cycles = {cycles}
deadline_s = 30
shard_samples = 50
extension = false
overlap = false
quorum = 1.0
late = "drop"

[task.model_args]
pause_s = {pause_s}
numbers = {numbers}

[task.optimizer]
lr = 0.5
"""
DEVICE: Final = """
[[fleet.learner]]
name = "device-{number}"
profile = "laptop"
"""
LEARNERS: Final = 3


class Process:
    """A command of Melisma whose lines of output are read as they come."""

    def __init__(
        self, *arguments: str, folder: Path, variables: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.began_at = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, *RUN_MODULE, "melisma", *arguments],
            cwd=folder,
            env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._new: SimpleQueue[str | None] = SimpleQueue()
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.lines.append(line)
                self._new.put(line)
        self._new.put(None)

    def wait_for(self, *texts: str) -> float | None:
        """Return the seconds until a line with one of these, None if the process ends before."""
        while True:
            try:
                line = self._new.get(timeout=RUN_S)
            except Empty:
                raise RuntimeError(f"none of {texts} in {RUN_S:g} s: {self.output}") from None
            if line is None:
                return None
            if any(text in line for text in texts):
                return time.monotonic() - self.began_at

    def wait_until(self, is_due: Callable[[], bool]) -> None:
        """Wait until a condition holds, or the process ends."""
        while self._process.poll() is None and not is_due():
            time.sleep(0.0005)

    def kill(self) -> bool:
        """Kill the process; its children notice that. Return False if it had ended before."""
        self._process.kill()
        return self._process.wait() == -signal.SIGKILL

    @property
    def has_children(self) -> bool:
        """Whether the process has started others."""
        return bool(usage.descendants(self._process.pid))

    def kill_children(self) -> None:
        """Kill the processes that this one has started, directly or not."""
        _kill_all(usage.descendants(self._process.pid))

    def terminate(self) -> None:
        """End the process as a service is ended; a run keeps its results."""
        self._process.terminate()

    def cut_power(self) -> bool:
        """Kill the process and then its children; return False if it had ended before."""
        children = usage.descendants(self._process.pid)
        killed = self.kill()
        _kill_all(children)
        return killed

    def end(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        return self._process.wait(RUN_S)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def output(self) -> str:
        """The lines so far."""
        return "".join(self.lines)


def _kill_all(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@dataclass
class KilledRun:
    """The folder of a run that is killed; `resumed_s` are the seconds until it went on each time.

    `kills` counts the kills by the instant: at random, at most `most_s` after the run went on, or
    while a folder was written to then.
    """

    folder: Path
    rng: np.random.Generator
    cycles: int = 4
    passes: int = 2
    pause_s: float = 0.03
    numbers: int = 200_000
    most_s: float = 2.0
    resumed_s: list[float] = field(default_factory=list)
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("random", *SAVING), 0))

    def write_files(self) -> None:
        """Write task and fleet."""
        values = {name: getattr(self, name) for name in ("passes", "cycles", "pause_s", "numbers")}
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "task.toml").write_text(TASK.format(**values))
        (self.folder / "fleet.toml").write_text(
            "".join(DEVICE.format(number=number) for number in range(LEARNERS))
        )

    def process(self, *arguments: str) -> Process:
        """Start a command of Melisma."""
        return Process(*arguments, folder=self.folder)

    def stop(self, process: Process) -> bool:
        """Kill the process; return False if it had ended before."""
        return process.kill()

    def start(self) -> Process:
        """Start the run, and wait until it has begun."""
        process = self.process("run", "task.toml", "--fleet", "fleet.toml", "--out", "run")
        process.wait_until((self.folder / "run" / "logs" / "0.log").exists)
        if process.has_ended:
            raise RuntimeError(f"the run did not begin: {process.output}")
        return process

    def resume(self) -> Process | None:
        """Resume the run, and wait until it goes on; None if it had ended."""
        process = self.process("resume", "run")
        seconds = process.wait_for(*GOES_ON)
        if seconds is not None:
            self.resumed_s.append(seconds)
            return process
        if HAS_ENDED not in process.output:
            raise RuntimeError(f"the run did not go on: {process.output}")
        return None

    @property
    def kill_count(self) -> int:
        """The number of kills so far."""
        return sum(self.kills.values())

    def run(self, kills: int) -> None:
        """Run to the end with up to this many kills."""
        self.write_files()
        process: Process | None = self.start()
        while process is not None and self.kill_count < kills and self._kill(process):
            process = self.resume()
        if process is not None and process.end():
            raise RuntimeError(f"the run failed: {process.output}")

    def _kill(self, process: Process) -> bool:
        """Kill at a random instant, or while a file is written; return whether it still ran."""
        instant = list(self.kills)[int(self.rng.integers(len(self.kills)))]
        at = time.monotonic() + float(self.rng.uniform(0.0, self.most_s))
        process.wait_until(lambda: time.monotonic() >= at)
        if instant != "random":
            saved = self.folder / "run" / instant
            process.wait_until(lambda: any(saved.glob("*.part")))
        killed = self.stop(process)
        self.kills[instant] += killed
        return killed

    @property
    def steps(self) -> list[Step]:
        """The steps of the run."""
        journal = Journal.open(self.folder / "run")
        try:
            return list(journal.steps())
        finally:
            journal.close()

    @property
    def parameters(self) -> dict[str, NDArray[Any]]:
        """The trained parameters."""
        return load_file(self.folder / "run" / "model.safetensors")

    def check(self) -> None:
        """Raise `InvariantError` if a shard was lost, or an update counted twice."""
        invariants = LiveInvariants()
        for step in self.steps:
            invariants.check(step)
        invariants.check_end()

    def check_parameters(self, undisturbed: "KilledRun") -> None:
        """Raise `RuntimeError` unless the parameters are those of a run that was left alone."""
        for name, expected in undisturbed.parameters.items():
            if not np.array_equal(self.parameters[name], expected):
                raise RuntimeError(f"the run in {self.folder} has other parameters: {name}")


class LiveInvariants(Invariants):
    """The invariants of live runs, where updates have the time at which they arrived.

    Each is handled when it is on disk, so that other events may be handled in between.
    """

    def check(self, step: Step) -> None:
        """Check one more step."""
        self._now_s = min(self._now_s, step.event.at_s)
        super().check(step)
