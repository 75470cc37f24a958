"""An orchestrator and devices that joined it, each killed and started again."""

import re
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import processes
from benchmarks.live.goodput import CYCLE_S, LEARNERS, ORCHESTRATOR
from benchmarks.live.killed_orchestrator import GOES_ON, Process
from melisma.cycle.commands import Aggregate
from melisma.runs.folder import JOURNAL_FILE
from melisma.runs.journal import Journal
from melisma.runs.trace import Step

LIMIT_S: Final = 120.0
TASK: Final = """
[task]
name = "paused"
model = "benchmarks.live.paused_task:PausedModel"
data = "benchmarks.live.paused_task:many_blobs"
scheme = "dab"
passes = 1
cycles = {cycles}
deadline_s = {cycle_s}
shard_samples = 100
model_args = {{ pause_s = 0.02 }}
"""


def averaged_visits(steps: Iterable[Step]) -> int:
    """Return the visits of all updates that were averaged."""
    return sum(
        int(command.visits.sum() + command.late.visits.sum())
        for step in steps
        for command in step.commands
        if isinstance(command, Aggregate)
    )


@contextmanager
def start(folder: Path) -> "Iterator[JoinedRun]":
    """Let devices join an orchestrator, and wait until the first cycle begins; end all on exit."""
    run = JoinedRun(folder)
    try:
        run.join()
        yield run
    finally:
        run.close()


class JoinedRun:
    """The processes of a run; a device starts its own learner process again."""

    def __init__(
        self,
        folder: Path,
        cycle_s: float = CYCLE_S,
        cycles: int = 100_000,
        learners: int = LEARNERS,
    ) -> None:
        self._folder, self._learners = folder, learners
        (folder / "task.toml").write_text(TASK.format(cycle_s=cycle_s, cycles=cycles))
        options = ("--learners", str(learners), "--port", str(processes.free_port()))
        network = ("--host", "127.0.0.1", "--no-discovery")
        self.command = ("orchestrate", "task.toml", *options, *network, "--out", "run")
        self.start_orchestrator(*self.command)
        self.devices: list[Process] = []

    def join(self) -> None:
        """Let the devices join, and wait until the first cycle begins."""
        _wait_until(self.orchestrator, lambda: self._join_string is not None)
        allowed = ("--allow-module", "benchmarks.live.paused_task")
        for number in range(self._learners):
            name = f"device-{number}"
            options = (self._join_string or "", "--name", name, *allowed)
            self.devices.append(self._start(name, "join", *options))
        _wait_until(self.orchestrator, self._has_begun)

    def is_up(self, kind: str, number: int) -> bool:
        """Whether a learner process runs; the orchestrator always does."""
        return kind == ORCHESTRATOR or self.devices[number].has_children

    def restart(self, kind: str, number: int) -> None:
        """Kill the learner process of a device, or kill and resume the orchestrator."""
        if kind != ORCHESTRATOR:
            self.devices[number].kill_children()
            return
        self.restart_orchestrator("resume", "run")

    def restart_orchestrator(self, *command: str) -> None:
        """Kill the orchestrator, and let a command go on with the run."""
        self.orchestrator.kill()
        self.start_orchestrator(*command)
        if self.orchestrator.wait_for(*GOES_ON) is None:
            raise RuntimeError(f"the run did not go on: {self.orchestrator.output}")

    def start_orchestrator(self, *command: str) -> None:
        """Start a command in the folder of the task, as its owner."""
        self.orchestrator = self._start("desk", *command)

    def end(self) -> int:
        """Cancel the run as a service is ended; return the visits that were averaged."""
        self.orchestrator.terminate()
        self.orchestrator.end()
        with closing(Journal.open(self._folder / "run")) as journal:
            return averaged_visits(journal.steps())

    def close(self) -> None:
        """Kill all processes."""
        for process in (self.orchestrator, *self.devices):
            process.cut_power()

    def _start(self, home: str, *arguments: str) -> Process:
        variables = {"MELISMA_HOME": str(self._folder / home)}
        return Process(*arguments, folder=self._folder, variables=variables)

    @property
    def _join_string(self) -> str | None:
        found = re.search(r"melisma join (mel1\S+)", self.orchestrator.output)
        return found and found[1]

    def wait_for_cycle(self, number: int) -> None:
        """Wait until a cycle has begun."""
        _wait_until(self.orchestrator, lambda: self._count_dispatches() >= number)

    def _has_begun(self) -> bool:
        return self._count_dispatches() > 0

    def _count_dispatches(self) -> int:
        path = self._folder / "run" / JOURNAL_FILE
        query = "SELECT count(*) FROM steps WHERE instr(CAST(content AS TEXT), 'Dispatch')"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return int(database.execute(query).fetchone()[0])


def _wait_until(process: Process, is_due: Any) -> None:
    """Wait for a condition; raise `RuntimeError` if the process ends or the limit passes."""
    give_up_at = time.monotonic() + LIMIT_S
    while not is_due():
        if process.has_ended or time.monotonic() > give_up_at:
            raise RuntimeError(f"the run did not begin: {process.output}")
        time.sleep(0.05)
