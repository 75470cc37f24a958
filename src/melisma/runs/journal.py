"""The journal of a run, or of a service: one SQLite file that a killed process goes on from.

It holds every step but those of `UNRECORDED` events, in order, and named records: what the run was
started with, the sessions of learners, the updates on disk, and a snapshot of the machine. A step
and the records that belong to it are written together, or not at all. The trace is an export.

A killed process loses nothing that was written. What was written before `sync` survives a power
cut, too, so nothing that depends on a step leaves this machine before.

Each step has a checksum over itself and all steps before it, and the head has a sum over all
records, so that damaged, lost or exchanged ones are noticed. Nothing is repaired: a damaged journal
raises `DataError`.
"""

import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, NoReturn, TypeVar
from urllib.parse import quote
from zlib import crc32

from melisma.atomic import write_atomic
from melisma.cycle.events import ProgressReported
from melisma.errors import DataError, SettingError
from melisma.private_files import open_private
from melisma.runs.folder import JOURNAL_FILE, TRACE_FILE, check_is_run_folder
from melisma.runs.journal_database import Database, LockedDatabase, Statement, SyncedWrites
from melisma.runs.trace import HEADER_LINE, STEPS, Step, StepCodec, decode_steps

UNRECORDED: Final = (ProgressReported,)
"""Events that decide nothing."""
COLUMNS: Final = "content BLOB NOT NULL, checksum INTEGER NOT NULL"
TABLES: Final = (
    f"CREATE TABLE steps (id INTEGER PRIMARY KEY, {COLUMNS})",
    f"CREATE TABLE records (name TEXT PRIMARY KEY, {COLUMNS}) WITHOUT ROWID",
    "CREATE TABLE head (writes INTEGER NOT NULL, steps INTEGER NOT NULL, records INTEGER NOT NULL)",
    "INSERT INTO head VALUES (1, 0, 0)",
)
Connect = Callable[[Path], Database]
StepT = TypeVar("StepT")
JournalT = TypeVar("JournalT", bound="StepJournal[Any]")


