"""The work of all learners in a cycle, in columns, so that a million are no million objects.

A column that is the same for all rows takes the room of one number. Columns that somebody was
handed are read-only; whoever goes on with them changes copies.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any, Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray

from melisma.cycle import commands
from melisma.cycle.events import PHASES, Floats
from melisma.cycle.ragged import Ints, concatenate_ranges

Status = Literal["training", "counted", "late", "dropped", "refused", "left"]
Small = NDArray[np.int32]
Names = Sequence[str] | NDArray[np.object_]

STATUSES: tuple[Status, ...] = get_args(Status)
UNKNOWN_PHASES = (nan,) * len(PHASES)
TYPES: dict[str, type[np.generic]] = {
    "learner": np.int32,
    "attempt": np.int32,
    "shards": np.int32,
    "passes": np.int32,
    "samples": np.int64,
    "dispatched_s": np.float64,
    "predicted_s": np.float64,
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
    """The work of one learner in one cycle; instants are those of the trace.

    `visits` are what it is last known to have trained, `shipped` the shards that it had to fetch,
    `weight` is 0 unless it was averaged, `predicted_s` runs from `given_s`, and `ended_s` is when
    it was taken, dropped or lost.
    """

    cycle: int
    learner: int
    name: str
    attempt: int
    shards: int
    passes: int
    samples: int
    dispatched_s: float
    predicted_s: float = nan
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
        """Visits that it was to make."""
        return self.samples * self.passes

    @property
    def counted_visits(self) -> int:
        """Visits that count."""
        return self.visits if self.status == "counted" else 0

    @property
    def busy_s(self) -> float:
        """Seconds in phases other than wait."""
        return sum(self.phases[1:])


@dataclass(frozen=True, eq=False, repr=False)
class Assignments(Sequence[Assignment]):
    """One column for each field of `Assignment`, in the order of learners and their attempts.

    `status` is a place in `STATUSES`, `reason` one in `reasons`, `phases` are rows by `PHASES`.
    """

    cycle: int
    names: Names
    reasons: Sequence[str]
    learner: Small
    attempt: Small
    shards: Small
    passes: Small
    samples: Ints
    dispatched_s: Floats
    predicted_s: Floats
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
        """What a command gives out at an instant, with so many samples for each."""
        said = {
            "learner": command.learners,
            "attempt": command.attempts,
            "shards": command.shards.counts,
            "passes": command.passes,
            "samples": samples,
            "dispatched_s": at_s,
            "predicted_s": command.predicted_s,
        }
        columns = {name: _column(name, value, samples.size) for name, value in said.items()}
        return cls(command.cycle, names, reasons, **_untold(samples.size), **columns).sort()

    @classmethod
    def from_records(cls, each: Iterable[Assignment]) -> "Assignments":
        """From single ones, of one cycle."""
        every = list(each)
        if not every:
            return NO_ASSIGNMENTS
        columns = {name: [getattr(one, name) for one in every] for name in TYPES}
        reasons = sorted({"", *columns["reason"]})
        columns["status"] = [STATUSES.index(status) for status in columns["status"]]
        columns["reason"] = [reasons.index(reason) for reason in columns["reason"]]
        names = [""] * (max(columns["learner"]) + 1)
        for one in every:
            names[one.learner] = one.name
        made: dict[str, Any] = {name: _column(name, v, len(every)) for name, v in columns.items()}
        return cls(every[0].cycle, names, reasons, **made).sort()

    def __len__(self) -> int:
        return self.learner.size

    @overload
    def __getitem__(self, place: int) -> Assignment: ...
    @overload
    def __getitem__(self, place: slice) -> "Assignments": ...
    def __getitem__(self, place: int | slice) -> "Assignment | Assignments":
        if isinstance(place, slice):
            return self._at(place)
        row = range(len(self))[place]
        said = {name: getattr(self, name)[row].tolist() for name in TYPES}
        return Assignment(
            cycle=self.cycle,
            name=self.names[said["learner"]],
            **said
            | {
                "phases": tuple(said["phases"]),
                "status": STATUSES[said["status"]],
                "reason": self.reasons[said["reason"]],
            },
        )

    def __repr__(self) -> str:
        return f"<{len(self)} assignments of cycle {self.cycle}>"

    @property
    def planned_visits(self) -> Ints:
        """Visits that each was to make."""
        return self.samples * self.passes

    @property
    def counted_visits(self) -> Ints:
        """Visits of each that count."""
        return np.where(self.with_status("counted"), self.visits, 0)

    @property
    def busy_s(self) -> Floats:
        """Seconds of each in phases other than wait."""
        busy: Floats = self.phases[:, 1:].sum(axis=1)
        return busy

    def with_status(self, status: Status) -> NDArray[np.bool_]:
        """Which of them stand so."""
        found: NDArray[np.bool_] = self.status == STATUSES.index(status)
        return found

    def find(self, learners: Ints | Small, attempts: Ints | Small) -> Ints:
        """The row of each, -1 where there is none."""
        if not len(self):
            return np.full(learners.size, -1)
        rows = self._first(learners)
        other = np.flatnonzero((self.learner[rows] != learners) | (self.attempt[rows] != attempts))
        if other.size:
            rows[other] = self._later(learners[other], attempts[other])
        return rows

    def rows_of(self, learners: Ints) -> Ints:
        """The rows of these, whatever the attempt."""
        who = learners.astype(np.int32)
        first, last = (np.searchsorted(self.learner, who, side) for side in ("left", "right"))
        return concatenate_ranges(first, last - first)

    def latest_rows(self, learners: Ints) -> Ints:
        """The row of the last attempt of each, -1 where there is none."""
        last = np.searchsorted(self.learner, learners.astype(np.int32), "right") - 1
        here = last >= 0
        here[here] = self.learner[last[here]] == learners[here]
        return np.where(here, last, -1)

    def update(self, rows: Ints, **said: Any) -> "Assignments":
        """With this said of these rows, in place where nobody else was handed the column."""
        put = {name: _put(getattr(self, name), rows, values) for name, values in said.items()}
        return replace(self, **put)

    def end(self, rows: Ints, status: Status, reason: int, at_s: Any) -> "Assignments":
        """Work that is under way ends once."""
        under_way = self.status[rows] == STATUSES.index("training")
        ended_s = np.broadcast_to(at_s, rows.shape)[under_way]
        code = STATUSES.index(status)
        return self.update(rows[under_way], status=code, reason=reason, ended_s=ended_s)

    def merge(self, later: "Assignments") -> "Assignments":
        """Both; what was given again counts as it was given later."""
        old = self.find(later.learner, later.attempt)
        kept = np.delete(np.arange(len(self)), old[old >= 0])
        both: dict[str, Any] = {
            name: np.concatenate([getattr(self, name)[kept], getattr(later, name)])
            for name in TYPES
        }
        return replace(self, **both).sort()

    def sort(self) -> "Assignments":
        """By learners and their attempts."""
        keys = _keys(self.learner, self.attempt)
        if np.all(keys[1:] >= keys[:-1]):
            return self
        return self._at(np.argsort(keys, kind="stable"))

    def freeze(self) -> "Assignments":
        """From now on nobody changes them."""
        for name in TYPES:
            getattr(self, name).flags.writeable = False
        return self

    def _at(self, places: slice | Ints) -> "Assignments":
        return replace(self, **{name: getattr(self, name)[places] for name in TYPES})

    def _first(self, learners: Ints | Small) -> Ints:
        """Where the first attempt of each stands, if it has any."""
        lowest, last = int(self.learner[0]), len(self) - 1
        if self.learner[last] - lowest == last:
            return np.clip(learners.astype(np.int64) - lowest, 0, last)
        return np.minimum(np.searchsorted(self.learner, learners.astype(np.int32)), last)

    def _later(self, learners: Ints | Small, attempts: Ints | Small) -> Ints:
        """Rows of attempts that are not the first in the cycle, -1 where there is none."""
        keys, wanted = _keys(self.learner, self.attempt), _keys(learners, attempts)
        rows = np.minimum(np.searchsorted(keys, wanted), len(self) - 1)
        return np.where(keys[rows] == wanted, rows, -1)


def _untold(count: int) -> dict[str, Any]:
    """What is not known when work is given out."""
    defaults: dict[str, Any] = {"visits": 0, "shipped": 0, "weight": 0.0, "loss": nan}
    defaults |= {
        "phases": UNKNOWN_PHASES,
        "arrived_s": nan,
        "ended_s": nan,
        "status": 0,
        "reason": 0,
    }
    return {name: _column(name, value, count) for name, value in defaults.items()}


def _column(name: str, values: Any, count: int) -> Any:
    """So many rows, which share one number where all are alike."""
    column = np.asarray(values, TYPES[name])
    if column.ndim == 1 and count > 1 and name != "phases" and np.all(column == column[0]):
        column = column[0]
    shape = (count, len(PHASES)) if name == "phases" else (count,)
    return np.broadcast_to(column, shape)


def _put(column: Any, rows: Ints, values: Any) -> Any:
    if not rows.size:
        return column
    if not column.flags.writeable:
        column = column.copy()
    column[rows] = values
    return column


def _keys(learners: Ints | Small, attempts: Ints | Small) -> Ints:
    """Assignments of a cycle as one number each."""
    keys: Ints = learners.astype(np.int64) << 32 | attempts
    return keys


NO_ASSIGNMENTS = Assignments(0, (), ("",), **{name: _column(name, 0, 0) for name in TYPES})
