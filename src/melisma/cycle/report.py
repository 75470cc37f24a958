"""What a run came to; `story` folds it from a trace.

A cycle ends when nobody is waited for any longer. It holds its deadline if updates were averaged
and nobody was waited for past it; its time, as in the papers, ends with the last update taken.
Work that was dropped counts as not done, whatever became of it.
"""

from collections.abc import Iterable, Sized
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from math import isfinite, isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from melisma.cycle import commands as do
from melisma.cycle import events as ev
from melisma.cycle.trace import Step
from melisma.fleet.task import Task
from melisma.learning import metrics

if TYPE_CHECKING:
    from melisma.cycle.picture import Picture

Status = Literal["training", "in", "late", "dropped", "refused", "left"]
Ending = Literal["under way", "averaged", "empty", "cut short"]

UNKNOWN = (nan,) * len(ev.PHASES)
TRACE, PICTURE = "trace.jsonl", "picture.svg"


@dataclass(frozen=True)
class Assignment:
    """The work of one learner in one cycle; instants are those of the trace.

    `visits` are what it is last known to have trained, `weight` is 0 unless it was averaged,
    `predicted_s` runs from `given_s`, and `ended_s` is when it was taken, dropped or lost.
    """

    cycle: int
    learner: int
    name: str
    attempt: int
    shards: int
    passes: int
    samples: int
    given_s: float
    predicted_s: float = nan
    visits: int = 0
    weight: float = 0.0
    loss: float = nan
    phases: tuple[float, ...] = UNKNOWN
    arrived_s: float = nan
    ended_s: float = nan
    status: Status = "training"
    reason: str = ""

    @property
    def planned(self) -> int:
        """Visits that it was to make."""
        return self.samples * self.passes

    @property
    def done(self) -> int:
        """Visits that count."""
        return self.visits if self.status == "in" else 0

    @property
    def busy_s(self) -> float:
        """Seconds in phases other than wait."""
        return sum(self.phases[1:])


@dataclass(frozen=True)
class Cycle:
    """One global update cycle; figures of what is not over, or was empty, are NaN."""

    number: int
    began_s: float
    deadline_s: float
    assignments: tuple[Assignment, ...] = ()
    ending: Ending = "under way"
    reason: str = ""
    closed_s: float = nan
    tail_s: float = 0.0
    aggregate_s: float = nan
    evaluate_s: float = nan
    loss: float = nan
    accuracy: float = nan

    @property
    def empty(self) -> bool:
        """Whether nothing came of it; `reason` says why."""
        return self.ending == "empty"

    @property
    def cycle_s(self) -> float:
        """From first dispatch to the last update taken."""
        taken = [each.arrived_s for each in self.assignments if each.status == "in"]
        return _seconds(self.began_s, max(taken)) if self.ending == "averaged" else nan

    @property
    def waited_s(self) -> float:
        """From first dispatch until nobody was waited for; longer where somebody was dropped."""
        return _seconds(self.began_s, self.closed_s) if self.ending == "averaged" else nan

    @property
    def by_deadline(self) -> bool:
        """Whether it ended, with a model, by its deadline."""
        return self.waited_s <= self.deadline_s

    @property
    def truancy(self) -> float:
        """How far it went past its deadline, as a part of it."""
        return float(metrics.truancy(self.cycle_s, self.deadline_s))

    @property
    def fulfilment(self) -> float:
        """Visits done of those planned."""
        return metrics.fulfilment(*self._visits)

    @property
    def drop_rate(self) -> float:
        """Visits planned that were not done."""
        return metrics.drop_rate(*self._visits)

    @property
    def occupancy(self) -> float:
        """The mean over those who took part and told their phases."""
        busy_s = [each.busy_s for each in self.assignments]
        return metrics.mean_known(metrics.occupancy(busy_s, self.cycle_s))

    @property
    def max_staleness(self) -> float:
        """Largest difference of passes done, parts included."""
        return metrics.max_staleness(self._updates)

    @property
    def average_staleness(self) -> float:
        """Mean difference of passes done over all pairs."""
        return metrics.average_staleness(self._updates)

    @property
    def _visits(self) -> tuple[list[int], list[int]]:
        over = () if self.ending == "under way" else self.assignments
        return [each.done for each in over], [each.planned for each in over]

    @property
    def _updates(self) -> list[float]:
        return [each.done / max(each.samples, 1) for each in self.assignments]


@dataclass(frozen=True)
class Trained:
    """What one learner did in the whole run; `samples` are visits that count."""

    name: str
    cycles: int
    shards: int
    samples: int
    planned: int
    phases: tuple[float, ...]
    late: int
    dropped: int
    refused: int
    left: int


