"""The journal of a service: its steps, its records, and the ledger of what it has paid.

The rows of the ledger are written in the same transaction as the step that decided them, so that a
payment is neither lost nor made twice, whenever the process stops.
"""

from dataclasses import astuple
from typing import Final

from melisma.runs.folder import SERVICE_JOURNAL
from melisma.runs.journal import StepJournal
from melisma.runs.journal_database import Statement
from melisma.runs.payment_ledger import INSERT_PAYMENT, LEDGER_TABLES, SELECT_PAYMENTS, payments_of
from melisma.runs.service_progress import SERVICE_STEPS, ServiceStep

SETUP: Final = "setup"
"""The record of what a service on devices that join was started with."""


class ServiceJournal(StepJournal[ServiceStep]):
    """The journal of one service."""

    file = SERVICE_JOURNAL
    subject = "a service"
    application = 0x4D656C73
    tables = LEDGER_TABLES
    codec = SERVICE_STEPS

    def statements(self, number: int, step: ServiceStep) -> list[Statement]:
        """Return the rows of the ledger that a step adds."""
        rows = [(*astuple(payment), number) for payment in payments_of(step)]
        return [(INSERT_PAYMENT, rows)] if rows else []

    def check_ledger(self) -> None:
        """Raise `DataError` unless the ledger has the payments of the steps, and no others."""
        decided = [
            (*astuple(payment), number)
            for number, step in enumerate(self.steps(), 1)
            for payment in payments_of(step)
        ]
        written = [*self._database.read(SELECT_PAYMENTS)]
        if sorted(decided) != sorted(written):
            self._refuse("its ledger has other payments than its steps")
