import gc
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from melisma.cycle import commands, events
from melisma.errors import DataError, SettingError
from melisma.runs.folder import JOURNAL_FILE
from melisma.runs.journal import Journal
from melisma.runs.journal_database import SqliteDatabase, Statement
from melisma.runs.trace import Step, encode_step


def step(number: int) -> Step:
    learners = np.arange(number % 3 + 1)
    event = events.LearnersLeft(at_s=float(number), learners=learners, reason=f"step {number}")
    return Step(event, [commands.Wake(reason="again", at_s=number + 1.0)])


def encoded(journal: Journal, after: int = 0) -> list[bytes]:
    return [encode_step(each) for each in journal.steps(after)]


def expected(*numbers: int) -> list[bytes]:
    return [encode_step(step(number)) for number in numbers]


def change(folder: Path, sql: str) -> None:
    connection = sqlite3.connect(folder / JOURNAL_FILE)
    with connection:
        connection.execute(sql)
    connection.close()


def copy_after_power_cut(folder: Path, copy: Path) -> Path:
    """Copy what a power cut leaves of a journal that is open; return its log."""
    copy.mkdir()
    for file in folder.glob(f"{JOURNAL_FILE}*"):
        if not file.name.endswith("-shm"):
            (copy / file.name).write_bytes(file.read_bytes())
    return copy / f"{JOURNAL_FILE}-wal"


class FullDisk(SqliteDatabase):
    """A database whose disk is full while `full` is True."""

    full = False

    def write(self, statements: Sequence[Statement]) -> None:
        if self.full:
            raise OSError(28, "no space left on device")
        super().write(statements)


def test_steps_and_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    journal.put("session/1", b"a")
    journal.put("session/2", b"b")
    journal.put("run", b"c")
    journal.write(step(1), step(2))
    journal.put("session/1", None)
    journal.write(step(3))
    journal.close()
    again = Journal.open(tmp_path)
    assert encoded(again) == expected(1, 2, 3)
    assert encoded(again, after=2) == expected(3)
    assert again.records("session/") == [("session/2", b"b")]
    assert again.get("run") == b"c"
    assert again.get("session/1") is None
    assert again.last == 3
    again.write(step(4))
    assert encoded(again, after=3) == expected(4)


def test_what_was_written_survives_a_process_that_closes_nothing(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    for number in range(1, 50):
        journal.put("last", str(number).encode())
        journal.write(step(number))
        # As it is when the process is killed now.
        killed = Path(shutil.copytree(tmp_path, tmp_path.with_name(f"killed-{number}")))
        reader = Journal.open(killed)
        assert (reader.last, reader.get("last")) == (number, str(number).encode())
        reader.close()


def test_sync_flushes_the_log_of_the_database(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    journal.write(step(1))
    journal.sync()
    assert (tmp_path / f"{JOURNAL_FILE}-wal").stat().st_size > 0


def test_records_and_steps_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    databases: list[FullDisk] = []

    def connect(path: Path) -> FullDisk:
        databases.append(FullDisk(path))
        return databases[-1]

    journal = Journal.create(tmp_path, connect)
    journal.put("update/1", b"first")
    databases[0].full = True
    with pytest.raises(OSError, match="no space"):
        journal.write(step(1))
    assert (journal.last, journal.get("update/1"), encoded(journal)) == (0, None, [])
    databases[0].full = False
    journal.write(step(1))
    assert (journal.get("update/1"), encoded(journal)) == (b"first", expected(1))


def test_a_journal_is_never_created_over_another(tmp_path: Path) -> None:
    Journal.create(tmp_path).close()
    with pytest.raises(FileExistsError):
        Journal.create(tmp_path)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE steps SET content = content || x'20' WHERE id = 2",
        "UPDATE steps SET content = (SELECT content FROM steps WHERE id = 1) WHERE id = 2",
        "DELETE FROM steps WHERE id = 2",
        "UPDATE steps SET checksum = checksum + 1 WHERE id = 3",
    ],
)
def test_a_step_that_is_not_as_it_was_written_is_noticed(tmp_path: Path, sql: str) -> None:
    journal = Journal.create(tmp_path)
    journal.write(*map(step, range(1, 5)))
    journal.close()
    change(tmp_path, sql)
    with pytest.raises(DataError, match=r"journal\.db is damaged: step [23] is not"):
        encoded(Journal.open(tmp_path))


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_damaged_journal_can_be_closed_while_its_steps_are_read(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    journal.write(step(1), step(2))
    steps = journal.steps()
    next(steps)
    journal.close()
    del steps
    gc.collect()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE records SET checksum = 'x'",
        "UPDATE steps SET checksum = 'x'",
        "UPDATE head SET writes = 'x'",
    ],
)
def test_damage_that_changes_the_type_of_a_number_is_noticed(tmp_path: Path, sql: str) -> None:
    journal = Journal.create(tmp_path)
    journal.put("setup", b"a")
    journal.write(step(1), step(2))
    journal.close()
    change(tmp_path, sql)
    with pytest.raises(DataError, match=r"journal\.db is damaged: a checksum or a count"):
        Journal.open(tmp_path)


