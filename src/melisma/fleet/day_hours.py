"""Hours of the day in which devices are available, such as `07:00-23:00` or `22:00-06:00`."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from melisma.fleet.array_types import Floats, Ints

DAY_S = 86_400.0
CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


def parse_clock(key: str, text: str) -> float:
    """Return a time such as `18:00` in seconds since midnight; raise ValueError otherwise."""
    match = CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(f'{key} is {text!r}; expected a time such as "18:00"')
    return 3600.0 * int(match[1]) + 60.0 * int(match[2])


def parse_hours(text: str) -> tuple[float, float]:
    """Return the first and the last second of hours; raise ValueError unless they are valid."""
    first, _, last = text.partition("-")
    if not (CLOCK.fullmatch(first) and CLOCK.fullmatch(last)) or first == last:
        raise ValueError(f'hours is {text!r}; expected two times such as "07:00-23:00"')
    return parse_clock("hours", first), parse_clock("hours", last)


@dataclass(frozen=True, eq=False)
class DayHours:
    """Hours of each learner as seconds since midnight, NaN for all day; a run begins at `begin_s`.

    Hours that end before they begin last over midnight.
    """

    from_s: Floats
    to_s: Floats
    begin_s: float

    @cached_property
    def open_at_start(self) -> NDArray[np.bool_]:
        """A mask of the learners whose hours include the start of a run."""
        since_s, length_s = self._since_s(), (self.to_s - self.from_s) % DAY_S
        return np.isnan(self.from_s) | (since_s < length_s)

    def changes(self, until_s: float, *, begin: bool) -> tuple[Floats, Ints]:
        """Return when hours begin, or end, after the start and up to `until_s`, and for whom."""
        edge_s = self.from_s if begin else self.to_s
        learners = np.flatnonzero(~np.isnan(edge_s))
        first_s = (edge_s[learners] - self.begin_s) % DAY_S
        first_s[first_s == 0.0] = DAY_S
        days = np.arange(int(until_s // DAY_S) + 1) * DAY_S
        at_s = (first_s[:, None] + days).ravel()
        everyone = np.repeat(learners, days.size)
        in_time = at_s <= until_s
        order = np.lexsort((everyone[in_time], at_s[in_time]))
        return at_s[in_time][order], everyone[in_time][order]

    def _since_s(self) -> Floats:
        """Return the seconds since hours last began, at the start of a run."""
        return (self.begin_s - self.from_s) % DAY_S
