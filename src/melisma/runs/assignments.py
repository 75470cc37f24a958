"""The assignments of all learners in a cycle, in columns, so that a million need no objects.

A column with equal rows takes the memory of one number. Columns that were given out (`freeze`) are
read-only; later changes are made in copies.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any, Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray

from melisma.cycle import commands
from melisma.cycle.events import PHASES
from melisma.cycle.ragged import concatenate_ranges
from melisma.fleet.array_types import Floats, Ints

Status = Literal["training", "counted", "carried", "late", "dropped", "refused", "left"]
Small = NDArray[np.int32]
Names = Sequence[str] | NDArray[np.object_]

STATUSES: tuple[Status, ...] = get_args(Status)
COUNTED: tuple[Status, ...] = ("counted", "carried")  # the update is in a model
UNKNOWN_PHASES = (nan,) * len(PHASES)
TYPES: dict[str, type[np.generic]] = {
    "learner": np.int32,
    "attempt": np.int32,
    "extensions": np.int32,
    "shards": np.int32,
    "passes": np.int32,
    "samples": np.int64,
    "dispatched_s": np.float64,
    "predicted_s": np.float64,
    "allowed_visits": np.float64,
    "visits": np.int64,
    "shipped": np.int32,
    "weight": np.float64,
    "loss": np.float64,
    "phases": np.float64,
    "arrived_s": np.float64,
    "ended_s": np.float64,
    "status": np.int8,
    "reason": np.int32,
}


@dataclass(frozen=True)
class Assignment:
    """The work of one learner in one cycle, with instants as in the trace.

    `attempt` is the latest of its `extensions`, whose shards and samples are included; released and
    unused ones are not. `visits` are the latest known; `allowed_visits` are those that the
    learner's measured rate would have allowed between dispatch and deadline; `shipped` is the
    number of fetched shards; `weight` is 0 unless the update was aggregated; `predicted_s` counts
    from `dispatched_s`; `ended_s` is when the update was counted, dropped or lost, or the cycle
    closed without it. A `late` update that joined a later average is `carried`.
    """

    cycle: int
    learner: int
    name: str
    attempt: int
    shards: int
    passes: int
    samples: int
    dispatched_s: float
    extensions: int = 0
    predicted_s: float = nan
    allowed_visits: float = nan
    visits: int = 0
    shipped: int = 0
    weight: float = 0.0
    loss: float = nan
    phases: tuple[float, ...] = UNKNOWN_PHASES
    arrived_s: float = nan
    ended_s: float = nan
    status: Status = "training"
    reason: str = ""

    @property
    def planned_visits(self) -> int:
        """Visits to make: samples times passes."""
        return self.samples * self.passes

    @property
    def counted_visits(self) -> int:
        """Visits that count: 0 unless the update does."""
        return self.visits if self.status in COUNTED else 0

    @property
    def capacity_used(self) -> float:
        """Visits that count divided by allowed visits, at most 1; NaN if unknown."""
        known = self.allowed_visits > 0
        return min(1.0, self.counted_visits / self.allowed_visits) if known else nan

    @property
    def busy_s(self) -> float:
        """Seconds in phases other than waiting."""
        return sum(self.phases[1:])


@dataclass(frozen=True, eq=False, repr=False)
class Assignments(Sequence[Assignment]):
    """One column for each field of `Assignment`, in the order of learners and their attempts.

    `status` is an index in `STATUSES`, `reason` one in `reasons`; `phases` are rows by `PHASES`.
    """

    cycle: int
    names: Names
    reasons: Sequence[str]
    learner: Small
    attempt: Small
    extensions: Small
    shards: Small
    passes: Small
    samples: Ints
    dispatched_s: Floats
    predicted_s: Floats
    allowed_visits: Floats
    visits: Ints
    shipped: Small
    weight: Floats
    loss: Floats
    phases: Floats
    arrived_s: Floats
    ended_s: Floats
    status: NDArray[np.int8]
    reason: Small

    @classmethod
    def from_dispatch(
        cls,
        command: commands.Dispatch,
        samples: Ints,
        at_s: float,
        names: Names,
        reasons: Sequence[str],
    ) -> "Assignments":
        """Return the assignments of a command, with the samples of each."""
        known = {
            "learner": command.learners,
            "attempt": command.attempts,
            "shards": command.shards.counts,
            "passes": command.passes,
            "samples": samples,
            "dispatched_s": at_s,
            "predicted_s": command.predicted_s,
        }
        columns = {name: _column(name, value, samples.size) for name, value in known.items()}
        return cls(
            command.cycle, names, reasons, **_unknown_columns(samples.size), **columns
        ).sort()

    @classmethod
    def from_records(cls, records: Iterable[Assignment]) -> "Assignments":
        """Build from single assignments of one cycle."""
        rows = list(records)
        if not rows:
            return NO_ASSIGNMENTS
        columns = {name: [getattr(row, name) for row in rows] for name in TYPES}
        reasons = sorted({"", *columns["reason"]})
        columns["status"] = [STATUSES.index(status) for status in columns["status"]]
        columns["reason"] = [reasons.index(reason) for reason in columns["reason"]]
        names = [""] * (max(columns["learner"]) + 1)
        for row in rows:
            names[row.learner] = row.name
        arrays: dict[str, Any] = {name: _column(name, v, len(rows)) for name, v in columns.items()}
        return cls(rows[0].cycle, names, reasons, **arrays).sort()

    def __len__(self) -> int:
        return self.learner.size

    @overload
    def __getitem__(self, index: int) -> Assignment: ...
    @overload
    def __getitem__(self, index: slice) -> "Assignments": ...
    def __getitem__(self, index: int | slice) -> "Assignment | Assignments":
        if isinstance(index, slice):
            return self._take(index)
        row = range(len(self))[index]
        values = {name: getattr(self, name)[row].tolist() for name in TYPES}
        return Assignment(
            cycle=self.cycle,
            name=self.names[values["learner"]],
            **values
            | {
                "phases": tuple(values["phases"]),
                "status": STATUSES[values["status"]],
                "reason": self.reasons[values["reason"]],
            },
        )

    def __repr__(self) -> str:
        return f"<{len(self)} assignments of cycle {self.cycle}>"

    @property
    def planned_visits(self) -> Ints:
        """Visits that each learner has to make."""
        return self.samples * self.passes

    @property
    def counted_visits(self) -> Ints:
        """Visits of each learner that count."""
        return np.where(self.with_status(*COUNTED), self.visits, 0)

    @property
    def busy_s(self) -> Floats:
        """Seconds of each learner in phases other than waiting."""
        busy: Floats = self.phases[:, 1:].sum(axis=1)
        return busy

    @property
    def first_attempt(self) -> Small:
        """The attempt of each dispatch, before any extension."""
        return self.attempt - self.extensions

    def with_status(self, *statuses: Status) -> NDArray[np.bool_]:
        """Return which rows have one of these statuses."""
        codes = [STATUSES.index(status) for status in statuses]
        rows: NDArray[np.bool_] = self.status == codes[0]
        for code in codes[1:]:
            rows |= self.status == code
        return rows

    def find(self, learners: Ints | Small, attempts: Ints | Small) -> Ints:
        """Return the row of each assignment, by any attempt it covers; -1 where it is missing."""
        if not len(self):
            return np.full(learners.size, -1)
        rows = self._first(learners)
        other = np.flatnonzero(~self._covers(rows, learners, attempts))
        if other.size:
            rows[other] = self._later(learners[other], attempts[other])
        return rows

    def rows_of(self, learners: Ints) -> Ints:
        """Return the rows of all attempts of learners."""
        numbers = learners.astype(np.int32)
        first, last = (np.searchsorted(self.learner, numbers, side) for side in ("left", "right"))
        return concatenate_ranges(first, last - first)

    def latest_rows(self, learners: Ints) -> Ints:
        """Return the row of the last attempt of each learner, -1 where it is missing."""
        last = np.searchsorted(self.learner, learners.astype(np.int32), "right") - 1
        known = last >= 0
        known[known] = self.learner[last[known]] == learners[known]
        return np.where(known, last, -1)

    def update(self, rows: Ints, **values: Any) -> "Assignments":
        """Set values of rows, in place unless the column was given out."""
        columns = {name: _put(getattr(self, name), rows, v) for name, v in values.items()}
        return replace(self, **columns)

    def end(self, rows: Ints, status: Status, reason: int, at_s: Any) -> "Assignments":
        """End those rows that are still in training."""
        open_rows = self.status[rows] == STATUSES.index("training")
        ended_s = np.broadcast_to(at_s, rows.shape)[open_rows]
        code = STATUSES.index(status)
        return self.update(rows[open_rows], status=code, reason=reason, ended_s=ended_s)

    def merge(self, later: "Assignments") -> "Assignments":
        """Return both; an assignment that occurs twice is the later one."""
        old = self.find(later.learner, later.attempt)
        kept = np.delete(np.arange(len(self)), old[old >= 0])
        rows = np.concatenate([kept, len(self) + np.arange(len(later))])
        keys = [_keys(work.learner, work.first_attempt) for work in (self, later)]
        rows = rows[np.argsort(np.concatenate(keys)[rows], kind="stable")]
        columns: dict[str, Any] = {
            name: _take_of_both(getattr(self, name), getattr(later, name), rows) for name in TYPES
        }
        return replace(self, **columns)

    def sort(self) -> "Assignments":
        """Sort by learner and first attempt."""
        keys = _keys(self.learner, self.first_attempt)
        if np.all(keys[1:] >= keys[:-1]):
            return self
        return self._take(np.argsort(keys, kind="stable"))

    def freeze(self) -> "Assignments":
        """Make all columns read-only."""
        for name in TYPES:
            getattr(self, name).flags.writeable = False
        return self

    def _take(self, rows: slice | Ints) -> "Assignments":
        return replace(self, **{name: getattr(self, name)[rows] for name in TYPES})

    def _first(self, learners: Ints | Small) -> Ints:
        """Return the row of the first attempt of each learner, if it has one."""
        lowest, last = int(self.learner[0]), len(self) - 1
        if self.learner[last] - lowest == last:
            return np.clip(learners.astype(np.int64) - lowest, 0, last)
        return np.minimum(np.searchsorted(self.learner, learners.astype(np.int32)), last)

    def _later(self, learners: Ints | Small, attempts: Ints | Small) -> Ints:
        """Return the rows of later attempts, -1 where it is missing."""
        keys, wanted = _keys(self.learner, self.first_attempt), _keys(learners, attempts)
        rows = np.maximum(np.searchsorted(keys, wanted, "right") - 1, 0)
        return np.where(self._covers(rows, learners, attempts), rows, -1)

    def _covers(
        self, rows: Ints, learners: Ints | Small, attempts: Ints | Small
    ) -> NDArray[np.bool_]:
        """Return whether each row is of the learner, and from its dispatch or an extension."""
        last = self.attempt[rows]
        first = last - self.extensions[rows]
        covers: NDArray[np.bool_] = self.learner[rows] == learners
        covers &= (first <= attempts) & (attempts <= last)
        return covers


def _unknown_columns(count: int) -> dict[str, Any]:
    """Return the columns that are unknown at dispatch."""
    defaults: dict[str, Any] = {"visits": 0, "shipped": 0, "weight": 0.0, "loss": nan}
    defaults |= {
        "extensions": 0,
        "allowed_visits": nan,
        "phases": UNKNOWN_PHASES,
        "arrived_s": nan,
        "ended_s": nan,
        "status": 0,
        "reason": 0,
    }
    return {name: _column(name, value, count) for name, value in defaults.items()}


def _column(name: str, values: Any, count: int) -> Any:
    """Return a column of `count` rows, in the memory of one number if all are equal."""
    column = np.asarray(values, TYPES[name])
    if column.ndim == 1 and count > 1 and name != "phases" and _all_equal(column, column[0]):
        column = column[0]
    shape = (count, len(PHASES)) if name == "phases" else (count,)
    return np.broadcast_to(column, shape)


def _take_of_both(column: Any, later: Any, rows: Ints) -> Any:
    """Return these rows of one column and another one after it; equal rows stay one number."""
    constant = column.size and later.size and not column.strides[0] and not later.strides[0]
    if constant and np.array_equal(column[0], later[0], equal_nan=True):
        return np.broadcast_to(column[0], (rows.size, *column.shape[1:]))
    return np.concatenate([column, later])[rows]


def _put(column: Any, rows: Ints, values: Any) -> Any:
    if not rows.size or (not column.strides[0] and _all_equal(values, column[0])):
        return column
    if not column.flags.writeable:
        column = column.copy()
    column[rows] = values
    return column


def _all_equal(values: Any, value: Any) -> bool:
    """Return whether all rows have this value; NaN equals NaN."""
    return np.array_equal(values, np.broadcast_to(value, np.shape(values)), equal_nan=True)


def _keys(learners: Ints | Small, attempts: Ints | Small) -> Ints:
    """Return learner and attempt of each assignment as one sortable number."""
    keys: Ints = learners.astype(np.int64) << 32 | attempts
    return keys


NO_ASSIGNMENTS = Assignments(0, (), ("",), **{name: _column(name, 0, 0) for name in TYPES})
