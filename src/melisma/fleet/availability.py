"""The times at which learners join, leave, fall asleep and wake.

A learner joins, is awake and asleep in turn, and leaves for good. Spans awake and asleep are
exponentially distributed and drawn by the fleet's seed, the learner's number and the number of the
span alone: a longer run only adds changes to those of a shorter one. The events of a trace
replace the availability table of a learner.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from melisma.errors import SettingError
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.day_hours import DayHours
from melisma.fleet.rng import uniform

CHANGE_NAMES = ("join", "leave", "sleep", "wake")
JOIN, LEAVE, SLEEP, WAKE = range(4)
# Spans that are drawn at once.
BLOCK_SPANS = 2**20
# More would not fit into memory.
MAX_CHANGES = 20_000_000


@dataclass(frozen=True, eq=False)
class Changes:
    """Changes of availability as columns: time, learner, and index into `CHANGE_NAMES`.

    By time, then by learner; several changes of a learner at one instant in their own order.
    """

    at_s: Floats
    learners: Ints
    kinds: Ints

    @classmethod
    def merge(cls, parts: Sequence["Changes"]) -> "Changes":
        """Return all changes in order; each part keeps the order of a learner's own changes."""
        at_s = np.concatenate([np.zeros(0), *(part.at_s for part in parts)])
        none = np.zeros(0, dtype=np.int64)
        learners = np.concatenate([none, *(part.learners for part in parts)])
        kinds = np.concatenate([none, *(part.kinds for part in parts)])
        order = np.lexsort((learners, at_s))
        return cls(at_s[order], learners[order], kinds[order])

    def __len__(self) -> int:
        return self.at_s.size

    def select(self, chosen: NDArray[np.bool_]) -> "Changes":
        """Return the changes where the mask is true."""
        return Changes(self.at_s[chosen], self.learners[chosen], self.kinds[chosen])


@dataclass(frozen=True, eq=False)
class BatteryLimits:
    """Joules that each battery holds, infinite without one, and the power that recharges it."""

    capacity_j: Floats
    recharge_w: Floats

    @property
    def is_limited(self) -> bool:
        """Whether any device has a battery."""
        return bool(np.isfinite(self.capacity_j).any())


@dataclass(frozen=True, eq=False)
class Availability:
    """Times of joining and leaving, mean spans awake and asleep, and traced changes.

    A learner that stays has `leaves_s` of infinity; one that never sleeps, `awake_s` of infinity.
    A traced learner joins at 0, stays and never sleeps, except for the events of the trace.
    Outside its `hours` a learner is absent, as it is while its `battery` is empty.
    """

    joins_s: Floats
    leaves_s: Floats
    awake_s: Floats
    asleep_s: Floats
    traced: Changes
    hours: DayHours
    battery: BatteryLimits

    @property
    def present_at_start(self) -> NDArray[np.bool_]:
        """A mask of the learners that are present and awake when a run starts."""
        present = self.joins_s <= 0.0
        traced, first = np.unique(self.traced.learners, return_index=True)
        present[traced] = self.traced.kinds[first] != JOIN
        at_start = self.traced.select(self.traced.at_s <= 0.0)
        # Of several changes at 0 the last one counts.
        present[at_start.learners] = np.isin(at_start.kinds, (JOIN, WAKE))
        return present & self.hours.open_at_start

    @property
    def settings_in_use(self) -> list[str]:
        """The settings by which a learner is absent or asleep at some time, as in a fleet file."""
        used = {
            "joins_s": np.any(self.joins_s > 0.0),
            "leaves_s": np.isfinite(self.leaves_s).any(),
            "awake_s and asleep_s": np.isfinite(self.awake_s).any(),
            "trace": len(self.traced) > 0,
            "hours": not np.isnan(self.hours.from_s).all(),
            "battery_j": self.battery.is_limited,
        }
        return [name for name, in_use in used.items() if in_use]

    def changes(self, until_s: float, seed: int) -> Changes:
        """Return all changes after 0 and up to `until_s`."""
        if not until_s >= 0:
            raise SettingError(f"changes until {until_s:g} s; expected at least 0")
        sleepers = np.flatnonzero(np.isfinite(self.awake_s) & (self.joins_s < until_s))
        self._check(sleepers, until_s)
        parts = [_single_changes(self.joins_s, JOIN, until_s)]
        for start in range(0, sleepers.size, BLOCK_SPANS // 2):
            parts += self._sleep(sleepers[start : start + BLOCK_SPANS // 2], until_s, seed)
        traced = self.traced.select(_in_range(self.traced.at_s, until_s))
        return Changes.merge([*parts, _single_changes(self.leaves_s, LEAVE, until_s), traced])

    def _sleep(self, learners: Ints, until_s: float, seed: int) -> Iterator[Changes]:
        """Yield the changes of sleeping learners; spans are numbered from 0, awake first."""
        at_s, first, spans = self.joins_s[learners], 0, 2
        while learners.size:
            numbers = np.arange(first, first + spans)
            ends_s = self._ends_s(learners, at_s, numbers, seed)
            in_time = (ends_s <= until_s) & (ends_s < self.leaves_s[learners, None])
            row, column = np.nonzero(in_time)
            kinds = np.where(numbers % 2, WAKE, SLEEP)[column]
            yield Changes(ends_s[in_time], learners[row], kinds)
            more = in_time[:, -1]
            learners, at_s, first = learners[more], ends_s[more, -1], first + spans
            spans = min(2 * spans, max(1, BLOCK_SPANS // max(1, learners.size)))

    def _ends_s(self, learners: Ints, at_s: Floats, numbers: Ints, seed: int) -> Floats:
        """Return the ends of spans, learners by spans; the first span starts at `at_s`."""
        means = np.stack([self.awake_s[learners], self.asleep_s[learners]], axis=1)
        ends_s = -np.log1p(-uniform(seed, "sleep", 0, learners[:, None], numbers))
        ends_s *= means[:, numbers % 2]
        ends_s[:, 0] += at_s
        return np.cumsum(ends_s, axis=1, out=ends_s)

    def _check(self, sleepers: Ints, until_s: float) -> None:
        """Raise SettingError if the expected number of changes does not fit into memory."""
        present_s = np.minimum(self.leaves_s[sleepers], until_s) - self.joins_s[sleepers]
        period_s = self.awake_s[sleepers] + self.asleep_s[sleepers]
        expected = float(np.sum(2 * present_s / period_s))
        if expected > MAX_CHANGES:
            raise SettingError(
                f"learners fall asleep and wake about {expected:.3g} times in {until_s:g} s; "
                f"expected at most {MAX_CHANGES:.3g}: use longer awake_s or asleep_s, or fewer "
                "learners"
            )


def _single_changes(at_s: Floats, kind: int, until_s: float) -> Changes:
    """Return one change per learner, if it happens by `until_s`."""
    learners = np.flatnonzero(_in_range(at_s, until_s))
    return Changes(at_s[learners], learners, np.full(learners.size, kind))


def _in_range(at_s: Floats, until_s: float) -> NDArray[np.bool_]:
    return (at_s > 0.0) & (at_s <= until_s) & np.isfinite(at_s)
