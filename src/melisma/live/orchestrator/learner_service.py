"""The methods that learners call: their messages are validated and become events.

An update is on disk before it counts; one that does not fit the model is refused with the reason.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from melisma.axon import Limits, Worker
from melisma.cycle import events
from melisma.cycle.learner import subset_shards
from melisma.cycle.ragged import NO_ROWS, RaggedArray
from melisma.errors import DataError, RefusedError
from melisma.fleet.estimates import LEAST_COUNT
from melisma.learning.trainer import Score
from melisma.live import protocol
from melisma.live.orchestrator.federated_evaluator import FederatedEvaluator
from melisma.live.orchestrator.mailbox import Mailbox
from melisma.live.orchestrator.run_spec import RunSpec
from melisma.live.orchestrator.run_store import RunStore

MAX_POLL_S: Final = 20.0
"""The longest time that one request waits for instructions."""
PROGRESS_REPORTS_PER_CYCLE: Final = 20
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
    """The receiver of the events that learners cause."""

    def now(self) -> float:
        """Return the seconds since the run began."""

    def handle(self, event: events.AnyEvent) -> None:
        """Handle an event."""

    def expects(self, learner: int, cycle: int, attempt: int) -> bool:
        """Return whether an update of that assignment would count now."""


class LearnerService:
    """Serves the learners of one run, which are numbered in the order of their mailboxes."""

    def __init__(
        self,
        spec: RunSpec,
        mailboxes: Sequence[Mailbox],
        store: RunStore,
        evaluator: FederatedEvaluator,
        handler: EventHandler,
    ) -> None:
        self._spec, self._task, self._mailboxes = spec, spec.task, mailboxes
        self._store, self._evaluator, self._handler = store, evaluator, handler
        self._numbers = {mailbox.name: number for number, mailbox in enumerate(mailboxes)}
        self._receiving: set[tuple[int, int, int]] = set()
        self.token = secrets.token_urlsafe(24)

    def worker(self, port: int = 0) -> Worker:
        """Return the worker that serves these methods, shards and parameters."""
        limits = Limits(max_calls=4 * len(self._mailboxes) + 64)
        worker = Worker(port=port, token=self.token, limits=limits, files=self._store.path)
        worker.expose(self, METHODS, name="")
        return worker

    async def register(self, name: str) -> Any:
        """Return the number, the task and the benchmark shards of the learner with this name."""
        if name not in self._numbers:
            raise RefusedError(f"unknown learner {name!r}; use a name from the run's fleet")
        learner, numbers = self._numbers[name], list[int]()
        if self._store.samples:
            numbers = subset_shards(self._task, np.array([learner])).values.tolist()
        shards, hold_back = self._store.shard_refs(numbers), not len(self._spec.test)
        return protocol.to_builtins(
            protocol.RegisterResponse(
                learner, self._spec.run, self._task, shards, hold_back, self._handler.now()
            )
        )

    async def join(self, message: Any) -> None:
        """Add a learner that is ready to the run."""
        request = protocol.parse(message, protocol.JoinRequest)
        mailbox, samples = self._mailbox(request.learner), request.local_shards
        if mailbox.joined or mailbox.left:
            raise RefusedError(f"{mailbox.name} has already joined; a learner joins a run once")
        if self._task.mode == "federated" and not samples:
            raise RefusedError(
                f"{mailbox.name} has no local data; in federated learning it needs at least a shard"
            )
        mailbox.joined = True
        self._emit(
            events.LearnersJoined,
            request.learner,
            names=(mailbox.name,),
            discloses=(request.discloses,),
            local_shards=RaggedArray.from_rows([np.array(samples)]) if samples else NO_ROWS,
        )

    async def poll(self, learner: int, progress: Any = None) -> Any:
        """Record the learner's progress; return its instructions, waiting for the first one."""
        mailbox, timeout_s = self._mailbox(learner), MAX_POLL_S
        if progress is not None:
            pair = tuple[protocol.NonNegativeInt, protocol.NonNegativeInt]
            cycle, visits = protocol.parse(progress, pair)
            self._emit(events.ProgressReported, learner, cycle=cycle, visits=np.array([visits]))
            timeout_s = min(MAX_POLL_S, self._task.deadline_s / PROGRESS_REPORTS_PER_CYCLE)
        return [protocol.to_builtins(item) for item in await mailbox.get(timeout_s)]

    async def report_costs(self, learner: int, costs: Any) -> None:
        """Record the costs that a learner measured."""
        self._mailbox(learner)
        self._report_costs(learner, costs, self._handler.now())

    async def report_bound(self, learner: int, cycle: int, deadline_s: float, shards: int) -> None:
        """Record the number of shards that a learner can train by the deadline."""
        self._mailbox(learner)
        bound = min(protocol.parse(shards, protocol.NonNegativeInt), MAX_BOUND_SHARDS)
        self._emit(
            events.BoundsReported,
            learner,
            cycle=protocol.parse(cycle, protocol.NonNegativeInt),
            deadline_s=protocol.parse(deadline_s, protocol.Seconds),
            shards=np.array([bound]),
        )

    async def upload_update(self, message: Any, parameters: dict[str, NDArray[Any]]) -> str:
        """Spool an update, then count it once; return why it is refused, or an empty string."""
        at_s, header = self._handler.now(), protocol.parse(message, protocol.UpdateHeader)
        mailbox = self._mailbox(header.learner)
        if header.assignment in self._receiving:
            return f"the update of {mailbox.name} is already being received"
        refused = await self._spool(header, parameters)
        if header.costs and not refused:
            self._report_costs(header.learner, header.costs, at_s)
        # The learner cannot know how long its upload takes until it has ended.
        upload_s = max(0.0, at_s - mailbox.dispatched_s - sum(header.phases[:-1]))
        self._handler.handle(
            events.UpdatesReceived(
                at_s=at_s,
                learners=np.array([header.learner]),
                cycle=header.cycle,
                attempts=np.array([header.attempt]),
                visits=np.array([header.visits]),
                shipped=np.array([header.shipped]),
                loss=np.array([header.loss]),
                phases=np.array([[*header.phases[:-1], upload_s]]),
                refused=refused,
            )
        )
        return refused

    async def report_evaluation(self, message: Any) -> None:
        """Record a learner's evaluation of the model."""
        sums = protocol.parse(message, protocol.EvaluationSums)
        self._mailbox(sums.learner)
        if sums.correct > sums.labels:
            raise RefusedError(f"correct = {sums.correct} exceeds labels = {sums.labels}")
        if not isfinite(sums.loss_sum):
            raise RefusedError(f"loss_sum = {sums.loss_sum} is not finite")
        score = Score(sums.samples, sums.loss_sum, sums.correct, sums.labels)
        self._evaluator.add(sums.learner, sums.cycle, score)

    async def report_failure(self, learner: int, reason: str) -> None:
        """Remove a learner that cannot continue."""
        self._mailbox(learner)
        self.remove_learner(learner, protocol.parse(reason, protocol.ShortText))

    def remove_learner(self, learner: int, reason: str) -> None:
        """Record that a learner has left; only the first reason counts."""
        mailbox = self._mailboxes[learner]
        if not mailbox.left:
            mailbox.joined, mailbox.left = False, True
            # Its process may have ended while it polled.
            mailbox.close()
            self._evaluator.recheck()
            self._emit(events.LearnersLeft, learner, reason=reason)

    async def _spool(
        self, header: protocol.UpdateHeader, parameters: dict[str, NDArray[Any]]
    ) -> str:
        """Spool and accept an update if it would count; return why it is refused."""
        if not self._handler.expects(*header.assignment) or not header.visits:
            return ""
        self._receiving.add(header.assignment)
        spool = self._store.spool
        try:
            path = await asyncio.to_thread(spool, header.cycle, header.learner, parameters)
        except DataError as error:
            return f"the update of {self._mailboxes[header.learner].name} is refused: {error}"
        finally:
            self._receiving.discard(header.assignment)
        # The cycle may have been closed while the update was written.
        if self._handler.expects(*header.assignment):
            self._store.accept(header.assignment, path)
        return ""

    def _report_costs(self, learner: int, costs: Any, at_s: float) -> None:
        table = np.array(protocol.parse(costs, protocol.CostTable), dtype=np.float64)[:, :, None]
        if not table[0, 0] > 0 or not (table[:, 2] >= LEAST_COUNT).all():
            raise RefusedError(
                f"invalid costs: train_s = {float(table[0, 0, 0])} must be > 0 "
                f"and counts {table[:, 2, 0].tolist()} >= {LEAST_COUNT}"
            )
        self._handler.handle(
            events.EstimatesReported(at_s=at_s, learners=np.array([learner]), costs=table)
        )

    def _emit(self, kind: Callable[..., events.AnyEvent], learner: int, **fields: Any) -> None:
        at_s = self._handler.now()
        self._handler.handle(kind(at_s=at_s, learners=np.array([learner]), **fields))

    def _mailbox(self, learner: int) -> Mailbox:
        if type(learner) is not int or not 0 <= learner < len(self._mailboxes):
            last = len(self._mailboxes) - 1
            raise RefusedError(f"unknown learner number {learner!r}; use one from 0 to {last}")
        return self._mailboxes[learner]
