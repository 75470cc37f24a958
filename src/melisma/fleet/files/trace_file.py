"""Availability traces: CSV files of the times at which learners join, leave, sleep and wake.

A learner whose first event is `join` is absent before it; all others are present from the start. A
learner that leaves does not return. Lines of one learner are in order of time; lines of different
learners may be in any order.
"""

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from math import isfinite
from pathlib import Path

import numpy as np

from melisma.errors import SettingError, nearest_word, suggest
from melisma.fleet.availability import CHANGE_NAMES, JOIN, LEAVE, SLEEP, WAKE, Changes
from melisma.fleet.files.toml_file import read_text

HEADER = ["learner", "at_s", "event"]
# The events allowed after an event; a learner that does not join first is already present.
ALLOWED_NEXT = {
    None: (JOIN, LEAVE, SLEEP),
    JOIN: (LEAVE, SLEEP),
    LEAVE: (),
    SLEEP: (LEAVE, WAKE),
    WAKE: (LEAVE, SLEEP),
}
# Time, learner number and event number.
Row = tuple[float, int, int]


def read_trace(path: str | Path, names: Sequence[str], learners: int | None = None) -> Changes:
    """Read the changes of a trace; a `SettingError` names file and line.

    `names` are those of the fleet's learners; `learners` is their number if it is not the file's.
    """
    lines = csv.reader(StringIO(read_text(path), newline=""), strict=True)
    try:
        return _to_changes(list(_parse_rows(lines, names, learners)))
    except (ValueError, csv.Error) as error:
        raise SettingError(f"{path}: line {max(1, lines.line_num)}: {error}") from None


def _to_changes(rows: Sequence[Row]) -> Changes:
    at_s, learners, kinds = zip(*rows, strict=True) if rows else ((), (), ())
    changes = Changes(
        np.array(at_s, dtype=np.float64),
        np.array(learners, dtype=np.int64),
        np.array(kinds, dtype=np.int64),
    )
    return Changes.merge([changes])


def _parse_rows(
    lines: Iterator[list[str]], names: Sequence[str], learners: int | None
) -> Iterator[Row]:
    if (header := next(lines, [])) != HEADER:
        raise ValueError(f"header is {','.join(header)!r:.60}; expected {','.join(HEADER)!r}")
    numbers = {name: number for number, name in enumerate(names)}
    last: dict[str, Row] = {}
    for cells in filter(None, lines):
        if len(cells) != len(HEADER):
            raise ValueError(f"{','.join(cells)!r:.60}; expected {', '.join(HEADER)}")
        name, at_s, event = cells
        if name not in numbers:
            raise ValueError(_describe_unknown(name, names, learners))
        row = _parse_time(at_s), numbers[name], _parse_event(event)
        _check_order(name, last.get(name), row)
        last[name] = row
        yield row


def _parse_time(at_s: str) -> float:
    try:
        seconds = float(at_s)
    except ValueError:
        seconds = -1.0
    if not (seconds >= 0 and isfinite(seconds)):
        raise ValueError(f"at_s is {at_s!r:.60}; expected a number of at least 0")
    return seconds


def _parse_event(event: str) -> int:
    if event not in CHANGE_NAMES:
        raise ValueError(f"event is {event!r:.60}; {suggest(event, CHANGE_NAMES)}")
    return CHANGE_NAMES.index(event)


def _describe_unknown(name: str, names: Sequence[str], learners: int | None) -> str:
    problem = f"unknown learner {name!r:.60}; "
    if learners is None and (near := nearest_word(name, names)):
        return f"{problem}did you mean {near}?"
    problem += f"expected one of the {len(names)} of this fleet, "
    problem += f"{names[0]!r} to {names[-1]!r}" if len(names) > 1 else repr(names[0])
    if learners is None:
        return problem
    return f"{problem}; names depend on the number of learners, and {learners} were requested"


def _check_order(name: str, last: Row | None, row: Row) -> None:
    """Raise ValueError if a learner's event is earlier than its last one or cannot follow it."""
    before = last and last[2]
    if last is not None and row[0] < last[0]:
        raise ValueError(f"at_s is {row[0]:g}; expected at least {last[0]:g}, the last of {name!r}")
    if row[2] not in ALLOWED_NEXT[before]:
        after = "in its first line" if before is None else f"after {CHANGE_NAMES[before]}"
        allowed = [CHANGE_NAMES[kind] for kind in ALLOWED_NEXT[before]]
        expected = " or ".join([", ".join(allowed[:-1]), allowed[-1]] if allowed[1:] else allowed)
        raise ValueError(
            f"{CHANGE_NAMES[row[2]]} is the event of {name!r} {after}; "
            f"expected {expected or 'no event after leave'}"
        )
