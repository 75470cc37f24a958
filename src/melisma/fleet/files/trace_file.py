"""A trace: when learners joined, left, slept and woke, from a CSV file of learner, instant, word.

Who is first said to join is absent before; everybody else is there from the start. Who leaves is
gone for good; sleep and wake are for a while. Lines of different learners may stand in any order.
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
# What may come next; whoever does not join first is there already.
ALLOWED_NEXT = {
    None: (JOIN, LEAVE, SLEEP),
    JOIN: (LEAVE, SLEEP),
    LEAVE: (),
    SLEEP: (LEAVE, WAKE),
    WAKE: (LEAVE, SLEEP),
}
# When, who and what, by number.
Row = tuple[float, int, int]


def read_trace(path: str | Path, names: Sequence[str], asked: int | None = None) -> Changes:
    """The changes of a trace; `SettingError` names file and line.

    `names` are the learners of the fleet, and `asked` how many were asked for, if not the file's.
    """
    lines = csv.reader(StringIO(read_text(path), newline=""), strict=True)
    try:
        return _to_changes(list(_parse_rows(lines, names, asked)))
    except (ValueError, csv.Error) as error:
        raise SettingError(f"{path}: line {max(1, lines.line_num)}: {error}") from None


def _to_changes(rows: Sequence[Row]) -> Changes:
    at_s, learners, what = zip(*rows, strict=True) if rows else ((), (), ())
    column = Changes(
        np.array(at_s, dtype=np.float64),
        np.array(learners, dtype=np.int64),
        np.array(what, dtype=np.int64),
    )
    return Changes.merge([column])


def _parse_rows(
    lines: Iterator[list[str]], names: Sequence[str], asked: int | None
) -> Iterator[Row]:
    if (header := next(lines, [])) != HEADER:
        raise ValueError(f"{','.join(header)!r:.60}; expected {','.join(HEADER)!r}")
    numbers = {name: number for number, name in enumerate(names)}
    last: dict[str, Row] = {}
    for cells in filter(None, lines):
        if len(cells) != len(HEADER):
            raise ValueError(f"{','.join(cells)!r:.60}; expected {', '.join(HEADER)}")
        name, at_s, word = cells
        if name not in numbers:
            raise ValueError(_describe_unknown(name, names, asked))
        row = _parse_time(at_s), numbers[name], _parse_event(word)
        _check_order(name, last.get(name), row)
        last[name] = row
        yield row


def _parse_time(at_s: str) -> float:
    try:
        found = float(at_s)
    except ValueError:
        found = -1.0
    if not (found >= 0 and isfinite(found)):
        raise ValueError(f"at_s is {at_s!r:.60}; expected a number of at least 0")
    return found


def _parse_event(word: str) -> int:
    if word not in CHANGE_NAMES:
        raise ValueError(f"event is {word!r:.60}; {suggest(word, CHANGE_NAMES)}")
    return CHANGE_NAMES.index(word)


def _describe_unknown(name: str, names: Sequence[str], asked: int | None) -> str:
    said = f"no learner is called {name!r:.60}; "
    if asked is None and (near := nearest_word(name, names)):
        return f"{said}did you mean {near}?"
    said += f"expected one of the {len(names)} of this fleet, "
    said += f"{names[0]!r} to {names[-1]!r}" if len(names) > 1 else repr(names[0])
    if asked is None:
        return said
    return f"{said}; names depend on how many learners there are, and {asked} were asked for"


def _check_order(name: str, last: Row | None, row: Row) -> None:
    """That a learner goes on from where it was."""
    before = last and last[2]
    if last is not None and row[0] < last[0]:
        raise ValueError(f"at_s is {row[0]:g}; expected at least {last[0]:g}, the last of {name!r}")
    if row[2] not in ALLOWED_NEXT[before]:
        after = "first" if before is None else f"after {CHANGE_NAMES[before]}"
        expected = (
            ", ".join(CHANGE_NAMES[each] for each in ALLOWED_NEXT[before])
            or "nothing: it left for good"
        )
        raise ValueError(f"{name!r} has {CHANGE_NAMES[row[2]]} {after}; expected {expected}")
