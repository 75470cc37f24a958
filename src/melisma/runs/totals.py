"""The sums of each learner over a run, in columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from melisma.cycle.events import PHASES
from melisma.fleet.array_types import Floats, Ints
from melisma.runs.assignments import Assignments, Status
from melisma.runs.capacity import LOSSES, TIME_USES, fraction, visits_of_capacity
from melisma.runs.unassigned import REASONS

if TYPE_CHECKING:
    from melisma.runs.cycle_figures import Cycle

# Columns that count the cycles of a learner without an assignment, by `REASONS`.
UNASSIGNED_COUNTS = tuple(reason.replace(" ", "_") for reason in REASONS)
UNCOUNTED_STATUSES: tuple[Status, ...] = ("late", "dropped", "refused", "left")


@dataclass(frozen=True)
class LearnerTotal:
    """The sums of one learner over a run.

    `done_visits` are the visits that count, in each cycle at most the planned ones. `late` to
    `left` count updates that do not count, `carried` those that joined a later average, and
    `not_ready` to `absent` cycles without an assignment. `capacity_used` and `capacity_lost`, in
    the order of `LOSSES`, are over ended cycles; `time_use_s` is in the order of `TIME_USES`.
    `bytes`, `joules` and `cost` are NaN if sizes or rates are unknown.
    """

    name: str
    cycles: int
    shards: int
    counted_visits: int
    done_visits: int
    planned_visits: int
    phases: tuple[float, ...]
    time_use_s: tuple[float, ...]
    capacity_used: float
    capacity_lost: tuple[float, ...]
    carried: int
    late: int
    dropped: int
    refused: int
    left: int
    not_ready: int
    without_work: int
    absent: int
    bytes: float
    joules: float
    cost: float


@dataclass(frozen=True, eq=False, repr=False)
class LearnerTotals(Sequence[LearnerTotal]):
    """One column for each field of `LearnerTotal`, in the order of learners."""

    names: tuple[str, ...]
    cycles: Ints
    shards: Ints
    counted_visits: Ints
    done_visits: Ints
    planned_visits: Ints
    phases: Floats
    time_use_s: Floats
    capacity_used: Floats
    capacity_lost: Floats
    carried: Ints
    late: Ints
    dropped: Ints
    refused: Ints
    left: Ints
    not_ready: Ints
    without_work: Ints
    absent: Ints
    bytes: Floats
    joules: Floats
    cost: Floats

    @classmethod
    def from_cycles(cls, names: tuple[str, ...], cycles: "Iterable[Cycle]") -> "LearnerTotals":
        """Sum the assignments of all cycles."""
        sums = _LearnerSums(len(names))
        for cycle in cycles:
            sums.add(cycle)
        used, allowed = sums.capacity
        return cls(
            names,
            phases=sums.phases,
            time_use_s=sums.time_use_s,
            capacity_used=fraction(used, allowed),
            capacity_lost=fraction(sums.lost, allowed[:, None]),
            **sums.counts,
            **dict(zip(USAGE, sums.usage.T, strict=True)),
        )

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> LearnerTotal: ...
    @overload
    def __getitem__(self, index: slice) -> "LearnerTotals": ...
    def __getitem__(self, index: int | slice) -> "LearnerTotal | LearnerTotals":
        if isinstance(index, slice):
            columns = [column.name for column in fields(self)]
            return replace(self, **{name: getattr(self, name)[index] for name in columns})
        learner = range(len(self))[index]
        counts = {name: int(getattr(self, name)[learner]) for name in COUNTS}
        return LearnerTotal(
            name=self.names[learner],
            phases=tuple(self.phases[learner].tolist()),
            time_use_s=tuple(self.time_use_s[learner].tolist()),
            capacity_used=float(self.capacity_used[learner]),
            capacity_lost=tuple(self.capacity_lost[learner].tolist()),
            **counts,
            bytes=float(self.bytes[learner]),
            joules=float(self.joules[learner]),
            cost=float(self.cost[learner]),
        )

    def __repr__(self) -> str:
        return f"<totals of {len(self)} learners>"

    @property
    def uncounted(self) -> Ints:
        """The number of updates of each learner that did not count."""
        return self.late + self.dropped + self.refused + self.left


COUNTS = (
    *("cycles", "shards", "counted_visits", "done_visits", "planned_visits"),
    *("carried", *UNCOUNTED_STATUSES, *UNASSIGNED_COUNTS),
)
USAGE = ("bytes", "joules", "cost")


class _LearnerSums:
    """Sums for each learner over the cycles that were added."""

    def __init__(self, learners: int) -> None:
        self.counts: dict[str, Any] = {name: np.zeros(learners, np.int64) for name in COUNTS}
        self.phases = np.zeros((learners, len(PHASES)))
        self.time_use_s = np.zeros((learners, len(TIME_USES)))
        self.capacity, self.lost = np.zeros((2, learners)), np.zeros((learners, len(LOSSES)))
        self.usage = np.zeros((learners, len(USAGE)))

    def add(self, cycle: "Cycle") -> None:
        """Add the assignments of a cycle, and its learners without one."""
        ended, idle = cycle.ending in ("aggregated", "empty"), cycle.unassigned
        self.counts["cycles"][cycle.assignments.learner] += 1
        for reason, name in enumerate(UNASSIGNED_COUNTS):
            self.counts[name][idle.learner[idle.reason == reason]] += 1
        for work, use_s, lost in cycle.time_uses():
            self._count(work)
            _add_columns(self.phases, work, np.nan_to_num(work.phases))
            _add_columns(self.time_use_s, work, use_s)
            rates = cycle.rates
            used = (rates.transferred_bytes(work), rates.joules(work), rates.cost(work))
            _add_columns(self.usage, work, np.column_stack(used))
            if ended:
                _add_columns(self.capacity.T, work, visits_of_capacity(work).T)
                _add_columns(self.lost, work, lost)

    def _count(self, work: Assignments) -> None:
        columns: dict[str, Any] = {
            "shards": work.shards,
            "counted_visits": work.counted_visits,
            "planned_visits": work.planned_visits,
            "done_visits": np.minimum(work.counted_visits, work.planned_visits),
        }
        columns |= {name: work.with_status(name) for name in ("carried", *UNCOUNTED_STATUSES)}
        for name, values in columns.items():
            _add(self.counts[name], work, values)


def _add_columns(totals: Floats, work: Assignments, values: Floats) -> None:
    if _has_all_learners(work):
        _add(totals, work, values)
        return
    for column, each in zip(totals.T, values.T, strict=True):
        _add(column, work, each)


def _add(totals: Any, work: Assignments, values: Any) -> None:
    """Add the values of assignments, which are sorted by learner, to those of their learners."""
    first = int(work.learner[0])
    sums = values if _has_all_learners(work) else np.bincount(work.learner - first, values)
    totals[first : first + len(sums)] += sums.astype(totals.dtype, copy=False)


def _has_all_learners(work: Assignments) -> bool:
    """Return whether the learners are consecutive, with one assignment each."""
    return bool(np.all(np.diff(work.learner) == 1))
