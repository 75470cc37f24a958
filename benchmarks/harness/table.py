"""Figures as a Markdown table."""

from collections.abc import Mapping, Sequence

Figure = float | str | Sequence[float] | None
"""A number, a text, a mean with the half width of its 95 % interval, or nothing."""


def render(columns: Sequence[str], rows: Mapping[str, Mapping[str, Figure]]) -> str:
    """Return a Markdown table with one row for each name; a missing figure is a dash."""
    cells = [["", *columns]]
    cells += [[name, *(_cell(row.get(column)) for column in columns)] for name, row in rows.items()]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = [
        f"| {' | '.join(_pad(cell, widths[i], i) for i, cell in enumerate(row))} |" for row in cells
    ]
    rule = "|" + "|".join("-" * (w + 1) + (":" if i else "-") for i, w in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _cell(value: Figure) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return _interval(*value)
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 or not value else f"{value:.2f}"


def _interval(middle: float, half_width: float) -> str:
    digits = 0 if abs(middle) >= 100 and half_width >= 1 else 1
    # Adding 0 turns -0.0 into 0.0.
    return f"{round(middle, digits) + 0.0:.{digits}f} ± {half_width:.{digits}f}"


def _pad(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)
