"""The state of a cycle machine: columns indexed by learner number, and the stage of the cycle."""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np

from melisma.allocation.schemes import Needs, Scheme, get_scheme
from melisma.cycle.cache_index import EMPTY_CACHE, CacheIndex
from melisma.cycle.dealing import Deck
from melisma.cycle.events import COSTS, PARTS, TaskSubmitted
from melisma.cycle.local_shards import LocalShards
from melisma.cycle.ragged import NO_ROWS, RaggedArray
from melisma.fleet.array_types import Bools, Floats, Ints
from melisma.fleet.rng import generator
from melisma.fleet.task import Task

COUNT_COLUMNS = ("discloses", "work", "attempts", "passes", "samples", "visits")


class Stage(StrEnum):
    """The stage of a run."""

    JOINING = "joining"  # wait for all expected learners
    COLLECTING = "collecting"  # learners report costs or bounds
    PROBING = "probing"  # no learner can meet the deadline: search for one that works
    TRAINING = "training"
    AGGREGATING = "aggregating"
    EVALUATING = "evaluating"
    FINISHED = "finished"


# Stages in which learners are asked for costs or bounds.
COLLECTING_STAGES = (Stage.COLLECTING, Stage.PROBING)


class WorkStatus(IntEnum):
    """The status of a learner's assignment in this cycle."""

    NONE = 0
    ASSIGNED = 1
    RECEIVED = 2  # its update counts
    DROPPED = 3


@dataclass(eq=False)
class LearnerTable:
    """One column for each fact about learners; a number that never joined is not present."""

    present: Bools
    silent: Bools  # left the last request unanswered; not waited for
    costs: Floats  # COSTS by PARTS by learners; NaN where not reported
    bounds: Ints  # reported for this cycle; -1 where not
    work: Ints  # WorkStatus
    attempts: Ints
    passes: Ints
    samples: Ints
    visits: Ints
    discloses: Ints  # position in DISCLOSURE
    names: list[str] = field(default_factory=list)
    local_shards: LocalShards = field(default_factory=LocalShards)
    held: CacheIndex = EMPTY_CACHE  # (position in the deck, learner), as shown by updates
    busy: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # learners of `new_shards`
    new_shards: RaggedArray = NO_ROWS  # dealt but not held before, by position in the deck

    @classmethod
    def empty(cls, count: int) -> "LearnerTable":
        """Return columns for `count` learners that have not joined."""
        counts: dict[str, Any] = {name: np.zeros(count, np.int64) for name in COUNT_COLUMNS}
        return cls(
            present=np.zeros(count, np.bool_),
            silent=np.zeros(count, np.bool_),
            costs=np.full((len(COSTS), len(PARTS), count), np.nan),
            bounds=np.full(count, -1),
            names=[""] * count,
            **counts,
        )

    def make_room(self, count: int) -> None:
        """Grow the columns to at least `count` learners."""
        missing = count - self.present.size
        if missing <= 0:
            return
        new = LearnerTable.empty(missing)
        for name in ("present", "silent", "costs", "bounds", *COUNT_COLUMNS):
            columns = [getattr(self, name), getattr(new, name)]
            setattr(self, name, np.concatenate(columns, axis=-1))
        self.names += new.names

    def having(self, status: WorkStatus) -> Ints:
        """Return the learners whose assignment has this status."""
        return np.flatnonzero(self.work == status)

    def mark_held(self, learners: Ints) -> None:
        """Record that learners hold the shards that they were dealt in this cycle."""
        rows = np.flatnonzero(np.isin(self.busy, learners))
        new = self.new_shards.take(rows)
        self.held = self.held.union(new.values, self.busy[rows][new.row_ids])

    def planned_visits(self, learners: Ints) -> Ints:
        """Return the visits assigned in this cycle: samples times passes."""
        return self.samples[learners] * self.passes[learners]

    def weights(self, learners: Ints) -> Floats:
        """Return the weights of updates: samples * visits done / visits planned."""
        planned = self.planned_visits(learners)
        done = np.minimum(self.visits[learners], planned)
        return self.samples[learners] * done / np.maximum(planned, 1)


@dataclass(eq=False)
class CycleState:
    """The state of one run."""

    task: Task
    scheme: Scheme
    shard_samples: Ints  # of each shard of the orchestrator
    deck: Deck
    learners: LearnerTable
    expected: int  # learners to wait for before the first cycle
    stage: Stage = Stage.JOINING
    cycle: int = 0
    began_s: float = 0.0  # when work was dispatched
    limit_s: float = np.inf  # when the stage ends at the latest
    asked_s: float = 0.0  # when learners were last asked for costs or bounds
    unanswered_requests: int = 0  # in a row
    recent_lateness_s: float = 0.0  # of updates after the deadline, halved each cycle
    refusal: str = ""  # why the latest refused update of this cycle was refused
    last_shards: int = 0  # dealt in the last cycle
    empty_cycles: int = 0  # in a row
    empty_reason: str = ""  # of the latest empty cycle
    probe_range_s: tuple[float, float] = (0.0, np.inf)  # longest infeasible, shortest feasible

    @classmethod
    def from_submission(cls, event: TaskSubmitted) -> "CycleState":
        """Return the state before any learner has joined."""
        task = event.task
        return cls(
            task=task,
            scheme=get_scheme(task.scheme),
            shard_samples=event.shard_samples,
            deck=Deck.shuffle(event.shard_samples.size, generator(task.seed, "shards")),
            learners=LearnerTable.empty(event.learner_count),
            expected=event.learner_count,
        )

    @property
    def needs(self) -> Needs:
        """The information that each learner discloses before its update."""
        return self.scheme.needs_with(self.task.passes)

    @property
    def federated(self) -> bool:
        """Whether the training data stays on the learners."""
        return self.task.mode == "federated"

    @property
    def deadline_at_s(self) -> float:
        """The instant of this cycle's deadline."""
        return self.began_s + self.task.deadline_s

    def expects(self, learners: Ints, cycle: int, attempts: Ints) -> Bools:
        """Return for each assignment whether its update would count now."""
        if self.stage is not Stage.TRAINING or cycle != self.cycle:
            return np.zeros(learners.size, np.bool_)
        at_work = self.learners.work[learners] == WorkStatus.ASSIGNED
        awaited: Bools = at_work & (self.learners.attempts[learners] == attempts)
        return awaited
