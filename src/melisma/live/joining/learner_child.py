"""The learner process as a child of the supervisor: its settings, its reports, and its end."""

import contextlib
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from melisma.backports import RUN_MODULE
from melisma.live.joining.use_limits import (
    NICENESS,
    PASSIVE_THREADS,
    THREAD_VARIABLES,
    UseLimits,
    available_cores,
)
from melisma.live.learner.device_reports import Ended, LearnerReport, read_report
from melisma.live.learner.learner_settings import LEARNER_MODULE, LearnerSettings
from melisma.text import visible

STOP_S: Final = 6.0
"""Time to leave the run, after which the process is killed."""
MAX_LOG_TAIL_BYTES: Final = 4000


class LearnerChild:
    """One learner process; call `stop` in any case."""

    def __init__(
        self,
        settings: LearnerSettings,
        log: Path,
        limits: UseLimits,
        module: str = LEARNER_MODULE,
    ) -> None:
        self._log, self._reports = log, queue.SimpleQueue[LearnerReport]()
        cores = limits.cores(available_cores())
        self._process = _start(module, log, len(cores))
        _restrict(self._process.pid, cores, limits)
        assert self._process.stdin is not None
        # A process that has failed already says why in its log.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(settings) + b"\n")
            self._process.stdin.flush()
        threading.Thread(target=self._read, name="reports", daemon=True).start()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def next_report(self, timeout_s: float) -> LearnerReport | None:
        """Return the next report, None after `timeout_s`; `Ended` is the last one."""
        try:
            return self._reports.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def note_slowness(self, reasons: Sequence[str]) -> None:
        """Tell the process why this device runs slower, or that it no longer does."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write("; ".join(reasons).encode() + b"\n")
            self._process.stdin.flush()

    def stop(self) -> None:
        """Let the process leave the run and end; kill it if it takes too long."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            # Also if the owner pressed Ctrl-C again.
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        """Queue all reports; `Ended` comes last in any case, and once."""
        ended: Ended | None = None
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    report = read_report(line)
                except msgspec.DecodeError:
                    continue
                if isinstance(report, Ended):
                    ended = report
                else:
                    self._reports.put(report)
        code = self._process.wait()
        self._reports.put(ended or Ended("failed", self._describe_exit(code)))

    def _describe_exit(self, code: int) -> str:
        """Return the signal that ended the process, or the last line of its log."""
        if code < 0:
            hint = " (perhaps because memory ran out)" if code == -9 else ""
            return f"the learner process was ended by signal {-code}{hint}"
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - MAX_LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
        return visible(lines[-1]) if lines else f"the learner process ended with code {code}"


def _start(module: str, log: Path, core_count: int) -> "subprocess.Popen[bytes]":
    threads = dict.fromkeys(THREAD_VARIABLES, str(core_count))
    if log.is_file() and log.stat().st_size:
        # The messages of a process that failed stay until the next one fails.
        log.replace(log.with_suffix(f"{log.suffix}.1"))
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, *RUN_MODULE, module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=handle,
            env=PASSIVE_THREADS | os.environ | threads,
            # Ctrl-C reaches only the supervisor, which then lets the learner leave the run.
            start_new_session=True,
        )
    finally:
        os.close(handle)


def _restrict(pid: int, cores: "set[int]", limits: UseLimits) -> None:
    """Restrict a process to some cores, at low priority, if the limits say so."""
    if limits.core_share >= 1:
        return
    # It may have ended.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(pid, cores)
