"""Learners and nodes as processes of this machine, each standing for a device.

It ends with this process, however that ends: its standard input is held open from here.
What it writes goes to a file of its own.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

MAX_LOG_TAIL_CHARS = 400
GRACE_S = 5.0
OnExit = Callable[[int, str], None]


class ProcessSettings(Protocol):
    """A setting, which goes to the process as JSON."""

    @property
    def name(self) -> str:
        """What it is called."""


@contextlib.asynccontextmanager
async def run_processes(
    settings: Sequence[ProcessSettings],
    logs: Path,
    gone: OnExit,
    module: str = "melisma.live.learner.agent",
) -> AsyncIterator[None]:
    """Run a process for each setting; `gone` is told the number of one that ends, and why."""
    processes = [
        _start(module, setting, logs / f"{number}.log") for number, setting in enumerate(settings)
    ]

    async def watched(number: int, process: "subprocess.Popen[bytes]") -> None:
        code = await _wait_for_exit(process)
        gone(number, _describe_exit(settings[number].name, logs / f"{number}.log", code))

    watches = [asyncio.create_task(watched(*each)) for each in enumerate(processes)]
    try:
        yield
    finally:
        for watch in watches:
            watch.cancel()
        _close_stdin(processes)
        await asyncio.to_thread(_wait_or_kill, processes)


def _wait_for_exit(process: "subprocess.Popen[bytes]") -> "asyncio.Future[int]":
    """Its exit code, from a thread of its own, which keeps nobody from leaving."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def wait() -> None:
        code = process.wait()
        # The loop may be over, or nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_set, ended, code)

    threading.Thread(target=wait, name="learner", daemon=True).start()
    return ended


def _set(ended: "asyncio.Future[int]", code: int) -> None:
    if not ended.done():
        ended.set_result(code)


def _describe_exit(name: str, log: Path, code: int) -> str:
    said = log.read_text(errors="replace").strip()[-MAX_LOG_TAIL_CHARS:]
    last = said.splitlines()[-1] if said else f"its process ended with {code}"
    return last if last.startswith(name) else f"{name}: {last}"


def _start(module: str, setting: ProcessSettings, log: Path) -> "subprocess.Popen[bytes]":
    # One thread for each learner: a device's speed is a share of one core.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env=os.environ | threads,
            # Ctrl-C is for the orchestrator, which lets learners go in order.
            start_new_session=True,
        )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(setting) + b"\n")
    process.stdin.flush()
    return process


def _close_stdin(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Their standard input closes: whoever has not ended does so now."""
    for process in processes:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()


def _wait_or_kill(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    """All of them end, by force where they do not in time."""
    limit = time.monotonic() + GRACE_S
    for process in processes:
        try:
            process.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
