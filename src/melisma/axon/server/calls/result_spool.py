"""Storage for results that wait to be fetched, in memory first, then on disk.

Files are unnamed and memory-mapped, so that they vanish with the process, however it ends.
"""

import mmap
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from melisma.axon.codec.message import Buffer, buffers_bytes
from melisma.errors import StorageError


class SpooledResult:
    """One waiting result."""

    def __init__(self, spool: "ResultSpool", data: bytes | mmap.mmap, size: int) -> None:
        self._spool = spool
        self._data: bytes | mmap.mmap | None = data
        self.size_bytes = size

    def buffers(self) -> list[Buffer]:
        """Return the bytes; those on disk are mapped, not read."""
        return [memoryview(self._data or b"")]

    def discard(self) -> None:
        """Free the storage; a transfer in progress still completes."""
        if isinstance(self._data, mmap.mmap):
            self._spool.reserve(disk=-self.size_bytes)
        elif self._data is not None:
            self._spool.reserve(memory=-self.size_bytes)
        self._data = None


class ResultSpool:
    """Storage for waiting results, limited in memory and on disk."""

    def __init__(self, max_memory_bytes: int, max_disk_bytes: int, directory: Path | None = None):
        self._max_memory_bytes = max_memory_bytes
        self._max_disk_bytes = max_disk_bytes
        self._directory = directory
        self._lock = threading.Lock()
        self.memory_bytes = 0
        self.disk_bytes = 0

    def reserve(self, *, memory: int = 0, disk: int = 0) -> bool:
        """Reserve bytes (or free them, if negative) and return whether they fit; thread-safe."""
        with self._lock:
            fits = (
                self.memory_bytes + memory <= self._max_memory_bytes
                and self.disk_bytes + disk <= self._max_disk_bytes
            )
            if fits:
                self.memory_bytes += memory
                self.disk_bytes += disk
            return fits

    def keep(self, buffers: Sequence[Buffer]) -> SpooledResult:
        """Store a copy; raise `StorageError` if there is no space."""
        size = buffers_bytes(buffers)
        if self.reserve(memory=size):
            return SpooledResult(self, b"".join(buffers), size)
        if not self.reserve(disk=size):
            raise StorageError(
                f"no space for the result ({size} bytes): waiting results use {self.disk_bytes} of "
                f"{self._max_disk_bytes} bytes on disk; raise keep_disk_bytes or fetch results"
            )
        try:
            return SpooledResult(self, self._write(buffers), size)
        except OSError as error:
            self.reserve(disk=-size)
            directory = self._directory or tempfile.gettempdir()
            raise StorageError(
                f"no space for the result ({size} bytes): {error.strerror} in {directory}; "
                "free space there, or set TMPDIR to another directory"
            ) from error

    def _write(self, buffers: Sequence[Buffer]) -> mmap.mmap:
        with tempfile.TemporaryFile(dir=self._directory) as file:
            for buffer in buffers:
                file.write(buffer)
            file.flush()
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
