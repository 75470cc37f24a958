"""The SQLite file of a journal, with the errors of the disk told apart from damaged content.

SQLite runs in WAL mode. A transaction that was written survives a killed process; `sync` lets all
that was written before survive a power cut, too.

Linux forgets what it could not write to the disk: a second `fsync` succeeds and flushes nothing. So
a `sync` that failed is not repeated, and what an earlier process has left in the log is copied from
there before it is relied on.
"""

import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Any, Final, Protocol
from urllib.parse import quote
from zlib import crc32

from melisma.errors import DataError, SettingError
from melisma.private_files import FILE_MODE

MARK: Final = Struct("<QI")
"""The number of writes on disk, and its checksum."""
Rows = Iterable[Sequence[Any]]
Statement = tuple[str, Rows]
"""SQL and the rows of parameters that it is executed with, once for each row."""
# Of SQLite: the disk is full; it reports an error; the file cannot be opened, is in use by another
# program, or cannot be written.
FULL, IO_ERROR, CANNOT_OPEN, BUSY, READ_ONLY = 13, 10, 14, 5, 8
DISK_ERRORS: Final = {
    FULL: errno.ENOSPC,
    IO_ERROR: errno.EIO,
    CANNOT_OPEN: errno.EACCES,
    BUSY: errno.EBUSY,
    READ_ONLY: errno.EROFS,
}
# Python 3.10 has no codes for errors.
DISK_MESSAGES: Final = {
    "database or disk is full": FULL,
    "disk I/O error": IO_ERROR,
    "unable to open database file": CANNOT_OPEN,
    "database is locked": BUSY,
    "attempt to write a readonly database": READ_ONLY,
}


class Database(Protocol):
    """A file of tables. Errors of the disk are `OSError`, damaged content is a `DataError`."""

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows that a query returns."""

    def write(self, statements: Sequence[Statement]) -> None:
        """Execute statements in one transaction: all of them take effect, or none."""

    def sync(self, mark: bytes) -> None:
        """Return when all that was written is on disk, and then the mark; from any thread.

        After an error it must not be called again.
        """

    def mark(self) -> bytes:
        """Return the latest mark; empty if there is none."""

    def close(self) -> None:
        """Close the file."""


class SqliteDatabase:
    """A `Database` in a file of this machine.

    To open and close one that is not `writable` changes nothing. Otherwise SQLite deletes the part
    of a log behind damage in it: look for damage before.
    """

    def __init__(self, path: Path, *, writable: bool = True) -> None:
        self._path, self._log = path, -1
        self._mark = path.with_name(f"{path.name}-synced")
        uri = f"file:{quote(str(path.absolute()))}?mode={'rw' if writable else 'ro'}"
        with self._naming_errors():
            self._connection = sqlite3.connect(
                uri, uri=True, isolation_level=None, check_same_thread=False
            )
            if writable:
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        with self._naming_errors():
            # A reader that stops early would close the cursor, perhaps after the file: hence `map`.
            yield from map(tuple, self._connection.execute(sql, parameters))

    def write(self, statements: Sequence[Statement]) -> None:
        connection = self._connection
        with self._naming_errors():
            connection.execute("BEGIN IMMEDIATE")
            try:
                for sql, rows in statements:
                    for row in rows:
                        connection.execute(sql, row)
                connection.execute("COMMIT")
            except sqlite3.Error:
                # SQLite has ended the transaction already after some errors.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def sync(self, mark: bytes) -> None:
        # SQLite reads the log up to the first frame that is not whole: it need only be flushed.
        if self._log < 0:
            self._log = os.open(f"{self._path}-wal", os.O_RDWR)
        os.fdatasync(self._log)
        # In place, as the disk may be full. A mark that is lost in a power cut is an older one,
        # which is right, too.
        handle = os.open(self._mark, os.O_WRONLY | os.O_CREAT, FILE_MODE)
        try:
            os.pwrite(handle, mark, 0)
        finally:
            os.close(handle)

    def mark(self) -> bytes:
        return self._mark.read_bytes() if self._mark.exists() else b""

    def close(self) -> None:
        if self._log >= 0:
            os.close(self._log)
            self._log = -1
        with self._naming_errors():
            self._connection.close()

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise database_error(error, self._path) from error


class SyncedWrites:
    """How many writes of a database are on disk for certain, in a mark outside of its log.

    SQLite takes damage in the middle of its log for the end of it: the mark tells that writes are
    missing. It is read before the number of writes.
    """

    def __init__(self, path: Path, database: Database) -> None:
        self._path, self._database = path, database
        self._lock = Lock()
        self._error: OSError | None = None
        self._marked = self._read()

    def _read(self) -> int:
        content = self._database.mark()
        if not content:
            return 0
        writes, checksum = MARK.unpack(content) if len(content) == MARK.size else (0, -1)
        if checksum != _sum_of_mark(writes):
            raise DataError(
                f"{self._path} is damaged: the number of its writes on disk cannot be read"
            )
        return int(writes)

    def check(self, writes: int) -> None:
        """Raise `DataError` if the database has fewer writes than were on disk."""
        if writes < self._marked:
            raise DataError(
                f"{self._path} is damaged: it has {writes} writes, but {self._marked} were on disk"
            )

    def require_health(self) -> None:
        """Raise the error of the first `sync` that failed, if one has."""
        if self._error is not None:
            raise self._error

    def sync(self, count: Callable[[], int]) -> None:
        """Return when all that was written is on disk; threads that wait are served by one flush.

        `count` returns the number of writes so far. Raises `OSError` if the disk fails, and from
        then on: nothing can be relied on any more.
        """
        written = count()
        with self._lock:
            self.require_health()
            if written <= self._marked:
                return
            writes = count()
            try:
                self._database.sync(MARK.pack(writes, _sum_of_mark(writes)))
            except OSError as error:
                self._error = error
                raise
            self._marked = writes


def _sum_of_mark(writes: int) -> int:
    return crc32(writes.to_bytes(8, "little"))


class LockedDatabase(SqliteDatabase):
    """A `SqliteDatabase` whose folder no other process uses meanwhile.

    `check` raises an error if the content cannot be used; then nothing is changed.
    """

    def __init__(self, path: Path, check: Callable[[Database], object] | None = None) -> None:
        self._folder = lock_folder(path.parent)
        try:
            if check is not None:
                with closing(SqliteDatabase(path, writable=False)) as database:
                    check(database)
            super().__init__(path)
        except BaseException:
            os.close(self._folder)
            raise

    def close(self) -> None:
        super().close()
        os.close(self._folder)


def lock_folder(folder: Path) -> int:
    """Lock a folder until the returned handle is closed; `SettingError` if another process has it.

    A killed process leaves no lock behind.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise SettingError(
            f"{folder} is in use by another process, which may be running it: end that one first"
        ) from None
    return handle


def database_error(error: sqlite3.Error, path: Path) -> OSError | DataError:
    """Return the error of the disk behind one of SQLite, or that the content is damaged."""
    code = getattr(error, "sqlite_errorcode", DISK_MESSAGES.get(str(error), 0)) & 0xFF
    if code in DISK_ERRORS:
        return OSError(DISK_ERRORS[code], os.strerror(DISK_ERRORS[code]), str(path))
    return DataError(f"{path} is damaged: {error}")
