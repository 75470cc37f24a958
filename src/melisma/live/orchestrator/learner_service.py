"""Where learners call: what they say is checked and becomes events; what they ask for is here.

An update is kept on disk before it is counted, and refused by name if it does not fit the model.
"""

import asyncio
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from melisma.cycle import events
from melisma.cycle.learner import subset_shards
from melisma.cycle.ragged import NO_ROWS, RaggedArray
from melisma.errors import DataError, RefusedError
from melisma.learning.trainer import Score
from melisma.live import protocol
from melisma.live.orchestrator.federated_evaluator import FederatedEvaluator
from melisma.live.orchestrator.mailbox import Mailbox
from melisma.live.orchestrator.run_spec import RunSpec
from melisma.live.orchestrator.run_store import RunStore

MAX_POLL_S: Final = 20.0
"""The longest that a learner waits for an order in one request."""
PROGRESS_REPORTS_PER_CYCLE: Final = 20
"""How many times in a cycle a learner says how far it is, where it does."""
MAX_BOUND_SHARDS: Final = 2**40
METHODS: Final = (
    "register",
    "join",
    "poll",
    "report_costs",
    "report_bound",
    "upload_update",
    "report_evaluation",
    "report_failure",
)


class EventHandler(Protocol):
    """Whoever the desk reports to."""

    def now(self) -> float:
        """Seconds since the run began."""

    def handle(self, event: events.Event) -> None:
        """Something happened."""

    def expects(self, learner: int, cycle: int, attempt: int) -> bool:
        """Whether an update of that assignment would count now."""


