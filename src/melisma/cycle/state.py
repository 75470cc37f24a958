"""What the cycle machine knows: arrays indexed by learner number, and where the cycle stands."""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from melisma.allocation.schemes import Scheme, get_scheme
from melisma.cycle.cache_index import NOTHING_HELD, Holdings
from melisma.cycle.dealing import Deck
from melisma.cycle.events import COSTS, PARTS, Floats, TaskSubmitted
from melisma.cycle.local_shards import Own
from melisma.cycle.ragged import NO_ROWS, Ints, Rows
from melisma.fleet.fleet_file import Tells
from melisma.fleet.rng import generator
from melisma.fleet.task import Task

COUNTS = ("tells", "work", "attempts", "shards", "passes", "samples", "visits")
# What learners let out before their update, from the least.
LETS_OUT: tuple[Tells, ...] = ("nothing", "bounds", "costs")

Bools = NDArray[np.bool_]


class Stage(StrEnum):
    """Where a task stands."""

    GATHERING = "gathering"  # learners join
    MEASURING = "measuring"  # they measure themselves
    ASKING = "asking"  # they say what they would take
    PROBING = "probing"  # nobody would take any: by which deadline would somebody?
    TRAINING = "training"
    AGGREGATING = "aggregating"
    EVALUATING = "evaluating"
    FINISHED = "finished"


class Work(IntEnum):
    """How the assignment of a learner in this cycle stands."""

    NONE = 0
    GIVEN = 1
    TAKEN = 2  # its update counts
    DROPPED = 3


@dataclass(eq=False)
class Learners:
    """One column for each thing known of learners; a number that never joined is absent."""

    present: Bools
    silent: Bools  # did not answer when asked last, and are not waited for
    costs: Floats  # of COSTS by of PARTS by learners; NaN where not reported
    bounds: Ints  # reported for this cycle, -1 where not
    work: Ints
    attempts: Ints
    shards: Ints
    passes: Ints
    samples: Ints
    visits: Ints
    tells: Ints  # of LETS_OUT
    names: list[str] = field(default_factory=list)
    own: Own = field(default_factory=Own)
    held: Holdings = NOTHING_HELD  # (place in the deck, learner), as far as updates show
    busy: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # in this cycle
    new: Rows = NO_ROWS  # to them, of what they were dealt, as places in the deck

    @classmethod
    def empty(cls, count: int) -> "Learners":
        """So many who have not joined yet."""
        counts: dict[str, Any] = {name: np.zeros(count, np.int64) for name in COUNTS}
        return cls(
            present=np.zeros(count, np.bool_),
            silent=np.zeros(count, np.bool_),
            costs=np.full((len(COSTS), len(PARTS), count), np.nan),
            bounds=np.full(count, -1),
            names=[""] * count,
            **counts,
        )

    def make_room(self, count: int) -> None:
        """Columns for so many learners, at least."""
        missing = count - self.present.size
        if missing <= 0:
            return
        new = Learners.empty(missing)
        for name in ("present", "silent", "costs", "bounds", *COUNTS):
            both = [getattr(self, name), getattr(new, name)]
            setattr(self, name, np.concatenate(both, axis=-1))
        self.names += new.names

    def of(self, work: Work) -> Ints:
        """Those whose assignment stands so."""
        return np.flatnonzero(self.work == work)

    def hold(self, learners: Ints) -> None:
        """Who trained on shards that it was dealt has them."""
        places = np.flatnonzero(np.isin(self.busy, learners))
        new = self.new.some(places)
        self.held = self.held.plus(new.flat, self.busy[places][new.places])

    def planned(self, learners: Ints) -> Ints:
        """Samples that they were to visit in this cycle."""
        return self.samples[learners] * self.passes[learners]

    def weights(self, learners: Ints) -> Floats:
        """Samples given, less where not all visits were made."""
        planned = self.planned(learners)
        done = np.minimum(self.visits[learners], planned)
        return self.samples[learners] * done / np.maximum(planned, 1)


@dataclass(eq=False)
class State:
    """One task on its learners."""

    run: str
    task: Task
    scheme: Scheme
    samples: Ints
    deck: Deck
    learners: Learners
    expected: int
    stage: Stage = Stage.GATHERING
    cycle: int = 0
    began_s: float = 0.0
    limit_s: float = np.inf
    asked_s: float = 0.0  # when learners were asked what they can do
    unanswered: int = 0  # times in a row that nobody answered
    late_s: float = 0.0  # how late updates came of late
    refused: str = ""  # what was wrong with an update of this cycle
    last_total: int = 0  # shards dealt in the last cycle
    empty: int = 0  # cycles in a row without an update
    why: str = ""  # the last of them was empty
    probe: tuple[float, float] = (0.0, np.inf)  # deadlines too short, and long enough

    @classmethod
    def of(cls, event: TaskSubmitted) -> "State":
        """The state before anybody has joined."""
        task = event.task
        return cls(
            run=event.run,
            task=task,
            scheme=get_scheme(task.scheme),
            samples=event.samples,
            deck=Deck.shuffled(event.samples.size, generator(task.seed, "shards")),
            learners=Learners.empty(event.learners),
            expected=event.learners,
        )

    @property
    def federated(self) -> bool:
        """Whether data stays where it is."""
        return self.task.mode == "federated"

    @property
    def deadline_s(self) -> float:
        """The instant of this cycle's deadline."""
        return self.began_s + self.task.deadline_s

    def expects(self, learners: Ints, cycle: int, attempts: Ints) -> Bools:
        """Whose update of that cycle and attempt would count if it came now."""
        if self.stage is not Stage.TRAINING or cycle != self.cycle:
            return np.zeros(learners.size, np.bool_)
        at_work = self.learners.work[learners] == Work.GIVEN
        awaited: Bools = at_work & (self.learners.attempts[learners] == attempts)
        return awaited
