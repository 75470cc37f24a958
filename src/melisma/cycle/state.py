"""The state of a cycle machine: columns indexed by learner number, and the stage of the cycle."""

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np

from melisma.allocation.schemes import Needs, Scheme, get_scheme
from melisma.backports import StrEnum
from melisma.cycle.cache_index import EMPTY_CACHE, CacheIndex
from melisma.cycle.commands import LateUpdates
from melisma.cycle.dealing import Deck
from melisma.cycle.events import COSTS, PARTS, TaskSubmitted
from melisma.cycle.local_shards import LocalShards
from melisma.cycle.ragged import RaggedArray
from melisma.cycle.schedule import Schedule
from melisma.fleet.array_types import NO_INTS, Bools, Floats, Ints
from melisma.fleet.rng import generator
from melisma.fleet.task import Task

COUNT_COLUMNS = (
    *("discloses", "work", "attempts", "shards", "passes", "samples", "visits", "wanted"),
    "all_visits",
    *("late_cycles", "late_attempts", "late_passes", "late_samples", "late_shards"),
    *("right", "unanswered", "challenged", "segments", "environments"),
)
OTHER_COLUMNS = (
    *("present", "drawn", "last_drawn", "answer_awaited", "costs", "bounds"),
    *("gaps", "suspected"),
)
GAP_SUMS = 3  # of the statistics of a learner's updates: their sum, variance and weight


class Stage(StrEnum):
    """The stage of a run."""

    JOINING = "joining"  # wait for all expected learners
    COLLECTING = "collecting"  # learners report costs or bounds
    WAITING = "waiting"  # all learners have left: wait for one that joins
    PROBING = "probing"  # no learner can meet the deadline: search for one that works
    SHARING = "sharing"  # a shared task waits for the shares that it requested
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
    LATE = 4  # the cycle closed without its update, which may still join a later average


# The guard believes a learner that reports up to this many times its planned visits.
MAX_VISITS_PER_PLANNED = 10

OPEN_OR_RECEIVED = (WorkStatus.ASSIGNED, WorkStatus.RECEIVED)


@dataclass(frozen=True, eq=False)
class AssignedShards:
    """Shards that were assigned to learners at one time in this cycle: one attempt of each learner.

    Shards are positions in the deck, or numbers on the device in federated learning; `new` are
    those that the learner did not hold.
    """

    learners: Ints
    attempts: Ints
    shards: RaggedArray
    new: RaggedArray
    samples: Ints

    def take(self, rows: Ints) -> "AssignedShards":
        """Return the shards of the learners in these rows."""
        new = self.new.take(rows) if len(self.new) else self.new
        return AssignedShards(
            self.learners[rows],
            self.attempts[rows],
            self.shards.take(rows),
            new,
            self.samples[rows],
        )

    @property
    def pairs(self) -> tuple[Ints, Ints]:
        """All pairs of a learner and a shard."""
        return self.learners[self.shards.row_ids], self.shards.values


