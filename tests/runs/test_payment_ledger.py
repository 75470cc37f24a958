"""The ledger: its rows, its totals, and where it is read from."""

import csv
from io import StringIO
from math import fsum
from pathlib import Path

import pytest

from melisma.errors import DataError, SettingError
from melisma.runs.folder import SERVICE_TRACE
from melisma.runs.payment_ledger import PaymentLedger, payments_of, read_ledger
from melisma.runs.service_journal import ServiceJournal
from melisma.runs.service_progress import SERVICE_STEPS
from tests.service.recorded_steps import random_steps

STEPS = random_steps(seed=1)
LEDGER = PaymentLedger.from_steps(STEPS)


def test_each_row_is_shards_times_price_and_totals_add_up() -> None:
    assert len(LEDGER.payments) > 5
    for each in LEDGER.payments:
        assert each.amount == each.shards * each.price
        assert each.shards > 0
        assert each.averaged >= each.cycle
    for by in ("task", "learner"):
        totals = LEDGER.totals(by)
        assert fsum(each.amount for each in totals) == pytest.approx(LEDGER.total.amount)
        assert sum(each.shards for each in totals) == LEDGER.total.shards
        assert sum(each.payments for each in totals) == len(LEDGER.payments)
    assert [each.name for each in LEDGER.totals("task")] == ["task 0", "task 1", "task 2"]


def test_a_ledger_with_a_payment_twice_is_damaged() -> None:
    with pytest.raises(DataError, match="paid twice"):
        PaymentLedger.of([*LEDGER.payments, LEDGER.payments[0]])


def test_the_csv_has_a_line_for_each_payment() -> None:
    rows = list(csv.DictReader(StringIO(LEDGER.to_csv())))
    assert len(rows) == len(LEDGER.payments)
    assert [float(row["amount"]) for row in rows] == [each.amount for each in LEDGER.payments]
    assert rows[0]["name"] == LEDGER.payments[0].name


def test_the_ledger_of_a_service_is_read_while_another_process_writes(tmp_path: Path) -> None:
    journal = ServiceJournal.create(tmp_path)
    count = 0
    for step in STEPS:
        journal.write(step)
        count += len(payments_of(step))
        if payments_of(step):
            assert len(read_ledger(tmp_path).payments) == count
    assert read_ledger(tmp_path) == LEDGER
    journal.close()
    assert read_ledger(tmp_path) == LEDGER


def test_the_ledger_of_a_simulation_is_read_from_its_trace(tmp_path: Path) -> None:
    (tmp_path / SERVICE_TRACE).write_bytes(b"".join(map(SERVICE_STEPS.encode, STEPS)))
    assert read_ledger(tmp_path) == LEDGER


def test_a_folder_without_a_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="has no ledger; use the folder of a service"):
        read_ledger(tmp_path)
    with pytest.raises(SettingError, match="does not exist"):
        read_ledger(tmp_path / "none")
