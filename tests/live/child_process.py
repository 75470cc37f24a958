"""Learners and nodes as single processes, and those that a run of this process has started."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil

from melisma.live.processes import LAUNCHER


def start_process(module: str, settings: Any, log: Path | None = None) -> "subprocess.Popen[bytes]":
    """Start a process with these settings, and its output in a file or a pipe.

    It ends when its standard input is closed.
    """
    output: Any = subprocess.PIPE if log is None else log.open("wb")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
    )
    if log is not None:
        output.close()
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(settings) + b"\n")
    process.stdin.flush()
    return process


def launched_processes() -> list[psutil.Process]:
    """Return the learners or nodes of runs of this process, in the order of their start."""
    launchers = [
        child for child in psutil.Process().children() if LAUNCHER in " ".join(child.cmdline())
    ]
    started = [process for launcher in launchers for process in launcher.children()]
    return sorted(started, key=lambda process: (process.create_time(), process.pid))