@dataclass(eq=False)
class LearnerTable:
    """One column for each fact about learners; a number that never joined is not present."""

    present: Bools
    drawn: Bools  # for this cycle; True without a sample
    last_drawn: Ints  # or the cycle in which it joined; -1 if it never did
    answer_awaited: Bools  # False if it left the last request unanswered, or its bound was 0
    costs: Floats  # COSTS by PARTS by learners; NaN where not reported
    bounds: Ints  # reported for this cycle; -1 where not
    work: Ints  # WorkStatus
    attempts: Ints
    shards: Ints  # given in this cycle
    passes: Ints
    samples: Ints
    visits: Ints  # of the plan; further passes are not counted here
    all_visits: Ints  # further passes included, up to MAX_VISITS_PER_PLANNED
    wanted: Ints  # shards requested in this cycle beyond those given
    late_cycles: Ints  # cycle of an update that is late, 0 if none is
    late_attempts: Ints
    late_passes: Ints
    late_samples: Ints
    late_shards: Ints
    discloses: Ints  # position in DISCLOSURE
    right: Ints  # checked updates that were right, in a row
    unanswered: Ints  # challenges without a verdict yet
    challenged: Ints  # cycle of the latest challenge, 0 if there was none
    segments: Ints  # of the latest challenge
    environments: Ints  # position in the environments of the state, plus 1
    gaps: Floats  # GAP_SUMS by learners
    suspected: Bools  # by the first filter, and not checked since
    names: list[str] = field(default_factory=list)
    local_shards: LocalShards = field(default_factory=LocalShards)
    _held: CacheIndex = EMPTY_CACHE
    _newly_held: list[tuple[Ints, Ints]] = field(default_factory=list)  # not in the index yet

    @classmethod
    def empty(cls, count: int) -> "LearnerTable":
        """Return columns for `count` learners that have not joined."""
        counts: dict[str, Any] = {name: np.zeros(count, np.int64) for name in COUNT_COLUMNS}
        return cls(
            present=np.zeros(count, np.bool_),
            drawn=np.ones(count, np.bool_),
            last_drawn=np.full(count, -1),
            answer_awaited=np.ones(count, np.bool_),
            costs=np.full((len(COSTS), len(PARTS), count), np.nan),
            bounds=np.full(count, -1),
            gaps=np.zeros((GAP_SUMS, count)),
            suspected=np.zeros(count, np.bool_),
            names=[""] * count,
            **counts,
        )

    def make_room(self, count: int) -> None:
        """Grow the columns to at least `count` learners."""
        missing = count - self.present.size
        if missing <= 0:
            return
        new = LearnerTable.empty(missing)
        for name in (*OTHER_COLUMNS, *COUNT_COLUMNS):
            columns = [getattr(self, name), getattr(new, name)]
            setattr(self, name, np.concatenate(columns, axis=-1))
        self.names += new.names

    @property
    def held(self) -> CacheIndex:
        """The shards that learners hold, as shown by updates: pairs of position and learner."""
        if self._newly_held:
            # Each merge copies the whole index, so merge the shards of many updates at once.
            positions, learners = map(np.concatenate, zip(*self._newly_held, strict=True))
            self._newly_held = []  # before the merge, which needs memory itself
            self._held = self._held.union(positions, learners)
        return self._held

    def hold(self, positions: Ints, learners: Ints) -> None:
        """Record pairs of a position in the deck and a learner that holds it."""
        if positions.size:
            self._newly_held.append((positions, learners))

    def having(self, status: WorkStatus) -> Ints:
        """Return the learners whose assignment has this status."""
        return np.flatnonzero(self.work == status)

    def planned_visits(self, learners: Ints) -> Ints:
        """Return the visits assigned in this cycle: samples times passes."""
        return self.samples[learners] * self.passes[learners]

    def weights(self, learners: Ints) -> Floats:
        """Return the weights of updates: samples * visits done / visits planned."""
        return update_weights(self.samples[learners], self.passes[learners], self.visits[learners])


def plausible_visits(visits: Ints, samples: Ints, passes: Ints) -> Ints:
    """Return the visits that learners report, up to `MAX_VISITS_PER_PLANNED` times those planned.

    Further passes cannot be verified, and the guard allows a larger change after more visits.
    """
    limited: Ints = np.minimum(visits, MAX_VISITS_PER_PLANNED * samples * passes)
    return limited


def update_weights(samples: Ints, passes: Ints, visits: Ints) -> Floats:
    """Return samples * visits done / visits planned; visits beyond the plan add nothing."""
    planned = samples * passes
    weights: Floats = samples * np.minimum(visits, planned) / np.maximum(planned, 1)
    return weights


def covered_shards(shards: Ints, planned: Ints, visits: Ints) -> Ints:
    """Return how many whole shards the visits of updates cover, of those that were planned."""
    covered: Ints = shards * np.minimum(visits, planned) // np.maximum(planned, 1)
    return covered


