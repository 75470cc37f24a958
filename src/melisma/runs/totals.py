"""The sums of each learner over a run, in columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, overload

import numpy as np

from melisma.cycle.events import PHASES
from melisma.fleet.array_types import Floats, Ints
from melisma.runs.assignments import Assignments, Status

UNCOUNTED_STATUSES: tuple[Status, ...] = ("late", "dropped", "refused", "left")


@dataclass(frozen=True)
class LearnerTotal:
    """The sums of one learner over a run; `late` to `left` count updates that do not count."""

    name: str
    cycles: int
    shards: int
    counted_visits: int
    planned_visits: int
    phases: tuple[float, ...]
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
    planned_visits: Ints
    phases: Floats
    late: Ints
    dropped: Ints
    refused: Ints
    left: Ints

    @classmethod
    def from_assignments(
        cls, names: tuple[str, ...], works: Iterable[Assignments]
    ) -> "LearnerTotals":
        """Sum the assignments of all cycles."""
        counts: dict[str, Any] = {name: np.zeros(len(names), np.int64) for name in COUNTS}
        phases = np.zeros((len(names), len(PHASES)))
        for work in works:
            counts["cycles"][work.learner] += 1
            for name in ("shards", "counted_visits", "planned_visits"):
                counts[name] += _sums(work, getattr(work, name), len(names)).astype(np.int64)
            for status in UNCOUNTED_STATUSES:
                counts[status] += _sums(work, work.with_status(status), len(names)).astype(np.int64)
            for phase, seconds in enumerate(work.phases.T):
                phases[:, phase] += _sums(work, np.nan_to_num(seconds), len(names))
        return cls(names, phases=phases, **counts)

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
        phases = tuple(self.phases[learner].tolist())
        return LearnerTotal(name=self.names[learner], phases=phases, **counts)

    def __repr__(self) -> str:
        return f"<totals of {len(self)} learners>"

    @property
    def uncounted(self) -> Ints:
        """The number of updates of each learner that did not count."""
        return self.late + self.dropped + self.refused + self.left


COUNTS = ("cycles", "shards", "counted_visits", "planned_visits", *UNCOUNTED_STATUSES)


def _sums(work: Assignments, values: Any, count: int) -> Floats:
    return np.bincount(work.learner, values, count).astype(np.float64, copy=False)
