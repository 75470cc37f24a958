"""Turns of the processes of one device: only one of them computes, whatever task it works for."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from melisma.private_files import FILE_MODE


class Turns:
    """The turns of one process, by a lock on a file that all processes of the device share.

    Without a file the process is the only one. The lock of a process that is killed ends with it.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._handle = None if path is None else os.open(path, os.O_RDWR | os.O_CREAT, FILE_MODE)

    @contextmanager
    def take(self) -> Iterator[float]:
        """Wait for a turn; yield the seconds that this took, and end the turn at the end."""
        if self._handle is None:
            yield 0.0
            return
        began = time.monotonic()
        fcntl.flock(self._handle, fcntl.LOCK_EX)
        try:
            yield time.monotonic() - began
        finally:
            fcntl.flock(self._handle, fcntl.LOCK_UN)
