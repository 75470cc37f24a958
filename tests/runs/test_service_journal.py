"""The journal of a service, with the ledger in the same transactions."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from melisma.errors import DataError, SettingError
from melisma.runs.folder import SERVICE_JOURNAL
from melisma.runs.journal import Journal
from melisma.runs.payment_ledger import payments_of, read_ledger
from melisma.runs.service_journal import ServiceJournal
from melisma.runs.service_progress import SERVICE_STEPS
from tests.service.recorded_steps import random_steps

STEPS = random_steps(seed=2)


def written(folder: Path) -> None:
    journal = ServiceJournal.create(folder)
    for step in STEPS:
        journal.write(step)
    journal.put("note", b"7")
    journal.write()
    journal.sync()
    journal.close()


def change(folder: Path, sql: str) -> None:
    with closing(sqlite3.connect(folder / SERVICE_JOURNAL)) as connection:
        connection.execute(sql)
        connection.commit()


def test_steps_and_records_come_back(tmp_path: Path) -> None:
    written(tmp_path)
    journal = ServiceJournal.open(tmp_path)
    encoded = list(map(SERVICE_STEPS.encode, STEPS))
    assert list(map(SERVICE_STEPS.encode, journal.steps())) == encoded
    assert journal.get("note") == b"7"
    journal.check_ledger()
    journal.close()


@pytest.mark.parametrize("sql", ["UPDATE ledger SET amount = 0", "DELETE FROM ledger"])
def test_rows_of_the_ledger_never_change(tmp_path: Path, sql: str) -> None:
    written(tmp_path)
    with pytest.raises(sqlite3.IntegrityError, match="rows of a ledger never change"):
        change(tmp_path, sql)


def test_nothing_is_paid_twice_and_then_nothing_is_written(tmp_path: Path) -> None:
    written(tmp_path)
    before = read_ledger(tmp_path)
    journal = ServiceJournal.open(tmp_path)
    last, again = journal.last, next(step for step in STEPS if payments_of(step))
    with pytest.raises(DataError, match="UNIQUE"):
        journal.write(again)
    assert journal.last == last
    journal.close()
    assert read_ledger(tmp_path) == before


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TRIGGER no_delete; DELETE FROM ledger WHERE cycle = 1",
        "DROP TRIGGER no_update; UPDATE ledger SET amount = amount + 1",
        "INSERT INTO ledger VALUES (9, 'x', 1, 0, 'x', 1, 1.0, 1.0, 1, 0.0, 1)",
    ],
)
def test_a_ledger_with_other_payments_than_the_steps_is_damaged(tmp_path: Path, sql: str) -> None:
    written(tmp_path)
    for each in sql.split("; "):
        change(tmp_path, each)
    journal = ServiceJournal.open(tmp_path)
    with pytest.raises(DataError, match="other payments than its steps"):
        journal.check_ledger()
    journal.close()


def test_journals_of_runs_and_of_services_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"has no service\.db, the journal of a service"):
        ServiceJournal.open(tmp_path)
    Journal.create(tmp_path).close()
    (tmp_path / "journal.db").rename(tmp_path / SERVICE_JOURNAL)
    with pytest.raises(DataError, match="is not the journal of a service"):
        ServiceJournal.open(tmp_path)
