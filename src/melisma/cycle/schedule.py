"""The lengths of cycles in a run that has to end by an instant.

Short cycles average often, but in each of them learners spend some time without training: they
fetch the model, upload the update, and wait from the end of a cycle to the begin of the next. The
rule: take the shortest cycles in which these fixed costs are at most `MAX_FIXED_SHARE` of the time,
but average at least `MIN_AVERAGES` and at most `MAX_AVERAGES` times in a run, and let cycles be
long enough for each learner to train a shard if that leaves enough of them. The time that is left
is divided into equal cycles, anew before each of them, with costs as measured so far.
"""

from dataclasses import dataclass
from math import floor, isnan, nan

import numpy as np

from melisma.cycle.events import PHASES, UpdatesReceived
from melisma.fleet.array_types import Bools
from melisma.fleet.task import MIN_CYCLE_S

MAX_FIXED_SHARE = 0.1
MIN_AVERAGES, MAX_AVERAGES = 10, 200
# A cycle whose fixed costs are more than half of it is not worth its time.
MIN_LENGTH_PER_FIXED = 2.0
# If a cycle was too short for a shard of some learners, later ones are this much longer,
# up to this part of the run.
GROWTH, MAX_GROWN_SHARE = 1.5, 1 / 20
# The last cycle leaves this part of itself for updates that are late.
LAST_TAIL_FRACTION = 0.05

FIXED_PHASES = [PHASES.index(name) for name in ("fetch model", "load", "upload")]


@dataclass(eq=False)
class Schedule:
    """When a run ends, and the measured costs that its cycle lengths follow from."""

    ends_s: float
    least_s: float = MIN_CYCLE_S  # length in which learners can train a shard, as far as known
    most_s: float = MIN_CYCLE_S  # to which `least_s` grows while some learners cannot
    fixed_s: float = nan  # of a learner in a cycle: the mean, weighted by visits
    gap_s: float = 0.0  # from the end of a cycle to the begin of the next
    closing_s: float = 0.0  # the longest time to average and evaluate
    _closed_s: float = nan  # when the latest cycle was closed
    _sums: tuple[float, float] = 0.0, 0.0  # of this cycle: visits * fixed seconds, visits

    @classmethod
    def between(cls, begins_s: float, ends_s: float) -> "Schedule":
        """Return the schedule of a run that begins and ends at these instants."""
        total_s = ends_s - begins_s
        return cls(ends_s, max(MIN_CYCLE_S, total_s / MAX_AVERAGES), MAX_GROWN_SHARE * total_s)

    @property
    def stop_s(self) -> float:
        """The instant at which the last cycle has to be closed."""
        return self.ends_s - self.closing_s

    def length_s(self, at_s: float, averages: int) -> float | None:
        """Return the length of the next cycle, None if there is no time for one more."""
        left_s, gap_s = self.stop_s - at_s, self.gap_s
        fixed_s = 0.0 if isnan(self.fixed_s) else self.fixed_s
        least_s = max(MIN_CYCLE_S, MIN_LENGTH_PER_FIXED * fixed_s)
        if left_s < least_s:
            return None
        period_s = max((fixed_s + gap_s) / MAX_FIXED_SHARE, self.least_s + gap_s)
        cycles = max(floor((left_s + gap_s) / period_s), MIN_AVERAGES - averages, 1)
        cycles = min(cycles, max(floor((left_s + gap_s) / (least_s + gap_s)), 1))
        length_s = (left_s - (cycles - 1) * gap_s) / cycles
        return _round_down((1.0 - LAST_TAIL_FRACTION) * left_s if cycles == 1 else length_s)

    def lengthen(self, length_s: float, at_s: float) -> float | None:
        """Return a longer length for a cycle that is too short for a shard, None without time."""
        longest_s = _round_down((1.0 - LAST_TAIL_FRACTION) * (self.stop_s - at_s))
        if length_s >= longest_s:
            return None
        self.least_s = min(2.0 * length_s, longest_s)
        return self.least_s

    def record_dispatch(self, at_s: float) -> None:
        """Learn the gap since the cycle before this one."""
        if not isnan(self._closed_s):
            self.gap_s = at_s - self._closed_s

    def record_idle(self, length_s: float) -> None:
        """Learn that some learners could not train a shard in a cycle of this length."""
        self.least_s = max(self.least_s, min(GROWTH * length_s, self.most_s))

    def record_updates(self, event: UpdatesReceived, counted: Bools) -> None:
        """Add the fixed costs of updates to those of this cycle."""
        visits = event.visits[counted]
        fixed_s = event.phases[counted][:, FIXED_PHASES].sum(axis=1)
        weighted, total = self._sums
        self._sums = weighted + float(np.nansum(visits * fixed_s)), total + float(visits.sum())

    def record_close(self, at_s: float) -> None:
        """End a cycle: average its fixed costs with those of the cycles before."""
        weighted, total = self._sums
        self._closed_s, self._sums = at_s, (0.0, 0.0)
        if total:
            fixed_s = weighted / total
            self.fixed_s = fixed_s if isnan(self.fixed_s) else (self.fixed_s + fixed_s) / 2

    def exclude(self, downtime_s: float) -> None:
        """Leave the time without an orchestrator out of the gap and of the time to evaluate."""
        self._closed_s += downtime_s

    def record_evaluation(self, at_s: float) -> None:
        """Learn how long it takes to average and evaluate."""
        self.closing_s = max(self.closing_s, at_s - self._closed_s)


def _round_down(seconds: float) -> float:
    """Return whole milliseconds, as people read them."""
    return floor(1000 * seconds) / 1000
