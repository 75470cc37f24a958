"""Results that wait to be fetched: in memory while there is room, then on disk."""

import mmap
import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from melisma.axon.message import Buffer, buffers_bytes
from melisma.errors import StorageError


class Kept:
    """One waiting result."""

    def __init__(self, spool: "Spool", data: bytes | None, path: Path | None, size: int) -> None:
        self._spool = spool
        self._data = data
        self._path = path
        self.size = size

    def buffers(self) -> list[Buffer]:
        """Its bytes; from disk they are mapped, not read."""
        if self._path is None:
            return [self._data or b""]
        try:
            with self._path.open("rb") as file:
                return [memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))]
        except (OSError, ValueError) as error:
            raise StorageError(f"the result cannot be read back: {error}") from error

    def discard(self) -> None:
        """Give its room back."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._spool.reserve(disk=-self.size)
        elif self._data is not None:
            self._spool.reserve(memory=-self.size)
        self._data = self._path = None


class Spool:
    """Room for waiting results, with a limit in memory and one on disk."""

    def __init__(self, max_memory_bytes: int, max_disk_bytes: int, directory: Path | None = None):
        self._max_memory_bytes = max_memory_bytes
        self._max_disk_bytes = max_disk_bytes
        self._parent = directory
        self._directory: Path | None = None
        self._lock = threading.Lock()
        self.memory_bytes = 0
        self.disk_bytes = 0

    def reserve(self, *, memory: int = 0, disk: int = 0) -> bool:
        """Take room (or give it back) if there is as much; called from several threads."""
        with self._lock:
            fits = (
                self.memory_bytes + memory <= self._max_memory_bytes
                and self.disk_bytes + disk <= self._max_disk_bytes
            )
            if fits:
                self.memory_bytes += memory
                self.disk_bytes += disk
            return fits

    def keep(self, buffers: Sequence[Buffer]) -> Kept:
        """Keep a copy; a `StorageError` says what was full."""
        size = buffers_bytes(buffers)
        if self.reserve(memory=size):
            return Kept(self, b"".join(buffers), None, size)
        if not self.reserve(disk=size):
            raise StorageError(
                f"the result ({size} bytes) was not kept: results waiting on disk take "
                f"{self.disk_bytes} of {self._max_disk_bytes} bytes (keep_disk_bytes)"
            )
        try:
            return Kept(self, None, self._write(buffers), size)
        except OSError as error:
            self.reserve(disk=-size)
            where = self._directory or self._parent or "the temporary directory"
            raise StorageError(
                f"the result ({size} bytes) was not kept: {error.strerror} in {where}"
            ) from error

    def close(self) -> None:
        """Remove what is on disk."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _write(self, buffers: Sequence[Buffer]) -> Path:
        with self._lock:
            if self._directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix="axon-", dir=self._parent))
        handle, name = tempfile.mkstemp(dir=self._directory)
        path = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                for buffer in buffers:
                    file.write(buffer)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path
