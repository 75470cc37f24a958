"""The record of a run: its trace, its progress and its report.

::

    trace.py          one JSON line a step: the event and the commands that it led to
    folder.py         the folder of a run and the files in it
    journal.py        all steps of a run and its records, in a file that survives a kill
    journal_database.py  the SQLite file of a journal
    service_journal.py  the same of a service, with its ledger
    service_recovery.py  the state of a service from its journal, by replay
    payment_ledger.py the payments of a service, their totals, and their export
    recovery.py       the state of a run from its journal, by replay
    recent_steps.py   the part of a long run that displays need after a restart
    model_versions.py the versions of the parameters that steps refer to
    progress.py       the state of a run so far, folded from its trace
    assignments.py    the work of all learners in a cycle, in columns
    planned_work.py   the assignments of all cycles, and the shards in their plans
    learner_set.py    a set of learners as a bit for each
    given_shards.py   the shards that each learner was given in a cycle
    capacity.py       the visits that learners had time for, and uses of their time
    checkpoints.py    the best model, and that of each cycle
    unassigned.py     the learners without an assignment in a cycle, and why
    idleness.py       the learners that idled, why, and what to change
    usage.py          bytes, joules and money
    totals.py         sums for each learner over a run
    cycle_figures.py  the figures of a cycle
    cycle_result.py   the result of a cycle, for a callback of the user
    report.py         the figures of a run
    service_progress.py  the rounds of several tasks that share a fleet, folded from its steps
    service_report.py the figures of several tasks that shared a fleet
    report_tables.py  a report as tables, for pandas and notebooks
    notebook_view.py  a run in a notebook, while it goes on
    report_json.py    a report as JSON values
    run_picture.py    a run as an SVG picture
    peer_report.py    the figures of a run without an orchestrator
    peer_picture.py   such a run as an SVG picture
    svg.py            the shapes that pictures are made of
    interruption.py   Ctrl-C while a run goes on
"""

from melisma.runs.cycle_result import CycleResult
from melisma.runs.payment_ledger import PaymentLedger, read_ledger
from melisma.runs.peer_report import NodeReport, PeerReport
from melisma.runs.report import Report
from melisma.runs.service_report import ServiceReport

__all__ = [
    "CycleResult",
    "NodeReport",
    "PaymentLedger",
    "PeerReport",
    "Report",
    "ServiceReport",
    "read_ledger",
]
