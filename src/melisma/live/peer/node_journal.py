"""The state of a live node on disk: one SQLite file from which a killed node resumes.

It holds the last snapshot, and the inbox: messages that were received since, each written before
it is acknowledged. What is written is flushed to disk, so that it survives a power cut, too. A
snapshot replaces the one before and the messages that it contains, so the file stays small.
"""

import fcntl
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import msgspec

from melisma.errors import DataError, SettingError
from melisma.live.state_folder import try_lock
from melisma.peer import messages
from melisma.peer.node_snapshot import NodeSnapshot, ReceivedMessage, decode, encode
from melisma.private_files import make_private_folder, open_private
from melisma.runs.journal_database import Database, SqliteDatabase, Statement, SyncedWrites
from melisma.runs.peer_report import RecordedFigures

STATE_FOLDER: Final = "state"
APPLICATION: Final = 0x4D656C70
VERSION: Final = 1
"""Changes when another version of Melisma would misread the state of a node."""
TABLES: Final = (
    "CREATE TABLE snapshot (id INTEGER PRIMARY KEY, content BLOB NOT NULL)",
    "CREATE TABLE inbox (id INTEGER PRIMARY KEY, content BLOB NOT NULL)",
    "CREATE TABLE head (writes INTEGER NOT NULL)",
    "INSERT INTO head VALUES (1)",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)
MAX_INBOX_MESSAGES: Final = 200
MAX_INBOX_BYTES: Final = 64 << 20


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot with what its driver needs: the options of the first start, and its figures.

    `outcome` is empty until the node has finished or failed. `addresses` are those at which
    neighbours were reached.
    """

    options: dict[str, str]
    start_unix_s: float
    node: NodeSnapshot
    figures: RecordedFigures
    addresses: dict[str, str]
    outcome: str = ""
    reason: str = ""


def check_unused(folder: Path, name: str) -> None:
    """Raise `SettingError` if another process uses the state of a node."""
    path = state_path(folder, name)
    if not path.exists():
        return
    with try_lock(path, fcntl.LOCK_EX) as free:
        if not free:
            raise _in_use(folder, name)


def _in_use(folder: Path, name: str) -> SettingError:
    return SettingError(
        f"node {name} of {folder} is in use by another process; wait until it has ended, or use "
        "another folder"
    )


def state_path(folder: Path, name: str) -> Path:
    """Return the file with the state of a node."""
    return folder / STATE_FOLDER / f"{name}.db"


class NodeJournal:
    """The state of one node; no other process can open it at the same time.

    Messages may be kept from several threads. Errors of the disk are `OSError`; damaged content is
    a `DataError`, and nothing is repaired: from an older state, a node would send other updates
    under numbers that its neighbours know.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = state_path(folder, name)
        self._lock, self._stack = threading.Lock(), ExitStack()
        self._inbox_bytes: dict[int, int] = {}
        self._last = 0
        make_private_folder(self.path.parent)
        if not self._stack.enter_context(try_lock(self.path, fcntl.LOCK_EX)):
            self._stack.close()
            raise _in_use(folder, name)
        try:
            new = not self.path.exists()
            if new:
                open_private(self.path, "xb").close()
            else:
                with closing(SqliteDatabase(self.path, writable=False)) as database:
                    new = self._check(database)
            self._database = SqliteDatabase(self.path)
            self._stack.callback(self._database.close)
            self._synced = SyncedWrites(self.path, self._database)
            if new:
                self._database.write([(sql, [()]) for sql in TABLES])
            self._writes = _count_writes(self._database)
        except BaseException:
            self._stack.close()
            raise

    def _check(self, database: Database) -> bool:
        """Return whether nothing was written yet; raise `DataError` if it is no state of a node."""
        application, version, tables = (
            next(database.read(sql))[0]
            for sql in (
                "PRAGMA application_id",
                "PRAGMA user_version",
                "SELECT count(*) FROM sqlite_schema",
            )
        )
        # A process that was killed before its first transaction leaves an empty file.
        new = not application and not tables
        if not new and application != APPLICATION:
            raise DataError(f"{self.path} is not the state of a node; use another folder")
        if not new and version != VERSION:
            raise DataError(
                f"{self.path} has format version {version}, but this version of Melisma reads "
                f"{VERSION}; resume the node with the version that wrote it"
            )
        SyncedWrites(self.path, database).check(0 if new else _count_writes(database))
        return bool(new)

    def load(self) -> tuple[NodeRecord, list[ReceivedMessage]] | None:
        """Return the last snapshot, and the messages that arrived since; None without a snapshot.

        A node without one has sent nothing; messages that it received are forgotten.
        """
        rows = [*self._database.read("SELECT content FROM snapshot WHERE id = 1")]
        if not rows:
            self._write(("DELETE FROM inbox", [()]))
            return None
        record: NodeRecord = decode(_bytes(rows[0][0]), NodeRecord, f"{self.path}: its snapshot")
        received: list[ReceivedMessage] = []
        for number, content in self._database.read("SELECT id, content FROM inbox ORDER BY id"):
            what = f"{self.path}: message {number}"
            received.append(decode(_bytes(content), ReceivedMessage, what))
            self._last = number
            self._inbox_bytes[number] = len(content)
        return record, received

    @property
    def inbox(self) -> list[int]:
        """The numbers of the messages that no snapshot contains."""
        with self._lock:
            return [*self._inbox_bytes]

    @property
    def is_full(self) -> bool:
        """Whether a snapshot is due because of the messages that arrived since the last one."""
        with self._lock:
            sizes = self._inbox_bytes.values()
            return len(sizes) > MAX_INBOX_MESSAGES or sum(sizes) > MAX_INBOX_BYTES

    def keep(self, message: messages.Message, key: str) -> int:
        """Return the number of a received message when it is on disk; 0 for a heartbeat."""
        if isinstance(message, messages.Heartbeat):
            return 0
        content = encode(ReceivedMessage(message, key))
        with self._lock:
            number = self._last + 1
            self._write(("INSERT INTO inbox VALUES (?, ?)", [(number, content)]))
            self._last, self._inbox_bytes[number] = number, len(content)
        self._sync()
        return number

    def save(self, record: NodeRecord, handled: list[int]) -> None:
        """Return when a snapshot is on disk that contains these messages of the inbox."""
        replace: Statement = ("INSERT OR REPLACE INTO snapshot VALUES (1, ?)", [(encode(record),)])
        delete: Statement = ("DELETE FROM inbox WHERE id = ?", [(number,) for number in handled])
        with self._lock:
            self._write(replace, delete)
            for number in handled:
                self._inbox_bytes.pop(number, None)
        self._sync()

    def _write(self, *statements: Statement) -> None:
        self._synced.require_health()
        count: Statement = ("UPDATE head SET writes = ?", [(self._writes + 1,)])
        self._database.write([*statements, count])
        self._writes += 1

    def _sync(self) -> None:
        self._synced.sync(lambda: self._writes)

    def close(self) -> None:
        """Close the file, so that another process can open it."""
        self._stack.close()


def _count_writes(database: Database) -> int:
    """Return the number of writes so far."""
    return int(next(database.read("SELECT writes FROM head"))[0])


def _bytes(content: object) -> bytes:
    """Return a content; empty bytes if damage has changed its type."""
    return content if isinstance(content, bytes) else b""
