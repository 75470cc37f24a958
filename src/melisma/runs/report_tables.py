"""The cycles and the learners of a report as tables: for pandas, and for notebooks as HTML."""

from collections.abc import Sequence
from html import escape
from math import isnan
from typing import TYPE_CHECKING, Any, Literal

from melisma.cycle.events import PHASES
from melisma.errors import SettingError, suggest
from melisma.runs.assignments import COUNTED
from melisma.runs.totals import COUNTS, USAGE

if TYPE_CHECKING:
    from melisma.runs.report import Report

TableName = Literal["cycles", "learners"]
TABLES: tuple[TableName, ...] = ("cycles", "learners")
# More rows make a notebook slow.
MAX_HTML_ROWS = 50
CYCLE_FIGURES = (
    *("deadline_s", "met_deadline", "accuracy", "loss", "capacity_used"),
    *("visits_counted", "visits_dropped", "bytes", "joules", "cost"),
)
STYLE = (
    "<style>.melisma td,.melisma th{text-align:right;padding:2px 8px}"
    ".melisma table{margin-bottom:10px}"
    ".melisma td:first-child,.melisma th:first-child{text-align:left}"
    ".melisma .late{color:#c92a2a}</style>"
)


def table_rows(report: "Report", table: TableName) -> list[dict[str, Any]]:
    """Return a row for each cycle or learner."""
    if table not in TABLES:
        raise SettingError(f"table is {table!r}; {suggest(str(table), TABLES)}")
    return _cycle_rows(report) if table == "cycles" else _learner_rows(report)


def _cycle_rows(report: "Report") -> list[dict[str, Any]]:
    """Return a row for each cycle, with a cost if the fleet sets prices."""
    figures = [name for name in CYCLE_FIGURES if name != "cost" or report.has_prices]
    return [
        {
            "cycle": cycle.number,
            "seconds": cycle.cycle_s,
            "updates": sum(cycle.counts.get(status, 0) for status in COUNTED),
            "learners": len(cycle.assignments),
            "elapsed_s": cycle.evaluated_s - report.began_s,
            **{name: getattr(cycle, name) for name in figures},
        }
        for cycle in report.cycles
    ]


def _learner_rows(report: "Report") -> list[dict[str, Any]]:
    return [
        {
            "learner": total.name,
            "capacity_used": total.capacity_used,
            **{name: getattr(total, name) for name in (*COUNTS, *USAGE)},
            **{
                f"{phase.replace(' ', '_')}_s": s
                for phase, s in zip(PHASES, total.phases, strict=True)
            },
        }
        for total in report.learners
    ]


def to_frame(report: "Report", table: TableName) -> Any:
    """Return a table as a `pandas.DataFrame`; `SettingError` without pandas."""
    rows = table_rows(report, table)
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise SettingError(
            "to_pandas needs pandas, which is not installed: pip install pandas; report.as_dict() "
            "needs nothing"
        ) from error
    return pd.DataFrame(rows).set_index(table.removesuffix("s"))


def report_html(report: "Report") -> str:
    """Return outcome, cycles, learners and picture of a report as HTML."""
    return (
        f'{STYLE}<div class="melisma">{_heading(report)}{cycle_table(report)}'
        f"{_learner_table(report)}{report.plot().svg}</div>"
    )


def progress_html(report: "Report") -> str:
    """Return outcome and cycles of a run so far as HTML."""
    return f'{STYLE}<div class="melisma">{_heading(report)}{cycle_table(report)}</div>'


def _heading(report: "Report") -> str:
    title = f"{report.task.name}: {report.outcome}"
    reason = f" ({report.reason})" if report.reason else ""
    return f"<p><b>{escape(title)}</b>{escape(reason)}<br>{escape(report.deadline_summary)}</p>"


def cycle_table(report: "Report") -> str:
    """Return the last cycles as an HTML table, with a bar for the accuracy of each."""
    titles = ("cycle", "seconds", "deadline", "updates", "accuracy", "", "loss", "capacity")
    rows = []
    for row in _cycle_rows(report)[-MAX_HTML_ROWS:]:
        late = not row["met_deadline"] and not isnan(row["seconds"])
        seconds = _number(row["seconds"], ".2f")
        rows.append(
            (
                str(row["cycle"]),
                f'<span class="late">{seconds}</span>' if late else seconds,
                f"{row['deadline_s']:.3g}",
                f"{row['updates']} of {row['learners']}",
                _number(row["accuracy"], ".1%"),
                _bar(row["accuracy"]),
                _number(row["loss"], ".4g"),
                _number(row["capacity_used"], ".0%"),
            )
        )
    return _table(titles, rows)


def _learner_table(report: "Report") -> str:
    titles = ("learner", "shards", "visits", "capacity", "train s", "late or lost")
    train = PHASES.index("train")
    rows = [
        (
            escape(total.name),
            str(total.shards),
            str(total.counted_visits),
            _number(total.capacity_used, ".0%"),
            f"{total.phases[train]:.1f}",
            str(total.late + total.dropped + total.refused + total.left),
        )
        for total in report.learners[:MAX_HTML_ROWS]
    ]
    more = len(report.learners) - len(rows)
    return _table(titles, rows) + (f"<p>and {more} more learners</p>" if more else "")


def _table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _bar(fraction: float) -> str:
    """Return a bar of up to 120 pixels."""
    if isnan(fraction):
        return ""
    size = f"width:{120 * min(max(fraction, 0.0), 1.0):.0f}px;height:10px"
    return f'<div style="{size};background:#4a90c2"></div>'


def _number(value: float, form: str) -> str:
    return "-" if isnan(value) else format(value, form)
