"""The figures of one cycle.

A cycle closes when no update is awaited, or after its deadline. Its time runs from the first
dispatch to closing. It met its deadline if updates were aggregated and it closed by then. Dropped
work counts as not done.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import nan
from typing import Literal

import numpy as np

from melisma.fleet.array_types import Floats
from melisma.learning import metrics
from melisma.runs import capacity
from melisma.runs.assignments import NO_ASSIGNMENTS, STATUSES, Assignments, Status
from melisma.runs.capacity import LOSSES, TIME_USES
from melisma.runs.unassigned import NO_UNASSIGNED, Unassigned
from melisma.runs.usage import UNKNOWN_RATES, UsageRates

Ending = Literal["running", "aggregated", "empty", "interrupted"]

# A cycle that its deadline closes ends when the timer fires: later by this part of the deadline at
# most.
TIMER_TOLERANCE = 0.005
# Assignments whose uses of time are computed at once.
BLOCK_ROWS = 1 << 16


@dataclass(frozen=True)
class Cycle:
    """One global update cycle; figures of a running or empty cycle are NaN.

    `no_pass` counts learners that the plan gave shards, but that could not train them once by the
    deadline; they have no assignment. `handed_on` counts shards that moved from one learner to
    another. With `extension`, learners train until the deadline; with `carries_late`, a late update
    may still join a later average. `unassigned` are the learners without an assignment. `clipped`
    and `left_out` name the learners whose update changed the model too far: its change was scaled
    down, or it did not count; late updates of earlier cycles are included. So are
    `failed_checks`, whose update was not trained as reported, and those `suspected` by the first
    filter; `checked` updates were trained once more in part, and all checks cost as much as the
    training of `check_visits` samples. A cycle is `rejected` if
    the loss of its model was not finite: the model before it was kept.
    """

    number: int
    began_s: float
    deadline_s: float
    assignments: Assignments = NO_ASSIGNMENTS
    ending: Ending = "running"
    reason: str = ""
    closed_s: float = nan
    tail_s: float = 0.0
    no_pass: int = 0
    handed_on: int = 0
    extension: bool = False
    carries_late: bool = False
    unassigned: Unassigned = NO_UNASSIGNED
    clipped: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    failed_checks: tuple[str, ...] = ()
    suspected: tuple[str, ...] = ()
    checked: int = 0
    check_visits: float = 0.0
    rejected: bool = False
    aggregate_s: float = nan
    evaluate_s: float = nan
    loss: float = nan
    accuracy: float = nan
    evaluated_s: float = nan
    rates: UsageRates = field(default=UNKNOWN_RATES, repr=False, compare=False)

    @property
    def empty(self) -> bool:
        """Whether no update was aggregated; `reason` says why."""
        return self.ending == "empty"

    @property
    def cycle_s(self) -> float:
        """Seconds from the first dispatch until the cycle closed; NaN without a new model."""
        return seconds_between(self.began_s, self.closed_s) if self.ending == "aggregated" else nan

    @property
    def met_deadline(self) -> bool:
        """Whether the cycle closed with a new model by its deadline, within `TIMER_TOLERANCE`."""
        return self.cycle_s <= self.deadline_s * (1.0 + TIMER_TOLERANCE)

    @property
    def truancy(self) -> float:
        """Seconds past the deadline as a fraction of the deadline."""
        return float(metrics.truancy(self.cycle_s, self.deadline_s))

    @property
    def fulfilment(self) -> float:
        """Visits done divided by visits planned."""
        return metrics.fulfilment(*self.done_and_planned_visits)

    @property
    def drop_rate(self) -> float:
        """The fraction of planned visits that were not done."""
        return metrics.drop_rate(*self.done_and_planned_visits)

    @cached_property
    def occupancy(self) -> float:
        """The fraction of the cycle that learners were busy, on average over known phases.

        Time after the end of the cycle, such as that of a late update, is not part of it.
        """
        busy_s = np.minimum(self.assignments.busy_s, self.cycle_s)
        return metrics.mean_known(metrics.occupancy(busy_s, self.cycle_s))

    @property
    def capacity_used(self) -> float:
        """Visits that count divided by the visits that learners had time for, at most 1."""
        return float(capacity.fraction(*self.used_and_allowed_visits))

    @property
    def capacity_lost(self) -> dict[str, float]:
        """The other visits that learners had time for, as fractions of them, by `LOSSES`."""
        return capacity.shares_by_loss(self.lost_visits, self.used_and_allowed_visits[1])

    @property
    def time_use_s(self) -> Floats:
        """Seconds of each assignment by `TIME_USES`, from dispatch to the deadline."""
        parts = [use_s for _, use_s, _ in self.time_uses()]
        return np.concatenate([np.empty((0, len(TIME_USES))), *parts])

    def time_uses(self) -> Iterator[tuple[Assignments, Floats, Floats]]:
        """Yield assignments, their `time_use_s` and their lost visits, in blocks to save memory."""
        seconds, lost_visits = np.zeros(len(TIME_USES)), np.zeros(len(LOSSES))
        deadline_at_s = self.began_s + self.deadline_s
        if self.ending == "interrupted":
            deadline_at_s = min(deadline_at_s, self.closed_s)
        for first in range(0, len(self.assignments), BLOCK_ROWS):
            work = self.assignments[first : first + BLOCK_ROWS]
            use_s, lost = np.zeros((len(work), len(TIME_USES))), np.zeros((len(work), len(LOSSES)))
            if self.ending != "running":
                extension = self.extension
                use_s = capacity.time_use_s(work, deadline_at_s, self.closed_s, extension=extension)
                lost = capacity.lost_visits(work, use_s)
            seconds += use_s.sum(axis=0)
            lost_visits += lost.sum(axis=0)
            yield work, use_s, lost
        # The value of the cached property: the sums need no pass of their own.
        self.__dict__["_use_sums"] = seconds, lost_visits

    @property
    def time_use(self) -> dict[str, float]:
        """The fraction of the time of all learners, from dispatch to the deadline, by use."""
        return capacity.shares_by_use(self.total_use_s)

    @cached_property
    def max_staleness(self) -> float:
        """Largest difference of passes between two learners given shards, parts included."""
        return metrics.max_staleness(self._updates)

    @cached_property
    def average_staleness(self) -> float:
        """Mean difference of passes over all pairs of learners given shards."""
        return metrics.average_staleness(self._updates)

    @property
    def counts(self) -> dict[Status, int]:
        """The number of assignments by status."""
        counts = np.bincount(self.assignments.status, minlength=len(STATUSES)).tolist()
        return {status: count for status, count in zip(STATUSES, counts, strict=True) if count}

    @cached_property
    def visits_counted(self) -> int:
        """The number of visits that count."""
        return int(self.assignments.counted_visits.sum())

    @cached_property
    def visits_dropped(self) -> int:
        """The number of planned visits that were not done, of ended assignments."""
        work = self.assignments
        left = np.maximum(work.planned_visits - work.counted_visits, 0)
        return int(left[~work.with_status("training")].sum())

    @cached_property
    def bytes(self) -> float:
        """Bytes of models, down and up, and of fetched shards that updates report."""
        return float(self.rates.transferred_bytes(self.assignments).sum())

    @cached_property
    def joules(self) -> float:
        """Energy for training and transfers."""
        return float(self.rates.joules(self.assignments).sum())

    @cached_property
    def cost(self) -> float:
        """The price of the assigned shards."""
        return float(self.rates.cost(self.assignments).sum())

    @cached_property
    def done_and_planned_visits(self) -> tuple[int, int]:
        """Visits done, at most those planned, and planned; 0 while the cycle is running."""
        if self.ending == "running":
            return 0, 0
        planned = self.assignments.planned_visits
        return int(np.minimum(self.assignments.counted_visits, planned).sum()), int(planned.sum())

    @cached_property
    def used_and_allowed_visits(self) -> Floats:
        """Visits that count and visits that learners had time for; 0 while it is running."""
        if self.ending == "running":
            return np.zeros(2)
        total: Floats = capacity.visits_of_capacity(self.assignments).sum(axis=1)
        return total

    @property
    def lost_visits(self) -> Floats:
        """Allowed visits that do not count, by `LOSSES`; 0 while the cycle is running."""
        return self._use_sums[1]

    @property
    def total_use_s(self) -> Floats:
        """Seconds of all learners by `TIME_USES`."""
        return self._use_sums[0]

    @cached_property
    def _use_sums(self) -> tuple[Floats, Floats]:
        """The sums of `time_use_s` and of the visits that were lost so."""
        deque(self.time_uses(), maxlen=0)
        sums: tuple[Floats, Floats] = self.__dict__["_use_sums"]
        return sums

    @property
    def _updates(self) -> Floats:
        """Passes of each learner given shards: 0 for lost work, NaN while it is under way."""
        work = self.assignments
        passes: Floats = work.counted_visits / np.maximum(work.samples, 1)
        passes[work.with_status("training")] = nan
        return np.concatenate([passes, np.zeros(self.no_pass)])


def used_and_allowed_visits(cycles: Sequence[Cycle]) -> Floats:
    """Return the visits of all cycles that count, and those that learners had time for."""
    pairs = np.array([cycle.used_and_allowed_visits for cycle in cycles])
    total: Floats = pairs.reshape(-1, 2).sum(axis=0)
    return total


def capacity_lost(cycles: Sequence[Cycle]) -> dict[str, float]:
    """Return the visits that learners had time for, but lost, as fractions of them, by `LOSSES`."""
    lost = np.array([cycle.lost_visits for cycle in cycles]).reshape(-1, len(LOSSES)).sum(axis=0)
    return capacity.shares_by_loss(lost, used_and_allowed_visits(cycles)[1])


def seconds_between(start_s: float, end_s: float) -> float:
    """Return a difference of instants without rounding errors below a nanosecond."""
    return round(end_s - start_s, 9)
