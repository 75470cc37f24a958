"""Learners and peer nodes as processes of this machine, one for each device.

A child process ends when its parent ends: it watches its standard input, which the parent keeps
open (`exit_with_parent`). Its output goes to a log file.
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

from melisma.backports import RUN_MODULE
from melisma.private_files import make_private_folder, open_private
from melisma.text import visible

MAX_REASON_CHARS = 400
TERMINATION_GRACE_S = 5.0
OnExit = Callable[[int, str], None]


class ProcessSettings(Protocol):
    """The settings of a process, sent to it as JSON."""

    @property
    def name(self) -> str:
        """The name of the learner or node."""


@contextlib.asynccontextmanager
async def run_processes(
    settings: Sequence[ProcessSettings],
    logs: Path,
    on_exit: OnExit,
    module: str = "melisma.live.learner.learner_process",
) -> AsyncIterator[None]:
    """Run a process for each settings; call `on_exit` with its number and a reason if it ends."""
    paths = [logs / f"{number}.log" for number in range(len(settings))]
    processes = [_start(module, *item) for item in zip(settings, paths, strict=True)]

    async def watch(number: int, process: "subprocess.Popen[bytes]") -> None:
        code = await _exit_code(process)
        on_exit(number, _describe_exit(settings[number].name, paths[number], code))

    watches = [asyncio.create_task(watch(*item)) for item in enumerate(processes)]
    try:
        yield
    finally:
        for task in watches:
            task.cancel()
        _close_stdin(processes)
        await asyncio.to_thread(_wait_or_kill, processes)


def exit_with_parent(before_exit: Callable[[], object] = lambda: None) -> None:
    """Exit this child process when its parent has ended; call `before_exit` before."""

    def watch() -> None:
        # Not `sys.stdin`: its lock must not be held by a thread when the interpreter exits.
        while os.read(0, 1024):
            pass
        before_exit()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _start(module: str, settings: ProcessSettings, log: Path) -> "subprocess.Popen[bytes]":
    # One thread for each process: a device's speed is a share of one core.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    make_private_folder(log.parent)
    with open_private(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, *RUN_MODULE, module],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env=os.environ | threads,
            # Ctrl-C reaches only this process, which then ends the others in order.
            start_new_session=True,
        )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(settings) + b"\n")
    process.stdin.flush()
    return process


def _exit_code(process: "subprocess.Popen[bytes]") -> "asyncio.Future[int]":
    """Wait for the exit code in a daemon thread, which does not block interpreter shutdown."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()

    def wait() -> None:
        code = process.wait()
        # The loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_set_result, future, code)

    threading.Thread(target=wait, name="process-exit", daemon=True).start()
    return future


def _set_result(future: "asyncio.Future[int]", code: int) -> None:
    if not future.done():
        future.set_result(code)


def _describe_exit(name: str, log: Path, code: int) -> str:
    """Return the last line of the log, or the exit code if the log is empty."""
    tail = log.read_text(errors="replace").strip()[-MAX_REASON_CHARS:]
    ending = f"ended with exit code {code}" if code >= 0 else f"was killed (signal {-code})"
    reason = visible(tail.splitlines()[-1]) if tail else f"its process {ending}"
    return reason if reason.startswith(name) else f"{name}: {reason}"


def _close_stdin(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Close standard input, on which a process that is still running exits."""
    for process in processes:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()


def _wait_or_kill(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Wait for all processes, and kill those that exceed the grace time."""
    limit = time.monotonic() + TERMINATION_GRACE_S
    for process in processes:
        try:
            process.wait(max(0.0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
