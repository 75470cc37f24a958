"""Start processes on one core, and end them with all their descendants.

A server has its own process and core. It ends with all its descendants when its `with` block is
left, also by an error or Ctrl-C.
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
    """A running command and the file of its standard error, for error messages."""

    name: str
    popen: subprocess.Popen[str]
    stderr: IO[str]

    @property
    def pid(self) -> int:
        return self.popen.pid

    def failure(self) -> RuntimeError:
        """Return an error with the exit code and the last line of standard error."""
        self.stderr.seek(0)
        lines = self.stderr.read().strip().splitlines() or ["no error message"]
        code = self.popen.poll()
        state = "does not answer" if code is None else f"ended with code {code}"
        return RuntimeError(f"{self.name} {state}: {lines[-1]}")


@contextmanager
def run_pinned(
    arguments: Sequence[str], core: int, variables: Mapping[str, str] = NO_VARIABLES
) -> Iterator[Process]:
    """Run a command on one core; end it and all its descendants on exit."""
    with tempfile.TemporaryFile("w+") as stderr:
        popen = subprocess.Popen(
            ["taskset", "--cpu-list", str(core), *arguments],
            cwd=ROOT,
            env={**environment(), **variables},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        try:
            yield Process(" ".join(arguments[1:]), popen, stderr)
        finally:
            end(popen)


def end(popen: subprocess.Popen[str]) -> None:
    """Terminate a process, then kill the rest of its process tree."""
    pids = usage.descendants(popen.pid)
    popen.terminate()
    with suppress(subprocess.TimeoutExpired):
        popen.wait(GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(popen.pid, signal.SIGKILL)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    popen.communicate()


def run_python(arguments: Sequence[str], limit_s: float) -> str:
    """Run this interpreter and return its output; raise with its standard error if it fails."""
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
    """Return the environment of a measured process: this repository's packages, with bytecode."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def free_port() -> int:
    """Return a free loopback port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_for_port(port: int, process: Process, limit_s: float = 20.0) -> None:
    """Wait until the process listens on the port; raise if it ends or the limit passes."""
    give_up_s = time.monotonic() + limit_s
    while time.monotonic() < give_up_s and process.popen.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.02)
    raise process.failure()


@functools.cache
def import_ms(statement: str, python: str = sys.executable, times: int = 5) -> float:
    """Return the time of an import in a new interpreter, without the interpreter's start."""
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
