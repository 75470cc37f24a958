"""A comparison as a table: a row for each scheme, a column for each figure that is known."""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from math import isnan

from melisma.simulation.comparison.comparison import Comparison
from melisma.simulation.comparison.figures import (
    TIME_FIGURES,
    WORK_FIGURES,
    format_interval,
    is_shown,
)
from melisma.simulation.comparison.interval import Interval

Columns = Mapping[str, tuple[str, str]]
ALL_COLUMNS: Columns = {**TIME_FIGURES, **WORK_FIGURES}


@dataclass(frozen=True)
class ComparisonTable:
    """Titles and rows of text; `str` aligns them, and notebooks display them."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        lines = (self.titles, *self.rows)
        first, *others = (max(map(len, column)) for column in zip(*lines, strict=True))
        return "\n".join(
            "  ".join(
                [name.ljust(first), *(c.rjust(w) for c, w in zip(cells, others, strict=True))]
            )
            for name, *cells in lines
        )

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        def row(cells: tuple[str, ...], tag: str) -> str:
            return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

        body = "".join(row(cells, "td") for cells in self.rows)
        return f"<table>{row(self.titles, 'th')}{body}</table>"


def build_table(comparison: Comparison, columns: Columns = ALL_COLUMNS) -> ComparisonTable:
    """Return the known figures of these columns: means with 95 % confidence intervals."""
    shown = [name for name in columns if is_shown(comparison, name)]
    cells = [_column(comparison, name, columns[name][1]) for name in shown]
    titles = ("scheme", *(columns[name][0] for name in shown))
    return ComparisonTable(titles, tuple(zip(comparison.schemes, *cells, strict=True)))


def _column(comparison: Comparison, figure: str, unit: str) -> list[str]:
    intervals = [comparison.interval(scheme, figure) for scheme in comparison.schemes]
    largest = max((interval.mean for interval in intervals if interval.known), default=0.0)
    cells = [format_interval(interval, unit, largest) for interval in intervals]
    if figure != "accuracy_s":
        return cells
    never = [_count_never(comparison, scheme) for scheme in comparison.schemes]
    return [_append_never(*row) for row in zip(cells, intervals, never, strict=True)]


def _count_never(comparison: Comparison, scheme: str) -> int:
    return sum(run.completed and isnan(run.accuracy_s) for run in comparison.runs_of(scheme))


def _append_never(cell: str, interval: Interval, never: int) -> str:
    """Append the number of runs that never reached the accuracy; failed runs are listed apart."""
    if not never:
        return cell
    return f"{cell} ({never} of {interval.count} never)" if interval.known else "never"