@dataclass(eq=False)
class CycleState:
    """The state of one run."""

    task: Task  # its deadline is that of this cycle
    scheme: Scheme
    shard_samples: Ints  # of each shard of the orchestrator
    deck: Deck
    learners: LearnerTable
    expected: int  # learners to wait for before the first cycle
    shared: bool = False  # whether the learners are shared with other tasks
    absence_s: float = 0.0  # how long to wait for a learner if all have left
    schedule: Schedule | None = None  # of a run with a total time
    stage: Stage = Stage.JOINING
    cycle: int = 0
    began_s: float = 0.0  # when work was dispatched
    limit_s: float = np.inf  # when the stage ends at the latest, or the deadline
    tail_s: float = 0.0  # how long updates are awaited after the deadline
    quorum_from_s: float = 0.0  # when the quorum suffices: the deadline, later after a restart
    asked_s: float = 0.0  # when learners were last asked for costs or bounds
    first_ready_s: float = np.inf  # when the first learner was ready for this cycle
    unanswered_requests: int = 0  # in a row
    left_s: float = 0.0  # when the last present learner left
    departure: str = ""  # why it left
    recent_lateness_s: float = 0.0  # of updates after the deadline, halved each cycle
    last_deadline_at_s: float = 0.0  # of the cycle before this one
    lost_work: str = ""  # why the latest lost work of this cycle was lost
    last_shards: int = 0  # dealt in the last cycle
    dealt_shards: int = 0  # of the deck, in this cycle
    last_dealt: Ints = field(default_factory=lambda: NO_INTS)  # cycle of each position; 0 if none
    assignments: list[AssignedShards] = field(default_factory=list)  # of this cycle
    to_hand_on: Ints = field(default_factory=lambda: NO_INTS)  # positions to hand on
    prefetched: CacheIndex = EMPTY_CACHE  # (position, learner) that were to be fetched early
    carried: list[LateUpdates] = field(default_factory=list)  # received, not averaged yet
    late_assignments: list[tuple[int, AssignedShards]] = field(default_factory=list)  # with cycle
    _given: CacheIndex | None = None  # (learner, shard) of all assignments, less those taken back
    taken_back: CacheIndex = EMPTY_CACHE  # (learner, shard), in this cycle
    unaveraged: bool = False  # whether work of this cycle was dispatched, and is in no model yet
    averaged: int = 0  # updates of the latest average
    secret: str = ""  # decides which updates are checked
    environments: list[str] = field(default_factory=list)  # of learners
    left_out_averages: int = 0  # in a row, whose updates were all left out
    rejected_models: int = 0  # in a row
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
            last_dealt=np.zeros(event.shard_samples.size, np.int64),
            learners=LearnerTable.empty(event.learner_count),
            expected=event.learner_count,
            shared=event.shared,
            secret=event.secret,
            absence_s=event.absence_s,
            schedule=None if event.ends_s is None else Schedule.between(event.at_s, event.ends_s),
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
    def awaits_learners(self) -> bool:
        """Whether all learners have left, and one may come back."""
        return self.absence_s > 0 and not self.learners.present.any()

    @property
    def stop_s(self) -> float:
        """The instant at which the last cycle of a run with a total time has to be closed."""
        return np.inf if self.schedule is None else self.schedule.stop_s

    def set_length(self, deadline_s: float) -> None:
        """Set the length of this cycle."""
        self.task = msgspec.structs.replace(self.task, deadline_s=deadline_s)

    @property
    def deadline_at_s(self) -> float:
        """The instant of this cycle's deadline."""
        return self.began_s + self.task.deadline_s

    def expects(self, learners: Ints, cycle: int, attempts: Ints) -> Bools:
        """Return for each assignment whether its update would count, now or as a late one."""
        return self.expects_in_cycle(learners, cycle, attempts) | self.expects_late(
            learners, cycle, attempts
        )

    def expects_in_cycle(self, learners: Ints, cycle: int, attempts: Ints) -> Bools:
        """Return whether an update would join this cycle's average."""
        if self.stage is not Stage.TRAINING or cycle != self.cycle:
            return np.zeros(learners.size, np.bool_)
        # An extension may have been sent when its learner had already begun to upload.
        awaited: Bools = (attempts > 0) & (attempts <= self.learners.attempts[learners])
        awaited &= self.learners.work[learners] == WorkStatus.ASSIGNED
        return awaited

    def expects_late(self, learners: Ints, cycle: int, attempts: Ints) -> Bools:
        """Return whether an update would join the next average as a late one."""
        if cycle <= 0:
            return np.zeros(learners.size, np.bool_)
        awaited: Bools = (attempts > 0) & (attempts <= self.learners.late_attempts[learners])
        awaited &= self.learners.late_cycles[learners] == cycle
        return awaited

    def most_visits(self, learner: int, cycle: int) -> int:
        """Return the most visits that are believed of an assignment; 0 of one that is unknown."""
        table = self.learners
        planned = int(table.samples[learner] * table.passes[learner])
        if cycle != self.cycle:
            planned = int(table.late_samples[learner] * table.late_passes[learner])
            planned = planned if cycle == table.late_cycles[learner] else 0
        return MAX_VISITS_PER_PLANNED * planned

    @property
    def given(self) -> CacheIndex:
        """The shards that each learner was given in this cycle: pairs of learner and shard."""
        if self._given is None:
            self._given = EMPTY_CACHE
            for assigned in self.assignments:
                self._given = self._given.union(*assigned.pairs)
        return self._given

    def add_assignments(self, assigned: AssignedShards) -> None:
        """Record shards that were assigned."""
        table = self.learners
        self.assignments.append(assigned)
        if self._given is not None:
            self._given = self._given.union(*assigned.pairs)
        table.attempts[assigned.learners] = assigned.attempts
        table.shards[assigned.learners] += assigned.shards.counts
        table.samples[assigned.learners] += assigned.samples

    def clear_assignments(self) -> None:
        """Forget the assignments of the last cycle."""
        table = self.learners
        self.assignments, self._given, self.taken_back = [], None, EMPTY_CACHE
        self.to_hand_on, self.dealt_shards = NO_INTS, 0
        columns = table.attempts, table.shards, table.samples, table.visits, table.all_visits
        for column in (*columns, table.wanted):
            column[:] = 0

    def record_dealt(self, positions: Ints) -> None:
        """Record positions of the deck that were dealt in this cycle."""
        self.dealt_shards += positions.size
        self.last_dealt[positions] = self.cycle

    @property
    def dealt(self) -> Bools:
        """Whether each position of the deck was dealt in this cycle."""
        dealt: Bools = self.last_dealt == self.cycle
        return dealt

    def had(self, learners: Ints, shards: Ints) -> Bools:
        """Return for each pair whether the learner was given the shard in this cycle."""
        return self.given.contains(learners, shards) | self.taken_back.contains(learners, shards)

    def without_taken_back(self, assigned: AssignedShards) -> AssignedShards:
        """Return the assigned shards that were not taken back."""
        if not self.taken_back.pairs.size:
            return assigned
        shards = assigned.shards
        kept = ~self.taken_back.contains(*assigned.pairs)
        samples = np.where(kept, self.shard_samples[self.deck.shards[shards.values]], 0)
        return replace(assigned, shards=shards.select(kept), samples=shards.row_sums(samples))

    def without_trained_copies(self, assigned: AssignedShards) -> AssignedShards:
        """Return the assigned shards that no update of another learner covers, too."""
        if self.federated or self.dealt_shards <= self.shard_samples.size:
            return assigned
        trained = self._shards_of((WorkStatus.RECEIVED,))
        return replace(
            assigned, shards=assigned.shards.select(~np.isin(assigned.shards.values, trained))
        )

    def take_back(self, learners: Ints, shards: Ints) -> None:
        """Record that learners do not train these shards: pairs of a learner and a position."""
        table = self.learners
        known = self.given.contains(learners, shards)
        learners, shards = learners[known], shards[known]
        self._given = self.given.without(learners, shards)
        self.taken_back = self.taken_back.union(learners, shards)
        np.subtract.at(table.shards, learners, 1)
        np.subtract.at(table.samples, learners, self.shard_samples[self.deck.shards[shards]])
        free = np.union1d(self.to_hand_on, shards)
        if self.dealt_shards > self.shard_samples.size:
            # More were wanted than exist, so other learners may train the same shards.
            free = np.setdiff1d(free, self._shards_of(OPEN_OR_RECEIVED))
        self.to_hand_on = free

    def _shards_of(self, status: tuple[WorkStatus, ...]) -> Ints:
        """Return the shards of learners whose work has one of these statuses."""
        owners, shards = self.given.between(0, self.learners.present.size)
        return shards[np.isin(self.learners.work[owners], status)]
