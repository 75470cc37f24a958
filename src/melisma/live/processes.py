"""Learners as processes of this machine, each standing for a device of the fleet.

A learner ends with this process, however that ends: its standard input is held open from here.
What it writes goes to a file of its own.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from melisma.live.agent import Setting

LAST_WORDS = 400
GRACE_S = 5.0
Gone = Callable[[int, str], None]


@contextlib.asynccontextmanager
async def learners(settings: Sequence[Setting], logs: Path, gone: Gone) -> AsyncIterator[None]:
    """Run a process for each setting; `gone` is told the number of one that ends, and why."""
    processes = [
        _started(setting, logs / f"{number}.log") for number, setting in enumerate(settings)
    ]
    loop = asyncio.get_running_loop()
    # A thread for each process, and none of those that the loop lends to others.
    threads = ThreadPoolExecutor(max_workers=len(processes), thread_name_prefix="learner")

    async def watched(number: int, process: "subprocess.Popen[bytes]") -> None:
        code = await loop.run_in_executor(threads, process.wait)
        gone(number, _last_words(settings[number].name, logs / f"{number}.log", code))

    watches = [asyncio.create_task(watched(*each)) for each in enumerate(processes)]
    try:
        yield
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.to_thread(_ended, processes)
        threads.shutdown(wait=False)


def _last_words(name: str, log: Path, code: int) -> str:
    said = log.read_text(errors="replace").strip()[-LAST_WORDS:]
    last = said.splitlines()[-1] if said else f"its process ended with {code}"
    return last if last.startswith(name) else f"{name}: {last}"


def _started(setting: Setting, log: Path) -> "subprocess.Popen[bytes]":
    # One thread for each learner: a device's speed is a share of one core.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "melisma.live.agent"],
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


def _ended(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    """All of them end: by themselves, or because their standard input closes, or by force."""
    for process in processes:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
    for process in processes:
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
