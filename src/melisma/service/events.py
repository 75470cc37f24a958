"""Events of the service: what happened to its tasks and learners, and the results of planning.

Learners are numbers, the same for all tasks; tasks are numbered in the order of their submission.
Instants are seconds on the clock of the driver.
"""

from typing import TypeVar

import msgspec

from melisma.cycle.commands import CoveredWork
from melisma.cycle.ragged import RaggedArray
from melisma.fleet.array_types import NO_FLOATS, NO_INTS, Floats, Ints
from melisma.fleet.task import Task

EventKind = TypeVar("EventKind", bound="Event")


class Event(msgspec.Struct, frozen=True, kw_only=True, eq=False, tag_field="event", tag=True):
    """An event with its instant."""

    at_s: float

    def at(self: EventKind, at_s: float) -> EventKind:
        """Return this event at another instant."""
        return msgspec.structs.replace(self, at_s=at_s)


class ServiceStarted(Event, frozen=True, kw_only=True, eq=False):
    """A service started that plans by a scheme, within a budget for each round.

    If it `is_open`, learners may join at any time: a task without a plan waits for them.
    """

    scheme: str
    budget: float | None = None
    is_open: bool = False


class TaskQueued(Event, frozen=True, kw_only=True, eq=False):
    """A task was submitted; `number` is larger than that of any task before it.

    Its steps so far had `observed` events for the service, before the latest request for shares:
    those that came before its owner confirmed it.
    """

    number: int
    task: Task
    observed: int = 0


class LearnersPriced(Event, frozen=True, kw_only=True, eq=False):
    """Learners joined, each with a price for a shard; a later price replaces an earlier one.

    Work that was granted before is paid at its earlier price.
    """

    learners: Ints
    names: tuple[str, ...]
    price: Floats


class SharesRequested(Event, frozen=True, kw_only=True, eq=False):
    """A task requests shares for a cycle; it replaces its earlier request.

    `learners` are ready for it. `costs` are `train_s`, `ship_s` and `fixed_s` by learners, the
    means of what they reported.
    """

    number: int
    cycle: int
    learners: Ints
    costs: Floats


class CycleEnded(Event, frozen=True, kw_only=True, eq=False):
    """The cycle of a task closed, or did not begin with the shares that it was granted.

    `covered` are the granted shards that updates cover; None if the cycle did not begin.
    """

    number: int
    covered: CoveredWork | None = None


class CycleAveraged(Event, frozen=True, kw_only=True, eq=False):
    """The average of a cycle was made.

    `guarded` are learners whose change was reduced by the factors `scales`, with the cycles of
    their work: 0 if the update was left out, NaN if it was damaged on the orchestrator's disk.
    """

    number: int
    cycle: int
    guarded: Ints = NO_INTS
    guarded_cycles: Ints = NO_INTS
    scales: Floats = NO_FLOATS


class TaskEnded(Event, frozen=True, kw_only=True, eq=False):
    """A task finished, failed or was cancelled."""

    number: int
    outcome: str


class RoundPlanned(Event, frozen=True, kw_only=True, eq=False):
    """A round was planned: the learners and shards of each of its tasks, in order of number.

    `task_s` are the seconds of each task in the plan, `bound_s` is a lower bound on their sum, and
    `idle` are the learners that the plan leaves out.
    """

    round: int
    numbers: tuple[int, ...]
    learners: RaggedArray
    shards: RaggedArray
    task_s: tuple[float, ...]
    bound_s: float
    cost: float
    idle: Ints


class RoundInfeasible(Event, frozen=True, kw_only=True, eq=False):
    """There is no plan for the tasks of a round; `reason` says why, and what would be enough.

    `over_budget` is the task whose own budget is the reason, None if it is another one.
    """

    round: int
    numbers: tuple[int, ...]
    reason: str
    over_budget: int | None = None


class TimeReached(Event, frozen=True, kw_only=True, eq=False):
    """The instant of a `Wake`, or a later one, was reached."""


AnyEvent = (
    ServiceStarted
    | TaskQueued
    | LearnersPriced
    | SharesRequested
    | CycleEnded
    | CycleAveraged
    | TaskEnded
    | RoundPlanned
    | RoundInfeasible
    | TimeReached
)