def test_a_checksum_of_an_earlier_step_that_is_no_number_is_noticed(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    journal.write(step(1), step(2))
    journal.close()
    change(tmp_path, "UPDATE steps SET checksum = 'x' WHERE id = 1")
    journal = Journal.open(tmp_path)
    with pytest.raises(DataError, match=r"journal\.db is damaged: step 1 is not"):
        list(journal.steps(after=1))
    journal.close()


def test_a_record_that_is_not_as_it_was_written_is_noticed(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    journal.put("run", b"content")
    journal.write()
    journal.close()
    change(tmp_path, "UPDATE records SET content = x'00'")
    with pytest.raises(DataError, match="record run is not as it was written"):
        Journal.open(tmp_path).get("run")


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        (
            f"PRAGMA user_version = {Journal.version + 1}",
            "resume the run with the version that wrote it",
        ),
        ("PRAGMA application_id = 7", "is not the journal of a run"),
    ],
)
def test_a_journal_of_another_kind_is_refused(tmp_path: Path, sql: str, problem: str) -> None:
    Journal.create(tmp_path).close()
    change(tmp_path, sql)
    with pytest.raises(DataError, match=problem):
        Journal.open(tmp_path)


def test_a_missing_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"has no journal\.db, .*; use the folder of a run"):
        Journal.open(tmp_path)


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, size: int) -> None:
    journal = Journal.create(tmp_path)
    journal.write(*map(step, range(1, 100)))
    journal.close()
    path = tmp_path / JOURNAL_FILE
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match=r"journal\.db is (damaged|not the journal)"):
        encoded(Journal.open(tmp_path))


def test_records_that_are_missing_are_noticed(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    journal.put("update/1", b"content")
    journal.write()
    journal.close()
    change(tmp_path, "DELETE FROM records")
    with pytest.raises(DataError, match="its records are not those that were written"):
        Journal.open(tmp_path)


def test_a_last_step_that_is_missing_is_noticed(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    journal.write(step(1), step(2))
    journal.close()
    change(tmp_path, "DELETE FROM steps WHERE id = 2")
    with pytest.raises(DataError, match="it has 1 steps, but its head says 2"):
        Journal.open(tmp_path)


def test_damage_in_the_log_is_noticed_although_sqlite_takes_it_for_its_end(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    for number in range(1, 20):
        journal.write(step(number))
    journal.sync()
    log = copy_after_power_cut(tmp_path, tmp_path / "copy")
    content = bytearray(log.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    log.write_bytes(content)
    with pytest.raises(DataError, match="writes, but 20 were on disk"):
        Journal.open(tmp_path / "copy")


def test_a_damaged_journal_is_left_as_it_is(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    for number in range(1, 20):
        journal.write(step(number))
    journal.sync()
    log = copy_after_power_cut(tmp_path, tmp_path / "copy")
    content = bytearray(log.read_bytes())
    content[len(content) // 3] ^= 1
    log.write_bytes(content)
    before = {path: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    with pytest.raises(DataError, match="writes, but 20 were on disk"):
        Journal.open(tmp_path / "copy")
    assert {path: path.read_bytes() for path in before} == before


class FailingSync(SqliteDatabase):
    """A database whose disk fails once; as Linux does, the second flush reports no error."""

    failures = 1

    def sync(self, mark: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(5, "input/output error")
        super().sync(mark)


def test_nothing_counts_as_flushed_after_a_flush_that_failed(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, FailingSync)
    journal.write(step(1))
    for _ in range(2):
        with pytest.raises(OSError, match="input/output error"):
            journal.sync()
    with pytest.raises(OSError, match="input/output error"):
        journal.write(step(2))
    assert encoded(journal) == expected(1)


def test_what_a_former_process_may_not_have_flushed_is_copied_from_the_log(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    journal.write(step(1))
    copy = copy_after_power_cut(tmp_path, tmp_path / "copy").parent
    again = Journal.open(copy)
    again.sync()
    # The log may be lost: it was written, and never flushed, by the former process.
    (copy / f"{JOURNAL_FILE}-wal").write_bytes(b"")
    again = Journal.open(Path(shutil.copytree(copy, tmp_path / "other")))
    assert encoded(again) == expected(1)


def test_steps_that_were_not_synced_may_be_lost(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path)
    journal.write(step(1))
    journal.sync()
    size = (tmp_path / f"{JOURNAL_FILE}-wal").stat().st_size
    journal.write(step(2))
    log = copy_after_power_cut(tmp_path, tmp_path / "copy")
    log.write_bytes(log.read_bytes()[: size + 100])
    assert encoded(Journal.open(tmp_path / "copy")) == expected(1)


@pytest.mark.parametrize("content", [b"short", bytes(11) + b"\x01"])
def test_a_damaged_mark_is_noticed(tmp_path: Path, content: bytes) -> None:
    journal = Journal.create(tmp_path)
    journal.write(step(1))
    journal.sync()
    journal.close()
    (tmp_path / f"{JOURNAL_FILE}-synced").write_bytes(content)
    with pytest.raises(DataError, match="the number of its writes on disk cannot be read"):
        Journal.open(tmp_path)
