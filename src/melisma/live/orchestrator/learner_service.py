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
from melisma.cycle.ragged import NO_ROWS, Rows
from melisma.errors import DataError, RefusedError
from melisma.learning.trainer import Score
from melisma.live import protocol
from melisma.live.orchestrator.federated_evaluator import Jury
from melisma.live.orchestrator.mailbox import Seat
from melisma.live.orchestrator.run_spec import Goal
from melisma.live.orchestrator.run_store import Storehouse

POLL_S: Final = 20.0
"""The longest that a learner waits for an order in one request."""
SHOWN: Final = 20
"""How many times in a cycle a learner says how far it is, where it does."""
MOST_SHARDS: Final = 2**40
METHODS: Final = ("enter", "join", "orders", "costs", "bound", "update", "judged", "fail")


class Hears(Protocol):
    """Whoever the desk reports to."""

    def now(self) -> float:
        """Seconds since the run began."""

    def hear(self, event: events.Event) -> None:
        """Something happened."""

    def expects(self, learner: int, cycle: int, attempt: int) -> bool:
        """Whether an update of that assignment would count now."""


class Desk:
    """Learners of one run, by number."""

    def __init__(
        self, goal: Goal, seats: list[Seat], store: Storehouse, jury: Jury, hears: Hears
    ) -> None:
        self._goal, self._task, self._seats = goal, goal.task, seats
        self._store, self._jury, self._to = store, jury, hears
        self._numbers = {seat.name: number for number, seat in enumerate(seats)}
        self._arriving: set[tuple[int, int, int]] = set()
        self._kept: dict[tuple[int, int, int], Path] = {}

    async def enter(self, name: str) -> Any:
        """The number and the task of the learner of that name."""
        if name not in self._numbers:
            raise RefusedError(f"no learner is called {name!r} in this run")
        number = self._numbers[name]
        owns = len(self._store.samples) > 0
        some = subset_shards(self._task, np.array([number])).flat.tolist() if owns else []
        subset, hold_back = self._store.parcels(some), not len(self._goal.test)
        return protocol.plain(protocol.Entry(number, self._goal.run, self._task, subset, hold_back))

    async def join(self, joining: Any) -> None:
        """A learner is ready."""
        said = protocol.checked(joining, protocol.Joining)
        seat = self._seat(said.number)
        if seat.here or seat.gone:
            raise RefusedError(f"{seat.name} has joined before")
        if self._task.mode == "federated" and not said.own:
            raise RefusedError(f"{seat.name} has no data, and none travels in federated learning")
        seat.here = True
        own = Rows.of([np.array(said.own)]) if said.own else NO_ROWS
        self._hear(
            events.LearnersJoined, said.number, names=(seat.name,), tells=(said.tells,), own=own
        )

    async def orders(self, number: int, progress: Any = None) -> Any:
        """The next orders of a learner, as soon as there are any; with how far it is."""
        seat, wait_s = self._seat(number), POLL_S
        if progress is not None:
            cycle, visits = protocol.checked(progress, tuple[protocol.Number, protocol.Number])
            self._hear(events.ProgressReported, number, cycle=cycle, visits=np.array([visits]))
            wait_s = min(POLL_S, self._task.deadline_s / SHOWN)
        return [protocol.plain(order) for order in await seat.take(wait_s)]

    async def costs(self, number: int, costs: Any) -> None:
        """What a learner measured."""
        self._seat(number)
        self._estimates(number, costs, self._to.now())

    async def bound(self, number: int, cycle: int, deadline_s: float, shards: int) -> None:
        """What a learner would take."""
        self._seat(number)
        asked = np.array([min(protocol.checked(shards, protocol.Number), MOST_SHARDS)])
        self._hear(
            events.BoundsReported,
            number,
            cycle=protocol.checked(cycle, protocol.Number),
            deadline_s=protocol.checked(deadline_s, protocol.Seconds),
            shards=asked,
        )

    async def update(self, handed: Any, parameters: dict[str, NDArray[Any]]) -> str:
        """What a learner has trained: kept, then counted, once; or what is wrong with it."""
        at_s, said = self._to.now(), protocol.checked(handed, protocol.Handed)
        seat = self._seat(said.learner)
        if said.key in self._arriving:
            return "it is arriving already"
        refused = await self._keep(said, parameters)
        if said.costs and not refused:
            self._estimates(said.learner, said.costs, at_s)
        # Only here it is known how long the upload took.
        upload_s = max(0.0, at_s - seat.sent_s - sum(said.phases[:-1]))
        self._to.hear(
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

    async def judged(self, judged: Any) -> None:
        """How good a learner finds the model."""
        said = protocol.checked(judged, protocol.Judged)
        self._seat(said.learner)
        if not said.right <= said.judged or not isfinite(said.loss_sum):
            raise RefusedError("a score that cannot be")
        score = Score(said.samples, said.loss_sum, said.right, said.judged)
        self._jury.told(said.learner, said.cycle, score)

    async def fail(self, number: int, reason: str) -> None:
        """A learner cannot go on."""
        self._seat(number)
        self.gone(number, protocol.checked(reason, protocol.Words))

    def gone(self, number: int, reason: str) -> None:
        """A learner is no longer there; said once."""
        seat = self._seats[number]
        if not seat.gone:
            seat.here, seat.gone = False, True
            self._jury.left()
            self._hear(events.LearnersLeft, number, reason=reason)

    def kept(self, cycle: int, learners: Sequence[int], attempts: Sequence[int]) -> list[Path]:
        """The updates of these assignments, of which this was the last that is wanted."""
        both = zip(learners, attempts, strict=True)
        found = [self._kept[learner, cycle, attempt] for learner, attempt in both]
        self._kept.clear()
        return found

    async def _keep(self, said: protocol.Handed, parameters: dict[str, NDArray[Any]]) -> str:
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
        found = np.array(protocol.checked(costs, protocol.Costs), dtype=np.float64)[:, :, None]
        if not found[0, 0] > 0 or not (found[:, 2] >= 1).all():
            raise RefusedError("costs that cannot be: training takes time, and was measured")
        self._to.hear(events.EstimatesReported(at_s=at_s, learners=np.array([number]), costs=found))

    def _hear(self, kind: Callable[..., events.Event], number: int, **said: Any) -> None:
        self._to.hear(kind(at_s=self._to.now(), learners=np.array([number]), **said))

    def _seat(self, number: int) -> Seat:
        if type(number) is not int or not 0 <= number < len(self._seats):
            raise RefusedError(f"no learner has the number {number!r} in this run")
        return self._seats[number]
