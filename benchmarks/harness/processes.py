"""Processes pinned to one core, and their end.

A server runs in a process of its own, on a core of its own, and is ended with everything it
started when its `with` block is left, by an error or Ctrl-C too.
"""

import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from benchmarks.harness import usage

ROOT = Path(__file__).parents[2]
SERVER_CORE, CLIENT_CORE = 0, 1
GRACE_S = 5.0
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Process:
    """A running command; what it writes to standard error is kept for when it fails."""

    name: str
    popen: subprocess.Popen[str]
    complaints: IO[str]

    @property
    def pid(self) -> int:
        return self.popen.pid

    def failure(self) -> RuntimeError:
        """An error that says how the process ended and the last that it complained about."""
        self.complaints.seek(0)
        words = self.complaints.read().strip().splitlines() or ["without a word"]
        code = self.popen.poll()
        how = "is silent" if code is None else f"ended with code {code}"
        return RuntimeError(f"{self.name} {how}: {words[-1]}")


@contextmanager
def pinned(
    arguments: Sequence[str], core: int, variables: Mapping[str, str] = NO_VARIABLES
) -> Iterator[Process]:
    """Run a command on one core; end it and all its descendants on leaving."""
    with tempfile.TemporaryFile("w+") as complaints:
        popen = subprocess.Popen(
            ["taskset", "--cpu-list", str(core), *arguments],
            cwd=ROOT,
            env={**environment(), **variables},
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            start_new_session=True,
        )
        try:
            yield Process(" ".join(arguments[1:]), popen, complaints)
        finally:
            end(popen)


def end(popen: subprocess.Popen[str]) -> None:
    """Ask a process to stop, then kill whatever of its tree is still there."""
    family = usage.descendants(popen.pid)
    popen.terminate()
    with suppress(subprocess.TimeoutExpired):
        popen.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(popen.pid, signal.SIGKILL)
    for pid in family:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    popen.communicate()


def said(arguments: Sequence[str], limit_s: float) -> str:
    """What a command of this interpreter prints; if it fails, an error with what it complained."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def environment() -> dict[str, str]:
    """The environment of a measured process: this repository's packages, compiled once."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_for_port(port: int, process: Process, limit_s: float = 20.0) -> None:
    """Return when somebody listens on the port; fail if the process died or never does."""
    give_up_s = time.monotonic() + limit_s
    while time.monotonic() < give_up_s and process.popen.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.02)
    raise process.failure()


@functools.cache
def import_ms(statement: str, python: str = sys.executable, times: int = 5) -> float:
    """How long an import takes in a fresh interpreter, the interpreter's own start left out."""
    code = (
        "import time; start_s = time.perf_counter(); "
        f"{statement}; print((time.perf_counter() - start_s) * 1e3)"
    )
    command = [python, "-c", code]
    runs = [
        subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
        for _ in range(times)
    ]
    return sorted(float(run.stdout) for run in runs)[times // 2]