class StepJournal(Generic[StepT]):
    """A journal of steps of one type; a subclass names its file, its codec and further tables.

    `subject` is what it is the journal of. `version` changes when another version of Melisma would
    misread it.
    """

    file: ClassVar[str]
    subject: ClassVar[str]
    application: ClassVar[int]
    version: ClassVar[int] = 1
    tables: ClassVar[tuple[str, ...]] = ()
    codec: StepCodec[StepT]

    def __init__(self, path: Path, database: Database) -> None:
        self.path, self._database = path, database
        self._changes: dict[str, bytes | None] = {}
        self._synced = SyncedWrites(path, database)
        heads = list(database.read("SELECT writes, steps, records FROM head"))
        self._writes, self._last, total = heads[0] if len(heads) == 1 else (0, -1, 0)
        rows = database.read("SELECT id, checksum FROM steps ORDER BY id DESC LIMIT 1")
        last, self._checksum = _first(rows, (0, 0))
        self._records: dict[str, int] = dict(database.read("SELECT name, checksum FROM records"))
        # Damage may have changed the type of a value, too.
        numbers = (self._writes, self._last, total, self._checksum, *self._records.values())
        if not all(isinstance(number, int) for number in numbers):
            self._refuse("a checksum or a count in it is not a number")
        if last != self._last:
            self._refuse(f"it has {last} steps, but its head says {self._last}")
        if self._total() != total:
            self._refuse("its records are not those that were written")
        self._synced.check(self._writes)

    def _refuse(self, problem: str) -> NoReturn:
        raise DataError(f"{self.path} is damaged: {problem}")

    @classmethod
    def create(cls: type[JournalT], folder: Path, connect: Connect = LockedDatabase) -> JournalT:
        """Create a new journal."""
        path = folder / cls.file
        open_private(path, "xb").close()
        return cls.create_in(path, connect(path))

    @classmethod
    def create_in(cls: type[JournalT], path: Path, database: Database) -> JournalT:
        """Create a new journal in an empty database."""
        marks = f"application_id = {cls.application}", f"user_version = {cls.version}"
        tables = [*TABLES, *cls.tables, *(f"PRAGMA {mark}" for mark in marks)]
        database.write([(sql, [()]) for sql in tables])
        return cls(path, database)

    @classmethod
    def open(cls: type[JournalT], folder: Path) -> JournalT:
        """Open the journal in a folder; `DataError` if there is none that can be read.

        Then nothing is changed.
        """
        path = folder / cls.file
        cls.check_folder(folder)
        database = LockedDatabase(path, check=partial(cls.open_in, path))
        try:
            return cls.open_in(path, database)
        except BaseException:
            database.close()
            raise

    @classmethod
    def check_folder(cls, folder: Path) -> None:
        """Raise `SettingError` unless a folder has such a journal."""
        if not (folder / cls.file).is_file():
            raise SettingError(f"{folder} has no {cls.file}, the journal of {cls.subject}")

    @classmethod
    def open_in(cls: type[JournalT], path: Path, database: Database) -> JournalT:
        """Open the journal in a database; raise `DataError` if there is none that can be read."""
        application, version = (
            _first(database.read(f"PRAGMA {name}"), (0,))[0]
            for name in ("application_id", "user_version")
        )
        if application != cls.application:
            raise DataError(f"{path} is not the journal of {cls.subject}")
        if version != cls.version:
            raise DataError(
                f"{path} has format version {version}, but this version of Melisma reads "
                f"{cls.version}; resume the run with the version that wrote it"
            )
        return cls(path, database)

    @property
    def last(self) -> int:
        """The number of the last step; steps are counted from 1."""
        return int(self._last)

    def checksum(self, number: int) -> int:
        """Return the checksum over all steps up to a number; 0 if there is no such step."""
        rows = self._database.read("SELECT checksum FROM steps WHERE id = ?", (number,))
        (checksum,) = _first(rows, (0,))
        if not isinstance(checksum, int):
            self._refuse(f"step {number} is not the one that was written")
        return checksum

    def put(self, name: str, content: bytes | None) -> None:
        """Set a record, or delete it, with the next `write`."""
        self._changes[name] = content

    def statements(self, number: int, step: StepT) -> list[Statement]:  # noqa: ARG002
        """Return what is written to further tables together with a step."""
        return []

    def write(self, *steps: StepT) -> None:
        """Write steps, and the records that were set since the last `write`.

        A write that fails raises `OSError` and changes nothing: it can be repeated, unless `sync`
        has failed.
        """
        self._synced.require_health()
        rows, further, checksum = [], list[Statement](), self._checksum
        for number, step in enumerate(steps, self._last + 1):
            content = self.codec.encode(step)
            checksum = crc32(content, checksum)
            rows.append((number, content, checksum))
            further += self.statements(number, step)
        kept = [(n, it, _sum_of(n, it)) for n, it in self._changes.items() if it is not None]
        gone = [(name,) for name, content in self._changes.items() if content is None]
        before = dict(self._records)
        self._records |= {name: total for name, _, total in kept}
        for (name,) in gone:
            self._records.pop(name, None)
        head = self._writes + 1, self._last + len(rows), self._total()
        try:
            self._database.write(
                [
                    ("INSERT INTO steps VALUES (?, ?, ?)", rows),
                    ("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", kept),
                    ("DELETE FROM records WHERE name = ?", gone),
                    ("UPDATE head SET writes = ?, steps = ?, records = ?", [head]),
                    *further,
                ]
            )
        except BaseException:
            self._records = before
            raise
        self._changes = {}
        self._writes, self._last, self._checksum = *head[:2], checksum

    def _total(self) -> int:
        """Return the sum of the checksums of all records."""
        return sum(self._records.values()) & 0xFFFFFFFF

    def sync(self) -> None:
        """Return when all that was written is on disk; from any thread.

        Raises `OSError` if the disk fails, and from then on: nothing can be relied on any more.
        """
        self._synced.sync(lambda: self._writes)

    def steps(self, after: int = 0) -> Iterator[StepT]:
        """Yield the steps after a number; raise `DataError` if one is damaged."""
        return self.codec.decode(self.lines(after), str(self.path), start=after + 1)

    def lines(self, after: int = 0) -> Iterator[bytes]:
        """Yield the steps after a number as lines of a trace."""
        checksum = self.checksum(after)
        rows = self._database.read(
            "SELECT id, content, checksum FROM steps WHERE id > ? ORDER BY id", (after,)
        )
        for expected, (number, content, known) in enumerate(rows, after + 1):
            # Damage may have changed the type, too.
            if isinstance(content, bytes):
                checksum = crc32(content, checksum)
            if number != expected or checksum != known or not isinstance(content, bytes):
                self._refuse(f"step {expected} is not the one that was written")
            yield content

    def get(self, name: str) -> bytes | None:
        """Return a record, None if there is none; `DataError` if it is damaged."""
        return dict(self.records(name)).get(name)

    def records(self, prefix: str) -> list[tuple[str, bytes]]:
        """Return the records whose names begin with `prefix`, by name."""
        rows = self._database.read(
            "SELECT name, content, checksum FROM records WHERE substr(name, 1, ?) = ? "
            "ORDER BY name",
            (len(prefix), prefix),
        )
        found = []
        for name, content, known in rows:
            if not isinstance(content, bytes) or _sum_of(name, content) != known:
                self._refuse(f"record {name} is not as it was written")
            found.append((name, content))
        return found

    def delete(self) -> None:
        """Delete the files of a journal that was closed."""
        for path in self.path.parent.glob(f"{self.path.name}*"):
            path.unlink()

    def close(self) -> None:
        """Close the file."""
        self._database.close()


class Journal(StepJournal[Step]):
    """The journal of one run."""

    file = JOURNAL_FILE
    subject = "a run"
    application = 0x4D656C69
    codec = STEPS

    @classmethod
    def check_folder(cls, folder: Path) -> None:
        check_is_run_folder(folder)

    def export_trace(self) -> None:
        """Write all steps to the trace of the run, beside this file."""
        content = HEADER_LINE + b"".join(self.lines())
        write_atomic(self.path.with_name(TRACE_FILE), content, mode=0o600)


def read_steps(folder: Path) -> list[Step]:
    """Return the steps of a run, which may go on in another process; empty before it began."""
    path = folder / JOURNAL_FILE
    if not path.is_file():
        return []
    connection = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro", uri=True)
    try:
        rows = connection.execute("SELECT content FROM steps ORDER BY id").fetchall()
    except sqlite3.OperationalError:
        return []  # The process that creates it has not written anything.
    finally:
        connection.close()
    return list(decode_steps((content for (content,) in rows), str(path)))


def _first(rows: Iterator[tuple[Any, ...]], default: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the first row, or the default; the query has ended then."""
    return next(iter(list(rows)), default)


def _sum_of(name: str, content: bytes) -> int:
    """Return the checksum of a record."""
    return crc32(content, crc32(name.encode()))
