"""The sums of each learner over a run, in columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from melisma.cycle.events import PHASES
from melisma.fleet.array_types import Floats, Ints
from melisma.runs.assignments import Assignments, Status
from melisma.runs.capacity import TIME_USES, capacity_used, visits_of_capacity

if TYPE_CHECKING:
    from melisma.runs.report import Cycle

UNCOUNTED_STATUSES: tuple[Status, ...] = ("late", "dropped", "refused", "left")


@dataclass(frozen=True)
class LearnerTotal:
    """The sums of one learner over a run.

    `done_visits` are the visits that count, in each cycle at most the planned ones. `late` to
    `left` count updates that do not count, `carried` those that joined a later average.
    `capacity_used` is over ended cycles, `time_use_s` in the order of `TIME_USES`.
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
    carried: int
    late: int
    dropped: int
    refused: int
    left: int


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
    carried: Ints
    late: Ints
    dropped: Ints
    refused: Ints
    left: Ints

    @classmethod
    def from_cycles(cls, names: tuple[str, ...], cycles: "Iterable[Cycle]") -> "LearnerTotals":
        """Sum the assignments of all cycles."""
        counts: dict[str, Any] = {name: np.zeros(len(names), np.int64) for name in COUNTS}
        phases = np.zeros((len(names), len(PHASES)))
        time_use_s, capacity = np.zeros((len(names), len(TIME_USES))), np.zeros((2, len(names)))
        for cycle in cycles:
            work = cycle.assignments
            counts["cycles"][work.learner] += 1
            for name in ("shards", "counted_visits", "planned_visits"):
                counts[name] += _sums(work, getattr(work, name), len(names)).astype(np.int64)
            done = np.minimum(work.counted_visits, work.planned_visits)
            counts["done_visits"] += _sums(work, done, len(names)).astype(np.int64)
            for status in ("carried", *UNCOUNTED_STATUSES):
                counts[status] += _sums(work, work.with_status(status), len(names)).astype(np.int64)
            for phase, seconds in enumerate(work.phases.T):
                phases[:, phase] += _sums(work, np.nan_to_num(seconds), len(names))
            for use, seconds in enumerate(cycle.time_use_s.T):
                time_use_s[:, use] += _sums(work, seconds, len(names))
            if cycle.ending in ("aggregated", "empty"):
                capacity += [_sums(work, v, len(names)) for v in visits_of_capacity(work)]
        used = capacity_used(*capacity)
        return cls(names, phases=phases, time_use_s=time_use_s, capacity_used=used, **counts)

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
            **counts,
        )

    def __repr__(self) -> str:
        return f"<totals of {len(self)} learners>"

    @property
    def uncounted(self) -> Ints:
        """The number of updates of each learner that did not count."""
        return self.late + self.dropped + self.refused + self.left


COUNTS = (
    *("cycles", "shards", "counted_visits", "done_visits", "planned_visits"),
    *("carried", *UNCOUNTED_STATUSES),
)


def _sums(work: Assignments, values: Any, count: int) -> Floats:
    return np.bincount(work.learner, values, count).astype(np.float64, copy=False)
