"""Learners and peer nodes as processes of this machine, one for each device.

The launcher forks them, and they end when this process ends: each watches its standard input
(`exit_with_parent`). Their output goes to log files.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from pathlib import Path
from typing import Final, Protocol

import msgspec

from melisma.backports import RUN_MODULE, timeout
from melisma.learning.trainer import Trainer
from melisma.live.joining.use_limits import THREAD_VARIABLES
from melisma.live.launcher import TERMINATION_GRACE_S, Child, Exit, Launch
from melisma.live.learner.learner_settings import LEARNER_MODULE
from melisma.private_files import make_private_folder, open_private
from melisma.text import visible

MAX_LOG_TAIL_CHARS: Final = 400
MIN_FREE_BYTES: Final = 4096
"""With less free space than this, a process may have ended without a line in its log."""
LAUNCHER: Final = "melisma.live.launcher"
LAUNCHER_LOG: Final = "launcher.log"
KILL_GRACE_S: Final = 5.0
"""The time that the launcher has to end after it has killed the other processes."""
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
    *,
    module: str = LEARNER_MODULE,
    trainer: Trainer | None = None,
    grace_s: float = TERMINATION_GRACE_S,
) -> AsyncIterator[None]:
    """Run a process for each settings; call `on_exit` with its number and a reason if it ends.

    An error of `on_exit` is raised at the end. Processes that still run at the end have `grace_s`
    to exit.
    The module of `trainer`, if it is one of this package, is imported once for all processes.
    """
    paths = [logs / f"{number}.log" for number in range(len(settings))]
    # A resumed run adds to the logs of its first part.
    starts = [path.stat().st_size if path.exists() else 0 for path in paths]
    running = dict(enumerate(settings))

    def report(number: int, code: int) -> None:
        tail = _tail(paths[number], starts[number])
        on_exit(number, _describe_exit(running.pop(number).name, logs, tail, code))

    children = (
        Child(msgspec.Raw(msgspec.json.encode(item)), str(path))
        for item, path in zip(settings, paths, strict=True)
    )
    launch = Launch(module, _modules_to_preload(trainer), tuple(children), grace_s)
    launcher = await _start(launch, logs)
    watch = asyncio.create_task(_watch(launcher, running, report))
    try:
        yield
    finally:
        watch.cancel()
        await _end(launcher, grace_s)
        await asyncio.wait([watch])
        if not watch.cancelled():
            watch.result()


def exit_with_parent(
    before_exit: Callable[[], object] = lambda: None,
    on_line: Callable[[bytes], object] = lambda _: None,
) -> None:
    """Exit this child process when its parent has ended; call `before_exit` before.

    `on_line` receives each line that the parent writes until then.
    """

    def watch() -> None:
        rest = b""
        # Not `sys.stdin`: its lock must not be held by a thread when the interpreter exits.
        while piece := os.read(0, 1024):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                on_line(line)
        before_exit()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def _modules_to_preload(trainer: Trainer | None) -> tuple[str, ...]:
    """Return the modules that the launcher imports; macOS does not support PyTorch after a fork."""
    name = type(trainer).__module__
    own = name.startswith("melisma.") and sys.platform == "linux"
    return (name,) if own else ()


async def _start(launch: Launch, logs: Path) -> asyncio.subprocess.Process:
    # One thread for each process: a device's speed is a share of one core.
    threads = dict.fromkeys(THREAD_VARIABLES, "1")
    make_private_folder(logs)
    with open_private(logs / LAUNCHER_LOG, "ab") as log:
        launcher = await asyncio.create_subprocess_exec(
            sys.executable,
            *RUN_MODULE,
            LAUNCHER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | threads,
            # Ctrl-C reaches only this process, which then ends the others in order.
            start_new_session=True,
        )
    assert launcher.stdin is not None
    launcher.stdin.write(msgspec.json.encode(launch) + b"\n")
    return launcher


async def _watch(
    launcher: asyncio.subprocess.Process,
    running: Collection[int],
    report: Callable[[int, int], None],
) -> None:
    """Report each process that ends, and all others if the launcher ends."""
    assert launcher.stdout is not None
    while line := await launcher.stdout.readline():
        ended = msgspec.json.decode(line, type=Exit)
        report(ended.number, ended.code)
    code = await launcher.wait()
    for number in list(running):
        report(number, code)


async def _end(launcher: asyncio.subprocess.Process, grace_s: float) -> None:
    """Close the launcher's standard input, on which all processes exit, and wait for them."""
    assert launcher.stdin is not None
    launcher.stdin.close()
    try:
        async with timeout(grace_s + KILL_GRACE_S):
            await launcher.wait()
    except TimeoutError:
        launcher.kill()
        await launcher.wait()


def _tail(log: Path, start: int) -> str:
    """Return the end of what was written to the log since it had `start` bytes."""
    return log.read_bytes()[start:].decode(errors="replace").strip()[-MAX_LOG_TAIL_CHARS:]


def _describe_exit(name: str, logs: Path, tail: str, code: int) -> str:
    """Return the last line of the log, or the exit code if the log is empty."""
    ending = f"ended with exit code {code}" if code >= 0 else f"was killed (signal {-code})"
    if not tail and shutil.disk_usage(logs).free < MIN_FREE_BYTES:
        ending += f": no space is left on the disk of {logs.parent}"
    reason = visible(tail.splitlines()[-1]) if tail else f"its process {ending}"
    return reason if reason.startswith(name) else f"{name}: {reason}"
