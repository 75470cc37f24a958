"""Where the orchestrator of a simulation keeps its journal and the updates that it received."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from melisma.errors import SettingError
from melisma.runs.journal import Journal, StepJournal
from melisma.runs.journal_database import Statement
from melisma.simulation.faults import Fault

PATH: Final = Path("journal.db")
"""The name of the journal in messages."""


class Storage(Protocol):
    """A journal, and the files of updates beside it. Errors of the disk are `OSError`."""

    keeps_updates: bool

    def create(self) -> Any:
        """Create the journal, instead of one that was not synced yet."""

    def open(self) -> Any:
        """Open the journal again; raise `DataError` if it is damaged."""

    def stop(self, *, power: bool) -> None:
        """End the process that uses the journal; without power, unsynced writes may be lost."""

    def healthy_from_s(self, at_s: float) -> float:
        """Return when the disk works again, or `at_s` if it does."""

    def write_update(self, learner: int, name: str, content: bytes) -> None:
        """Write an update, and return when it is on disk."""

    def read_update(self, name: str) -> bytes:
        """Return an update."""

    def delete_update(self, name: str) -> None:
        """Delete an update, if there is one."""

    def updates(self) -> list[str]:
        """Return the names of all updates."""

    def close(self) -> None:
        """Release the memory."""


def make_storage(
    faults: Sequence[Fault],
    clock: Callable[[], float],
    seed: int,
    kind: type[StepJournal[Any]] = Journal,
) -> Storage:
    """Return the storage that these faults need; `SettingError` if it needs a missing package."""
    if all(fault.kind == "crash orchestrator" for fault in faults):
        return MemoryStorage(kind)
    try:
        from melisma.simulation.journaling.disk_storage import DiskStorage
    except ImportError:
        kinds = ", ".join(sorted({f.kind for f in faults if f.kind != "crash orchestrator"}))
        raise SettingError(f"faults {kinds} need the package apsw: pip install apsw") from None
    return DiskStorage(faults, clock, seed, kind)


class MemoryDatabase:
    """A `Database` in memory: it keeps all that was written when the process ends."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._mark = b""

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        yield from self._connection.execute(sql, parameters)

    def write(self, statements: Sequence[Statement]) -> None:
        with self._connection:
            self._connection.execute("BEGIN")
            for sql, rows in statements:
                for row in rows:
                    self._connection.execute(sql, row)

    def sync(self, mark: bytes) -> None:
        self._mark = mark

    def mark(self) -> bytes:
        return self._mark

    def close(self) -> None:
        self._connection.close()


class MemoryStorage:
    """A journal in memory, for faults that do not hit the disk; updates are not kept."""

    keeps_updates = False

    def __init__(self, kind: type[StepJournal[Any]] = Journal) -> None:
        self._database, self._kind = MemoryDatabase(), kind

    def create(self) -> Any:
        self._database.close()
        self._database = MemoryDatabase()
        return self._kind.create_in(PATH, self._database)

    def open(self) -> Any:
        return self._kind.open_in(PATH, self._database)

    def stop(self, *, power: bool) -> None:
        """Lose nothing."""

    def healthy_from_s(self, at_s: float) -> float:
        return at_s

    def write_update(self, learner: int, name: str, content: bytes) -> None:
        """Do nothing."""

    def read_update(self, name: str) -> bytes:  # noqa: ARG002
        return b""

    def delete_update(self, name: str) -> None:
        """Do nothing."""

    def updates(self) -> list[str]:
        return []

    def close(self) -> None:
        self._database.close()
