"""Bandwidth traces: text files of the rates of a link over time.

A line has the seconds since the start of the trace and the rate in Mbit/s, or the downlink and the
uplink, separated by a comma or by spaces; `#` begins a comment. The first line is at 0 seconds.
"""

import re
from collections.abc import Iterator
from math import isfinite
from pathlib import Path

from melisma.errors import SettingError
from melisma.fleet.files.toml_file import read_text
from melisma.fleet.variation import LINKS, BandwidthTrace

# Faster links do not exist; such rates are in bit/s.
MAX_MBPS = 1e5
COLUMNS = {2: "seconds, Mbit/s", 3: "seconds, downlink and uplink in Mbit/s"}


def read_bandwidth_trace(path: str | Path) -> BandwidthTrace:
    """Read a trace; a `SettingError` names file and line."""
    rows: list[tuple[float, float, float]] = []
    columns = 0
    for number, cells in _split_lines(read_text(path)):
        try:
            rows.append(_parse_row(cells, columns, rows[-1][0] if rows else None))
        except ValueError as error:
            raise SettingError(f"{path}: line {number}: {error}") from None
        columns = len(cells)
    if not rows:
        raise SettingError(f"{path}: no rates; expected lines of {COLUMNS[2]}")
    trace = BandwidthTrace(rows)
    for resource in LINKS:
        if not trace.mean_bps(resource) > 0:
            raise SettingError(f"{path}: the {resource} is always 0; expected a rate above 0")
    return trace


def _split_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the cells of each line that is not empty."""
    for number, line in enumerate(text.splitlines(), 1):
        if content := line.partition("#")[0].strip():
            yield number, re.split(r"\s*,\s*|\s+", content)


def _parse_row(cells: list[str], columns: int, last_s: float | None) -> tuple[float, float, float]:
    """Return seconds, downlink and uplink in bit/s; raise ValueError for an invalid line."""
    if len(cells) not in COLUMNS or (columns and len(cells) != columns):
        expected = COLUMNS[columns] if columns else " or ".join(COLUMNS.values())
        count = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
        separator = ", separated by a comma or spaces" if len(cells) == 1 else ""
        raise ValueError(f"{count}; expected {expected}{separator}")
    seconds, *rates = (_parse_number(cell) for cell in cells)
    if last_s is None and seconds != 0:
        raise ValueError(f"the first line is at {seconds:g} s; expected 0")
    if last_s is not None and seconds <= last_s:
        raise ValueError(
            f"seconds are {seconds:g}; expected more than {last_s:g}, those of the last line"
        )
    if max(rates) > MAX_MBPS:
        raise ValueError(
            f"{max(rates):g} Mbit/s; expected at most {MAX_MBPS:g}; divide rates in bit/s by 1e6"
        )
    return seconds, 1e6 * rates[0], 1e6 * rates[-1]


def _parse_number(cell: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = -1.0
    if not (number >= 0 and isfinite(number)):
        raise ValueError(f"{cell!r:.60}; expected a number of at least 0")
    return number
