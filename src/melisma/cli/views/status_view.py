"""The status of a running orchestrator, and the list of enrolled devices."""

from collections.abc import Sequence
from datetime import datetime
from math import nan

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from melisma.cli.views.run_view import format_score
from melisma.live.orchestrator.registry import EnrolledLearner
from melisma.live.orchestrator.status_service import LearnerStatus, OrchestratorStatus
from melisma.text import format_speed, visible

SHORT_FINGERPRINT_CHARS = 23
LONG_COLUMNS = ("learner", "address")
"""Columns that are wrapped in a narrow terminal."""


def status_view(status: OrchestratorStatus) -> RenderableType:
    """Return run, cycle and learners of an orchestrator."""
    head = Text(f"{status.task}: {status.scheme}, {_progress(status)}", style="bold")
    scores = (nan if value is None else value for value in (status.accuracy, status.loss))
    lines = [head, Text(f"run {status.run}")]
    if status.accuracy is not None or status.loss is not None:
        lines.append(Text(format_score(*scores)))
    if status.capacity_used is not None:
        lines.append(Text(f"capacity used {status.capacity_used:.0%}"))
    if status.waits_s is not None:
        waits = f"{status.waits_s / 60:.0f} min" if status.waits_s >= 60 else "less than a minute"
        lines.append(Text(f"no learner answers; the run waits {waits} more for one"))
    if not status.learners:
        return Group(*lines, Text("no learner has registered yet"))
    notes = [Text(f"{item.name}: {visible(item.note)}") for item in status.learners if item.note]
    return Group(*lines, _learner_table(status.learners), *notes)


def _progress(status: OrchestratorStatus) -> str:
    if status.state == "waiting":
        return f"begins {status.starts}"
    last = "" if status.cycles is None else f" of {status.cycles}"
    return f"cycle {status.cycle}{last}, {status.state}"


def _learner_table(learners: Sequence[LearnerStatus]) -> Table:
    table = _table("learner", "state", "address", "last seen", "samples/s")
    for item in learners:
        table.add_row(
            Text(item.name),
            item.state,
            Text(visible(item.host or "-")),
            f"{item.last_seen_s:.0f} s ago",
            _speed(item.samples_per_s),
        )
    return table


def _speed(samples_per_s: float | None) -> str:
    return "-" if samples_per_s is None else format_speed(samples_per_s).partition(" ")[0]


def enrolled_view(
    learners: Sequence[EnrolledLearner], states: Sequence[str | None]
) -> RenderableType:
    """Return the enrolled devices with their states, in the run if there is one.

    A revoked device also has a line that says when.
    """
    table, lines = _table("learner", "state", "address", "enrolled", "identity"), []
    for item, state in zip(learners, states, strict=True):
        fingerprint = item.fingerprint[:SHORT_FINGERPRINT_CHARS]
        table.add_row(
            Text(item.name),
            state or "-",
            Text(visible(item.host or "-")),
            _local_time(item.enrolled_at),
            fingerprint,
        )
        if item.revoked_at is not None:
            # Another device may have the same name by now.
            lines.append(f"{item.name}, {fingerprint}: revoked {_local_time(item.revoked_at)}")
    return Group(table, *map(Text, lines))


def _local_time(at_s: float) -> str:
    """Return seconds since 1970 as local date and time."""
    return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M")


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        table.add_column(title, overflow="fold", no_wrap=title not in LONG_COLUMNS)
    return table
