"""SQLite on a simulated disk: a `Database` whose files are in memory, by the package apsw."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from errno import EIO, ENOSPC
from itertools import count
from os import strerror
from typing import Any, Final

import apsw

from melisma.errors import DataError
from melisma.runs.journal_database import Statement
from melisma.simulation.journaling.simulated_disk import SECTOR, SimulatedDisk

POWER_SAFE: Final = 0x1000
"""A write changes no bytes beside it when the power fails, as the VFS of Unix assumes."""
CHECKPOINT_PAGES: Final = 40
"""Short runs have checkpoints, too."""
_numbers = count(1)


class SimulatedDatabase:
    """A `Database` on a simulated disk; SQLite runs as in live runs, but without shared memory."""

    def __init__(self, disk: SimulatedDisk, name: str) -> None:
        self._disk, self._name = disk, name
        self._vfs = _Vfs(disk)
        with _naming_errors(name):
            self._connection = apsw.Connection(name, vfs=self._vfs.vfs_name)
            for setting in (
                "locking_mode = EXCLUSIVE",
                "journal_mode = WAL",
                "synchronous = NORMAL",
                f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
                "wal_checkpoint(TRUNCATE)",
            ):
                self._connection.execute(f"PRAGMA {setting}")

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        with _naming_errors(self._name):
            yield from self._connection.execute(sql, tuple(parameters))

    def write(self, statements: Sequence[Statement]) -> None:
        connection = self._connection
        with _naming_errors(self._name):
            connection.execute("BEGIN IMMEDIATE")
            try:
                for sql, rows in statements:
                    for row in rows:
                        connection.execute(sql, tuple(row))
                connection.execute("COMMIT")
            except apsw.Error:
                if connection.in_transaction:
                    with suppress(apsw.Error):
                        connection.execute("ROLLBACK")
                raise

    def sync(self, mark: bytes) -> None:
        self._disk.sync(f"{self._name}-wal")
        self._disk.create(f"{self._name}-synced")
        self._disk.write(f"{self._name}-synced", 0, mark)
        self._disk.sync(f"{self._name}-synced")

    def mark(self) -> bytes:
        name = f"{self._name}-synced"
        return self._disk.read(name, 0, SECTOR) if name in self._disk.names() else b""

    def close(self) -> None:
        """Close the files; SQLite may fail to, as the process that used them has ended."""
        with suppress(apsw.Error, OSError):
            self._connection.close()
        self._vfs.unregister()


class _naming_errors:  # noqa: N801 - a context manager
    """Errors of the disk are `OSError`, and damaged content is a `DataError`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, apsw.FullError | apsw.IOError | apsw.CantOpenError):
            code = ENOSPC if isinstance(error, apsw.FullError) else EIO
            raise OSError(code, strerror(code), self._name) from error
        if isinstance(error, apsw.Error):
            raise DataError(f"{self._name} is damaged: {error}") from error


class _Vfs(apsw.VFS):
    """The file system of SQLite on a simulated disk."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.vfs_name = f"melisma-{next(_numbers)}"
        self._disk, self._epoch = disk, disk.epoch
        super().__init__(self.vfs_name, base="")

    def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802 - of SQLite
        flags[1] = flags[0]
        text = name.filename() if hasattr(name, "filename") else name
        return _VfsFile(self._disk, text or f"temporary-{next(_numbers)}")

    def xFullPathname(self, name: str) -> str:  # noqa: N802
        return name

    def xAccess(self, name: str, flags: int) -> bool:  # noqa: ARG002, N802
        return name in self._disk.names()

    def xDelete(self, name: str, sync_folder: bool) -> None:  # noqa: ARG002, N802
        if self._disk.epoch == self._epoch:
            self._disk.delete(name)


class _VfsFile:
    """A file that is open; it changes nothing once its process has ended."""

    def __init__(self, disk: SimulatedDisk, name: str) -> None:
        self._disk, self._name, self._epoch = disk, name, disk.epoch
        disk.create(name)

    @property
    def _has_ended(self) -> bool:
        return self._disk.epoch != self._epoch

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        return b"" if self._has_ended else self._disk.read(self._name, offset, amount)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._has_ended:
            return
        try:
            self._disk.write(self._name, offset, bytes(data))
        except OSError as error:
            raise apsw.FullError(str(error)) from error

    def xTruncate(self, size: int) -> None:  # noqa: N802
        if not self._has_ended:
            self._disk.truncate(self._name, size)

    def xSync(self, flags: int) -> None:  # noqa: ARG002, N802
        if self._has_ended:
            return
        try:
            self._disk.sync(self._name)
        except OSError as error:
            raise apsw.IOError(str(error)) from error

    def xFileSize(self) -> int:  # noqa: N802
        return 0 if self._has_ended else self._disk.size(self._name)

    def xClose(self) -> None:  # noqa: N802
        """Do nothing."""

    def xLock(self, level: int) -> None:  # noqa: N802
        """Do nothing: one process uses the file."""

    def xUnlock(self, level: int) -> None:  # noqa: N802
        """Do nothing: one process uses the file."""

    def xCheckReservedLock(self) -> bool:  # noqa: N802
        return False

    def xFileControl(self, operation: int, pointer: int) -> bool:  # noqa: ARG002, N802
        return False

    def xSectorSize(self) -> int:  # noqa: N802
        return SECTOR

    def xDeviceCharacteristics(self) -> int:  # noqa: N802
        return POWER_SAFE