@dataclass(frozen=True)
class Report:
    """A run: how it ended, its cycles, and who did what."""

    run: str
    task: Task
    names: tuple[str, ...]
    began_s: float
    ended_s: float
    cycles: tuple[Cycle, ...] = ()
    outcome: do.Outcome | Literal["under way"] = "under way"
    reason: str = ""
    gone: tuple[str, ...] = ()
    model: Path | None = None
    folder: Path | None = None
    trace: tuple[Step, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, steps: Iterable[Step]) -> "Report":
        """The report of a trace, whole or not; `DataError` if it has no task."""
        from melisma.cycle.story import Story

        story = Story()
        for step in steps:
            story.hear(step)
        return story.report()

    @property
    def over(self) -> tuple[Cycle, ...]:
        """Cycles that ended, with a model or empty."""
        return tuple(each for each in self.cycles if each.ending in ("averaged", "empty"))

    @property
    def verdict(self) -> str:
        """In how many cycles the deadline held, and what the longest took, in words."""
        deadline_s = self.task.deadline_s
        if not self.over:
            return f"no cycle ended; the deadline was {deadline_s:g} s"
        kept = sum(each.by_deadline for each in self.over)
        said = f"the deadline of {deadline_s:g} s held in {kept} of {_count(self.over, 'cycle')}"
        waited = [each.waited_s for each in self.over if not each.empty]
        if not waited:
            return said
        late_s = max(waited) - deadline_s
        late = f", {late_s:.2g} s too long" if late_s > 0 else ""
        return f"{said}; the longest took {max(waited):.4g} s{late}"

    @property
    def satisfaction(self) -> float:
        """Share of cycles that ended by the deadline."""
        return metrics.satisfaction(*self._of_cycles("waited_s"))

    @property
    def mean_truancy(self) -> float:
        """Over cycles that have a time."""
        return metrics.mean_truancy(*self._of_cycles("cycle_s"))

    @property
    def fulfilment(self) -> float:
        """Visits done of those planned, over cycles that ended."""
        work = [each for cycle in self.over for each in cycle.assignments]
        return metrics.fulfilment([each.done for each in work], [each.planned for each in work])

    @property
    def training_s(self) -> float:
        """Seconds of all cycles together."""
        return metrics.training_s(self._of_cycles("cycle_s")[0])

    @property
    def accuracy(self) -> float:
        """After the last cycle that was evaluated."""
        return self._last("accuracy")

    @property
    def loss(self) -> float:
        """After the last cycle that was evaluated."""
        return self._last("loss")

    @cached_property
    def learners(self) -> tuple[Trained, ...]:
        """Who did what, in the order of learners; those who never joined have no name."""
        work: list[list[Assignment]] = [[] for _ in self.names]
        for cycle in self.cycles:
            for each in cycle.assignments:
                work[each.learner].append(each)
        return tuple(_trained(name, did) for name, did in zip(self.names, work, strict=True))

    @property
    def trace_path(self) -> Path | None:
        """Where the trace is kept."""
        return self.folder / TRACE if self.folder else None

    @property
    def picture_path(self) -> Path | None:
        """Where the picture is kept."""
        return self.folder / PICTURE if self.folder else None

    def plot(self) -> "Picture":
        """The run as a picture."""
        from melisma.cycle.picture import Picture

        return Picture.of(self)

    def as_dict(self) -> dict[str, Any]:
        """All but the trace, ready for JSON; numbers that are not known are None."""
        plain: dict[str, Any] = _plain(self)
        return {**plain, "task": msgspec.to_builtins(self.task), "phases": list(ev.PHASES)}

    def _of_cycles(self, name: str) -> tuple[list[float], list[float]]:
        return [getattr(each, name) for each in self.over], [each.deadline_s for each in self.over]

    def _last(self, name: str) -> float:
        evaluated = [each for each in self.cycles if not isnan(each.evaluate_s)]
        return float(getattr(evaluated[-1], name)) if evaluated else nan


def _trained(name: str, did: list[Assignment]) -> Trained:
    ended = [each.status for each in did]
    told = np.array([each.phases for each in did]).reshape(-1, len(ev.PHASES))
    return Trained(
        name=name,
        cycles=len({each.cycle for each in did}),
        shards=sum(each.shards for each in did),
        samples=sum(each.done for each in did),
        planned=sum(each.planned for each in did),
        phases=tuple(np.nansum(told, axis=0).tolist()),
        late=ended.count("late"),
        dropped=ended.count("dropped"),
        refused=ended.count("refused"),
        left=ended.count("left"),
    )


def _count(things: Sized, noun: str) -> str:
    return f"{len(things)} {noun}" + "s" * (len(things) != 1)


def _seconds(start_s: float, end_s: float) -> float:
    """To the nanosecond: instants are sums that do not come out even."""
    return round(end_s - start_s, 9)


# Told with the fields of each record.
FIGURES: dict[type, tuple[str, ...]] = {
    Assignment: ("planned", "done"),
    Cycle: (
        *("cycle_s", "waited_s", "by_deadline", "truancy", "fulfilment", "drop_rate", "occupancy"),
        *("max_staleness", "average_staleness"),
    ),
    Report: (
        *("satisfaction", "mean_truancy", "fulfilment", "training_s", "accuracy", "loss"),
        "learners",
    ),
}


def _plain(value: Any) -> Any:
    """A record with its figures, down to what JSON knows."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    if not is_dataclass(value):
        return value
    names = [each.name for each in fields(value) if each.name != "trace"]
    return {name: _plain(getattr(value, name)) for name in (*names, *FIGURES.get(type(value), ()))}
