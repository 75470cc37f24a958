"""The process that starts learners or nodes by forking, after it has imported their modules.

Importing PyTorch takes seconds of processor time and much memory; forked processes share both.

The first line of standard input is a `Launch`; for each process that ends, an `Exit` is written to
standard output. When standard input ends, so does that of each process, which then exits; the
same happens if the launcher is killed.
"""

import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from melisma.private_files import open_private

TERMINATION_GRACE_S: Final = 5.0
"""The time that processes have to exit when the launcher's standard input has ended, unless set."""


class Child(msgspec.Struct, frozen=True):
    """A process to start: its first line of standard input, and the file for its output."""

    settings: msgspec.Raw
    log: str


class Launch(msgspec.Struct, frozen=True):
    """The processes to start; each calls `main` of a module.

    `preload` are modules that each process would import. `grace_s` is the time that processes have
    to exit when the launcher's standard input has ended.
    """

    module: str
    preload: tuple[str, ...]
    children: tuple[Child, ...]
    grace_s: float = TERMINATION_GRACE_S


class Exit(msgspec.Struct, frozen=True):
    """A process that ended; `code` is the negative number of the signal that killed it."""

    number: int
    code: int


def main() -> int:
    """Start the processes and report their exits; in each process, run its module instead."""
    launch = msgspec.json.decode(_read_line(), type=Launch)
    # What modules print goes to the log instead.
    reports = os.dup(1)
    os.dup2(2, 1)
    module = importlib.import_module(launch.module)
    for name in launch.preload:
        # Each process raises the error itself, and its log then has it.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    # The collector would write to pages that the processes share.
    gc.freeze()
    numbers: dict[int, int] = {}
    inputs: list[int] = []
    for number, child in enumerate(launch.children):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            for descriptor in (*inputs, writer, reports):
                os.close(descriptor)
            _redirect(reader, Path(child.log))
            return int(module.main() or 0)
        os.close(reader)
        numbers[pid] = number
        inputs.append(writer)
    for writer, child in zip(inputs, launch.children, strict=True):
        # A process that was killed already is reported below.
        with contextlib.suppress(BrokenPipeError):
            _write(writer, bytes(child.settings) + b"\n")
    arguments = (inputs, numbers, launch.grace_s)
    threading.Thread(target=_end_with_parent, args=arguments, daemon=True).start()
    while numbers:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        ended = Exit(numbers.pop(pid), code)
        with contextlib.suppress(BrokenPipeError):
            _write(reports, msgspec.json.encode(ended) + b"\n")
    return 0


def _redirect(standard_input: int, log: Path) -> None:
    """Make the pipe this process's standard input, and add its output to the log."""
    with open_private(log, "ab") as file:
        for source, target in ((standard_input, 0), (file.fileno(), 1), (file.fileno(), 2)):
            os.dup2(source, target)
    os.close(standard_input)


def _end_with_parent(inputs: Collection[int], pids: Collection[int], grace_s: float) -> None:
    """Close the standard input of all processes when that of this one ends; kill the late ones."""
    while os.read(0, 1024):
        pass
    for writer in inputs:
        os.close(writer)
    time.sleep(grace_s)
    for pid in list(pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _read_line() -> bytes:
    """Read the first line without buffering more of standard input, which processes inherit."""
    with open(0, "rb", buffering=0, closefd=False) as file:
        return file.readline()


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


if __name__ == "__main__":
    sys.exit(main())
