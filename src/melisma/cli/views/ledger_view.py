"""The sums of `melisma ledger`."""

from rich.console import RenderableType
from rich.text import Text

from melisma.cli.views.table_view import FigureTable
from melisma.runs.payment_ledger import By, LedgerTotal, PaymentLedger


def ledger_view(ledger: PaymentLedger, by: By) -> RenderableType:
    """Return a row for each task or learner, and one for all."""
    if not ledger.payments:
        return Text("nothing is paid yet")
    rows = [_row(total) for total in (*ledger.totals(by), ledger.total)]
    return FigureTable((by, "payments", "shards", "paid"), rows)


def _row(total: LedgerTotal) -> tuple[str, ...]:
    return total.name, f"{total.payments:,}", f"{total.shards:,}", f"{total.amount:,.2f}"
