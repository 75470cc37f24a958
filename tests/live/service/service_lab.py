"""A service and the devices that joined it, each a process with a home of its own."""

import json
import re
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness import processes
from benchmarks.live.killed_orchestrator import Process
from melisma.live.service.owner_methods import ServedTask, TasksStatus
from melisma.runs.folder import SERVICE_JOURNAL
from melisma.runs.journal import read_steps
from melisma.runs.journal_database import SqliteDatabase
from melisma.runs.trace import Step

WAIT_S = 120.0
TASK = """
[task]
name = "{name}"
model = "benchmarks.live.paused_task:PausedModel"
data = "benchmarks.live.paused_task:blobs"
scheme = "med"
passes = 1
cycles = {cycles}
deadline_s = {deadline_s}
shard_samples = 50
extension = false
model_args = {{ pause_s = {pause_s} }}
{more}
"""


class ServiceLab:
    """The processes of one service; its owner's commands run to their end."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.out = folder, folder / "service"
        self._port, self._options = str(processes.free_port()), options
        self.devices: dict[str, Process] = {}
        self.start()

    def start(self) -> None:
        """Start the service, or go on with it."""
        network = ("--host", "127.0.0.1", "--port", self._port, "--no-discovery")
        self.service = self._process(
            "owner", "orchestrate", "--out", str(self.out), *network, *self._options
        )
        assert self.service.wait_for("melisma submit TASK.toml adds") is not None, (
            self.service.output
        )

    def join(self, name: str, *options: str) -> Process:
        """Start a device."""
        found = re.search(r"melisma join (mel1\S+)", self.service.output)
        assert found is not None
        allowed = ("--allow-module", "benchmarks.live.paused_task")
        self.devices[name] = self._process(
            name, "join", found[1], "--name", name, *allowed, *options
        )
        return self.devices[name]

    def write(self, name: str, more: str = "", **settings: Any) -> Path:
        """Write the file of a task."""
        values = {"cycles": 2, "deadline_s": 3.0, "pause_s": 0.01} | settings
        path = self.folder / f"{name}.toml"
        path.write_text(TASK.format(name=name, more=more, **values))
        return path

    def run(self, *arguments: str) -> Process:
        """Run a command of the owner to its end."""
        process = self._process("owner", *arguments)
        process.wait_for("\0")  # its last line
        process.end()
        return process

    def submit(self, name: str, more: str = "", **settings: Any) -> Process:
        """Submit a task."""
        return self.run("submit", "--yes", str(self.write(name, more, **settings)))

    def status(self) -> TasksStatus:
        """Return the status of the service."""
        shown = self.run("status", "--json")
        return msgspec.json.decode(shown.output, type=TasksStatus)

    def task(self, name: str) -> ServedTask:
        """Return the status of a task."""
        (found,) = [task for task in self.status().tasks if task.name == name]
        return found

    def wait_for(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition holds."""
        until = time.monotonic() + WAIT_S
        while not condition():
            time.sleep(0.05)
            assert time.monotonic() < until, self.service.output
            assert not self.service.has_ended, self.service.output

    def wait_for_end(self, *names: str) -> None:
        """Wait until tasks have ended."""
        for name in names:
            self.wait_for(partial(self._has_finished, name))

    def _has_finished(self, name: str) -> bool:
        """Return whether a task has finished, in this process of the service or before."""
        journal = SqliteDatabase(self.out / SERVICE_JOURNAL, writable=False)
        with closing(journal):
            query = "SELECT count(*) FROM steps WHERE instr(CAST(content AS TEXT), ?)"
            ended = list(journal.read(query, ('"outcome":"finished"',)))
        return bool(ended[0][0]) and self.task(name).state == "finished"

    def steps(self, number: int, name: str) -> list[Step]:
        """Return the steps of a task so far."""
        return read_steps(self.out / f"{number}-{name}")

    def ledger(self) -> list[dict[str, Any]]:
        """Return all payments."""
        shown = self.run("ledger", str(self.out), "--json")
        content = json.loads(shown.output)
        payments: list[dict[str, Any]] = content["payments"]
        return payments

    def end(self) -> None:
        """End the service as its owner does, and wait for it."""
        self.service.terminate()
        self.service.end()

    def close(self) -> None:
        """Kill all processes."""
        for process in (self.service, *self.devices.values()):
            process.cut_power()

    def _process(self, home: str, *arguments: str) -> Process:
        variables = {"MELISMA_HOME": str(self.folder / home)}
        return Process(*arguments, folder=self.folder, variables=variables)
