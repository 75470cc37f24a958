"""The ledger of a service: every payment, once; totals by task and by learner; export as CSV.

Each row is the payment for the whole shards that the counted update of one learner, in one cycle of
one task, covers. Rows are only ever added, and a task, cycle and learner have one row at most.
"""

import csv
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, fields
from io import StringIO
from math import fsum
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from melisma.errors import DataError, SettingError
from melisma.runs.folder import SERVICE_JOURNAL, SERVICE_TRACE
from melisma.runs.service_progress import SERVICE_STEPS, ServiceStep
from melisma.service import commands

By = Literal["task", "learner"]


@dataclass(frozen=True)
class Payment:
    """One row: `amount` = `shards` * `price`, for the work of a learner in a cycle of a task.

    `number` is that of the task, and `averaged` the cycle whose average the update joined: a later
    one than `cycle` for a late update. `at_s` is on the clock of the service.
    """

    number: int
    task: str
    cycle: int
    learner: int
    name: str
    shards: int
    price: float
    amount: float
    averaged: int
    at_s: float


COLUMNS = tuple(each.name for each in fields(Payment))
LEDGER_TABLES = (
    """CREATE TABLE ledger (
        number INTEGER NOT NULL, task TEXT NOT NULL, cycle INTEGER NOT NULL,
        learner INTEGER NOT NULL, name TEXT NOT NULL, shards INTEGER NOT NULL,
        price REAL NOT NULL, amount REAL NOT NULL, averaged INTEGER NOT NULL, at_s REAL NOT NULL,
        step INTEGER NOT NULL, PRIMARY KEY (number, cycle, learner)
    ) WITHOUT ROWID""",
    """CREATE TRIGGER no_update BEFORE UPDATE ON ledger BEGIN
        SELECT RAISE(ABORT, 'rows of a ledger never change'); END""",
    """CREATE TRIGGER no_delete BEFORE DELETE ON ledger BEGIN
        SELECT RAISE(ABORT, 'rows of a ledger never change'); END""",
)
INSERT_PAYMENT = "INSERT INTO ledger VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
SELECT_PAYMENTS = """SELECT
    number, task, cycle, learner, name, shards, price, amount, averaged, at_s, step FROM ledger"""


def payments_of(step: ServiceStep) -> list[Payment]:
    """Return the payments that a step of the service decided."""
    return [
        Payment(
            number=each.number,
            task=each.task,
            cycle=int(each.cycles[row]),
            learner=int(each.learners[row]),
            name=name,
            shards=int(each.shards[row]),
            price=float(each.prices[row]),
            amount=float(each.amounts[row]),
            averaged=each.cycle,
            at_s=float(step.event.at_s),
        )
        for each in step.commands
        if isinstance(each, commands.Pay)
        for row, name in enumerate(each.names)
    ]


@dataclass(frozen=True)
class LedgerTotal:
    """The sum of the payments of a task or of a learner."""

    name: str
    payments: int
    shards: int
    amount: float


@dataclass(frozen=True)
class PaymentLedger:
    """The payments of a service, in the order of task, cycle and learner."""

    payments: tuple[Payment, ...]

    @classmethod
    def from_steps(cls, steps: Iterable[ServiceStep]) -> "PaymentLedger":
        """Return the ledger of all payments that these steps decided."""
        return cls.of([payment for step in steps for payment in payments_of(step)])

    @classmethod
    def of(cls, payments: Sequence[Payment]) -> "PaymentLedger":
        """Return the ledger of payments in any order; `DataError` if one is there twice."""
        ordered = sorted(payments, key=lambda each: (each.number, each.cycle, each.learner))
        keys = {(each.number, each.cycle, each.learner) for each in ordered}
        if len(keys) < len(ordered):
            raise DataError("a ledger is damaged: a learner is paid twice for a cycle of a task")
        return cls(tuple(ordered))

    @property
    def total(self) -> LedgerTotal:
        """The sum of all payments."""
        return _total("all", self.payments)

    def totals(self, by: By) -> list[LedgerTotal]:
        """Return a sum for each task, or for each learner, in the order of their numbers."""
        groups: dict[tuple[int, str], list[Payment]] = {}
        for each in self.payments:
            key = (each.number, each.task) if by == "task" else (each.learner, each.name)
            groups.setdefault(key, []).append(each)
        return [_total(name, rows) for (_, name), rows in sorted(groups.items())]

    def to_csv(self) -> str:
        """Return all payments as CSV, with a line of titles."""
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(map(astuple, self.payments))
        return text.getvalue()

    def as_dict(self) -> dict[str, Any]:
        """Return payments and totals as JSON values."""
        return {
            "total": vars(self.total),
            "tasks": [vars(each) for each in self.totals("task")],
            "learners": [vars(each) for each in self.totals("learner")],
            "payments": [vars(each) for each in self.payments],
        }


def _total(name: str, payments: Sequence[Payment]) -> LedgerTotal:
    shards = sum(each.shards for each in payments)
    return LedgerTotal(name, len(payments), shards, fsum(each.amount for each in payments))


def has_ledger(folder: Path) -> bool:
    """Return whether a folder is that of a service, or of a simulation of several tasks."""
    return any((folder / name).is_file() for name in (SERVICE_JOURNAL, SERVICE_TRACE))


def read_ledger(folder: Path) -> PaymentLedger:
    """Return the ledger of a service, which may go on in another process, or of a simulation.

    Nothing is changed. Raises `SettingError` if there is none in the folder.
    """
    if (folder / SERVICE_JOURNAL).is_file():
        return _read_journal(folder / SERVICE_JOURNAL)
    path = folder / SERVICE_TRACE
    if not path.is_file():
        problem = "has no ledger" if folder.is_dir() else "does not exist"
        raise SettingError(
            f"{folder} {problem}; use the folder of a service, or that of a simulation of several "
            "tasks with --out"
        )
    with path.open("rb") as file:
        return PaymentLedger.from_steps(SERVICE_STEPS.decode(file, str(path)))


def _read_journal(path: Path) -> PaymentLedger:
    uri = f"file:{quote(str(path.resolve()))}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            rows = connection.execute(SELECT_PAYMENTS).fetchall()
    except sqlite3.Error as error:
        raise DataError(f"cannot read the ledger in {path}: {error}") from None
    return PaymentLedger.of([Payment(*row[:-1]) for row in rows])
