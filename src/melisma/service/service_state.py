"""The state of a service: its tasks, its learners and the present round."""

from dataclasses import dataclass, field

import numpy as np

from melisma.allocation.schemes import Scheme
from melisma.backports import StrEnum
from melisma.fleet.array_types import NO_FLOATS, NO_INTS, Floats, Ints
from melisma.fleet.task import Task
from melisma.service.accounts import Account


class TaskStatus(StrEnum):
    """The status of a task."""

    QUEUED = "queued"  # it has had no cycle yet
    RUNNING = "running"
    ENDED = "ended"


@dataclass(eq=False)
class SharesRequest:
    """The shares that a task requests for a cycle: learners that are ready, and their costs."""

    cycle: int
    learners: Ints
    costs: Floats

    def costs_of(self, learners: Ints) -> Floats:
        """Return the costs of these learners, NaN where one is not ready."""
        costs = np.full((self.costs.shape[0], learners.size), np.nan)
        _, ours, theirs = np.intersect1d(learners, self.learners, return_indices=True)
        costs[:, ours] = self.costs[:, theirs]
        return costs


@dataclass(eq=False)
class TaskRecord:
    """A task of the service."""

    number: int
    task: Task
    status: TaskStatus = TaskStatus.QUEUED
    outcome: str = ""
    in_cycle: bool = False
    request: SharesRequest | None = None
    latest_request: SharesRequest | None = None  # with the latest known costs
    cycles: int = 0  # that were granted
    cycle: int = 0  # of the latest grant
    account: Account = field(default_factory=Account)
    spends_all: bool = False  # whether the next cycle may take all that is left of the budget

    @property
    def is_live(self) -> bool:
        """Whether the task has not ended."""
        return self.status is not TaskStatus.ENDED

    def request_shares(self, request: SharesRequest) -> None:
        """Store a request, and its costs also beyond its grant."""
        self.request = self.latest_request = request

    def begin_cycle(self) -> None:
        """Begin the cycle that the task requests shares for."""
        if self.request is not None:
            self.cycle = self.request.cycle
        self.status, self.in_cycle, self.request = TaskStatus.RUNNING, True, None
        self.cycles, self.spends_all = self.cycles + 1, False

    @property
    def allowance(self) -> float | None:
        """The most that the next cycle may cost: an even part of what is left of the budget.

        None without a budget.
        """
        left = self.account.left
        if left is None or self.spends_all:
            return left
        return left / max(self.remaining_cycles or 1, 1)

    @property
    def remaining_cycles(self) -> int | None:
        """The cycles that were not granted yet; None if the task sets no number."""
        return None if self.task.cycles is None else max(self.task.cycles - self.cycles, 0)


@dataclass(eq=False)
class Association:
    """The task of each learner in the first plan for these tasks and learners."""

    numbers: tuple[int, ...] = ()
    learners: Ints = field(default_factory=lambda: NO_INTS)
    assigned: Ints = field(default_factory=lambda: NO_INTS)

    def holds_for(self, numbers: tuple[int, ...], learners: Ints) -> bool:
        """Return whether it is for the same tasks and learners."""
        return self.numbers == numbers and np.array_equal(self.learners, learners)


@dataclass(eq=False)
class Boundary:
    """What was decided since no task has been in a cycle."""

    waits_until_s: float | None = None  # for tasks that are not ready
    holds: dict[int, str] = field(default_factory=dict)  # tasks left out of the plan, and why
    unfit: list[int] = field(default_factory=list)  # tasks that have no plan of their own
    unpaid: list[int] = field(default_factory=list)  # those of them that their budget leaves out
    stuck: tuple[int, ...] = ()  # tasks without a plan, which wait for the others
    keeps_tasks: bool = False  # whether learners keep their tasks in the present plan


@dataclass(eq=False)
class ServiceState:
    """The state of one service."""

    scheme: Scheme
    budget: float | None
    is_open: bool = False  # learners may join at any time
    tasks: dict[int, TaskRecord] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)  # by learner, empty if it never joined
    price: Floats = field(default_factory=lambda: NO_FLOATS)
    planned_price: Floats = field(default_factory=lambda: NO_FLOATS)  # of the present plan
    round: int = 0
    planning: tuple[int, ...] = ()  # the tasks that are being planned
    boundary: Boundary = field(default_factory=Boundary)
    association: Association = field(default_factory=Association)

    @property
    def live(self) -> list[TaskRecord]:
        """The tasks that have not ended, in the order of submission."""
        return [record for record in self.tasks.values() if record.is_live]

    @property
    def requesting(self) -> tuple[int, ...]:
        """The numbers of the tasks that request shares, in the order of submission."""
        return tuple(record.number for record in self.live if record.request is not None)

    def make_room(self, count: int) -> None:
        """Grow the columns to at least `count` learners."""
        missing = count - len(self.names)
        if missing > 0:
            self.names += [""] * missing
            self.price = np.concatenate([self.price, np.ones(missing)])