class LearnerService:
    """Learners of one run, by number."""

    def __init__(
        self,
        goal: RunSpec,
        seats: list[Mailbox],
        store: RunStore,
        jury: FederatedEvaluator,
        hears: EventHandler,
    ) -> None:
        self._goal, self._task, self._seats = goal, goal.task, seats
        self._store, self._jury, self._to = store, jury, hears
        self._numbers = {seat.name: number for number, seat in enumerate(seats)}
        self._arriving: set[tuple[int, int, int]] = set()
        self._kept: dict[tuple[int, int, int], Path] = {}

    async def register(self, name: str) -> Any:
        """The number and the task of the learner of that name."""
        if name not in self._numbers:
            raise RefusedError(f"no learner is called {name!r} in this run")
        number = self._numbers[name]
        owns = len(self._store.samples) > 0
        some = subset_shards(self._task, np.array([number])).values.tolist() if owns else []
        subset, hold_back = self._store.shard_refs(some), not len(self._goal.test)
        return protocol.to_builtins(
            protocol.RegisterResponse(number, self._goal.run, self._task, subset, hold_back)
        )

    async def join(self, joining: Any) -> None:
        """A learner is ready."""
        said = protocol.parse(joining, protocol.JoinRequest)
        seat = self._seat(said.learner)
        if seat.joined or seat.left:
            raise RefusedError(f"{seat.name} has joined before")
        if self._task.mode == "federated" and not said.local_samples:
            raise RefusedError(f"{seat.name} has no data, and none travels in federated learning")
        seat.joined = True
        local_data = (
            RaggedArray.of([np.array(said.local_samples)]) if said.local_samples else NO_ROWS
        )
        self._hear(
            events.LearnersJoined,
            said.learner,
            names=(seat.name,),
            discloses=(said.discloses,),
            local_data=local_data,
        )

    async def poll(self, number: int, progress: Any = None) -> Any:
        """The next orders of a learner, as soon as there are any; with how far it is."""
        seat, wait_s = self._seat(number), MAX_POLL_S
        if progress is not None:
            cycle, visits = protocol.parse(
                progress, tuple[protocol.NonNegativeInt, protocol.NonNegativeInt]
            )
            self._hear(events.ProgressReported, number, cycle=cycle, visits=np.array([visits]))
            wait_s = min(MAX_POLL_S, self._task.deadline_s / PROGRESS_REPORTS_PER_CYCLE)
        return [protocol.to_builtins(order) for order in await seat.get(wait_s)]

    async def report_costs(self, number: int, costs: Any) -> None:
        """What a learner measured."""
        self._seat(number)
        self._estimates(number, costs, self._to.now())

    async def report_bound(self, number: int, cycle: int, deadline_s: float, shards: int) -> None:
        """What a learner would take."""
        self._seat(number)
        asked = np.array([min(protocol.parse(shards, protocol.NonNegativeInt), MAX_BOUND_SHARDS)])
        self._hear(
            events.BoundsReported,
            number,
            cycle=protocol.parse(cycle, protocol.NonNegativeInt),
            deadline_s=protocol.parse(deadline_s, protocol.Seconds),
            shards=asked,
        )

    async def upload_update(self, handed: Any, parameters: dict[str, NDArray[Any]]) -> str:
        """What a learner has trained: kept, then counted, once; or what is wrong with it."""
        at_s, said = self._to.now(), protocol.parse(handed, protocol.UpdateHeader)
        seat = self._seat(said.learner)
        if said.key in self._arriving:
            return "it is arriving already"
        refused = await self._keep(said, parameters)
        if said.costs and not refused:
            self._estimates(said.learner, said.costs, at_s)
        # Only here it is known how long the upload took.
        upload_s = max(0.0, at_s - seat.dispatched_s - sum(said.phases[:-1]))
        self._to.handle(
            events.UpdatesReceived(
                at_s=at_s,
                learners=np.array([said.learner]),
                cycle=said.cycle,
                attempts=np.array([said.attempt]),
                visits=np.array([said.visits]),
                shipped=np.array([said.shipped]),
                loss=np.array([said.loss]),
                phases=np.array([[*said.phases[:-1], upload_s]]),
                refused=refused,
            )
        )
        return refused

    async def report_evaluation(self, judged: Any) -> None:
        """How good a learner finds the model."""
        said = protocol.parse(judged, protocol.EvaluationSums)
        self._seat(said.learner)
        if not said.correct <= said.labels or not isfinite(said.loss_sum):
            raise RefusedError("a score that cannot be")
        score = Score(said.samples, said.loss_sum, said.correct, said.labels)
        self._jury.add(said.learner, said.cycle, score)

    async def report_failure(self, number: int, reason: str) -> None:
        """A learner cannot go on."""
        self._seat(number)
        self.gone(number, protocol.parse(reason, protocol.ShortText))

    def gone(self, number: int, reason: str) -> None:
        """A learner is no longer there; said once."""
        seat = self._seats[number]
        if not seat.left:
            seat.joined, seat.left = False, True
            self._jury.recheck()
            self._hear(events.LearnersLeft, number, reason=reason)

    def kept(self, cycle: int, learners: Sequence[int], attempts: Sequence[int]) -> list[Path]:
        """The updates of these assignments, of which this was the last that is wanted."""
        both = zip(learners, attempts, strict=True)
        found = [self._kept[learner, cycle, attempt] for learner, attempt in both]
        self._kept.clear()
        return found

    async def _keep(self, said: protocol.UpdateHeader, parameters: dict[str, NDArray[Any]]) -> str:
        """Keep an update if it would count; what is wrong with it, or nothing."""
        if not self._to.expects(*said.key) or not said.visits:
            return ""
        self._arriving.add(said.key)
        try:
            path = await asyncio.to_thread(self._store.keep, said.cycle, said.learner, parameters)
        except DataError as error:
            return f"the update of {self._seats[said.learner].name} is refused: {error}"
        finally:
            self._arriving.discard(said.key)
        if self._to.expects(*said.key):
            self._kept[said.key] = path
        return ""

    def _estimates(self, number: int, costs: Any, at_s: float) -> None:
        found = np.array(protocol.parse(costs, protocol.CostTable), dtype=np.float64)[:, :, None]
        if not found[0, 0] > 0 or not (found[:, 2] >= 1).all():
            raise RefusedError("costs that cannot be: training takes time, and was measured")
        self._to.handle(
            events.EstimatesReported(at_s=at_s, learners=np.array([number]), costs=found)
        )

    def _hear(self, kind: Callable[..., events.Event], number: int, **said: Any) -> None:
        self._to.handle(kind(at_s=self._to.now(), learners=np.array([number]), **said))

    def _seat(self, number: int) -> Mailbox:
        if type(number) is not int or not 0 <= number < len(self._seats):
            raise RefusedError(f"no learner has the number {number!r} in this run")
        return self._seats[number]
