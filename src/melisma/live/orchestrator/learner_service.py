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
POLLS_PER_SILENCE_LIMIT: Final = 4
SILENCE_CHECK_S: Final = 0.25
PROGRESS_REPORTS_PER_CYCLE: Final = 20
MAX_BOUND_SHARDS: Final = 2**40
METHODS: Final = (
    "register",
    "join",
    "poll",
    "report_costs",
    "report_bound",
    "request_shards",
    "release_shards",
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
        worker = Worker(
            port=port,
            token=self.token,
            limits=limits,
            files=lambda name, _: self._store.path(name),
        )
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
        if mailbox.request is not None or mailbox.left:
            raise RefusedError(f"{mailbox.name} has already joined; a learner joins a run once")
        if self._task.mode == "federated" and not samples:
            raise RefusedError(
                f"{mailbox.name} has no local data; in federated learning it needs at least a shard"
            )
        mailbox.request = request
        self._join(mailbox, request)

    def _join(self, mailbox: Mailbox, request: protocol.JoinRequest) -> None:
        mailbox.joined, mailbox.silent = True, False
        samples = request.local_shards
        self._emit(
            events.LearnersJoined,
            request.learner,
            names=(mailbox.name,),
            discloses=(request.discloses,),
            local_shards=RaggedArray.from_rows([np.array(samples)]) if samples else NO_ROWS,
        )

    async def poll(self, learner: int, progress: Any = None) -> Any:
        """Record the learner's progress; return its instructions, waiting for the first one.

        A learner at work polls several times before its silence would be taken for its death. One
        that was silent for longer joins again.
        """
        mailbox, timeout_s = self._mailbox(learner), MAX_POLL_S
        if mailbox.silent and not mailbox.left and mailbox.request is not None:
            self._join(mailbox, mailbox.request)
        if mailbox.open_work is not None:
            timeout_s = min(timeout_s, mailbox.silence_limit_s / POLLS_PER_SILENCE_LIMIT)
        if progress is not None:
            pair = tuple[protocol.NonNegativeInt, protocol.NonNegativeInt]
            cycle, visits = protocol.parse(progress, pair)
            self._emit(events.ProgressReported, learner, cycle=cycle, visits=np.array([visits]))
            timeout_s = min(timeout_s, self._task.deadline_s / PROGRESS_REPORTS_PER_CYCLE)
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

    async def request_shards(self, learner: int, cycle: int, shards: int) -> None:
        """Record that a learner at work will be done early and can train further shards."""
        self._mailbox(learner)
        wanted = min(protocol.parse(shards, protocol.NonNegativeInt), MAX_BOUND_SHARDS)
        number = protocol.parse(cycle, protocol.NonNegativeInt)
        self._emit(events.ShardsRequested, learner, cycle=number, shards=np.array([wanted]))

    async def release_shards(self, learner: int, cycle: int, shards: Any) -> None:
        """Record the numbers of shards that a learner at work will not get to."""
        self._mailbox(learner)
        numbers = protocol.parse(shards, tuple[protocol.NonNegativeInt, ...])
        released = RaggedArray.from_rows([np.array(numbers, dtype=np.int64)])
        number = protocol.parse(cycle, protocol.NonNegativeInt)
        self._emit(events.ShardsReleased, learner, cycle=number, shards=released)

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
        dispatched_s = mailbox.dispatched_s.get(header.cycle, at_s)
        upload_s = max(0.0, at_s - dispatched_s - sum(header.phases[:-1]))
        mailbox.end_work(header.cycle)
        self._handler.handle(
            events.UpdatesReceived(
                at_s=at_s,
                learners=np.array([header.learner]),
                cycle=header.cycle,
                attempts=np.array([header.attempt]),
                visits=np.array([header.visits]),
                planned_visits=np.array([min(header.visits, header.planned_visits)]),
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
        if mailbox.left:
            return
        mailbox.left = True
        # Its process may have ended while it polled.
        mailbox.close()
        if not mailbox.silent:
            self._leave(mailbox, learner, reason)

    async def watch_silence(self) -> None:
        """Remove silent learners until cancelled."""
        while True:
            began_s = self._handler.now()
            await asyncio.sleep(SILENCE_CHECK_S)
            delay_s = self._handler.now() - began_s - SILENCE_CHECK_S
            if delay_s > SILENCE_CHECK_S:
                # This process was busy or stopped: calls may have arrived that it has not handled.
                for mailbox in self._mailboxes:
                    mailbox.called_s += delay_s
            self.remove_silent()

    def remove_silent(self) -> None:
        """Record that learners have left that are at work and have not called for too long.

        Each may join again. The last learner of a run is awaited: no other could do its work.
        """
        now_s = self._handler.now()
        for learner, mailbox in enumerate(self._mailboxes):
            silence_s = now_s - mailbox.called_s
            is_silent = mailbox.open_work is not None and silence_s > mailbox.silence_limit_s
            if mailbox.joined and is_silent and sum(item.joined for item in self._mailboxes) > 1:
                mailbox.clear()
                cycle, attempt = mailbox.open_work or (0, 0)
                mailbox.put(protocol.StopTraining(cycle, attempt))
                mailbox.silent = True
                reason = f"{mailbox.name}: no sign of life for {silence_s:.1f} s"
                self._leave(mailbox, learner, reason)

    def _leave(self, mailbox: Mailbox, learner: int, reason: str) -> None:
        mailbox.joined, mailbox.open_work = False, None
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
            path = await asyncio.to_thread(spool, header.assignment, parameters)
        except DataError as error:
            return f"the update of {self._mailboxes[header.learner].name} is refused: {error}"
        finally:
            self._receiving.discard(header.assignment)
        # The update may have become too late, or its learner silent, while it was written.
        if self._handler.expects(*header.assignment):
            self._store.accept(header.assignment, path)
        else:
            path.unlink(missing_ok=True)
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
        """Return the mailbox of a learner that calls."""
        if type(learner) is not int or not 0 <= learner < len(self._mailboxes):
            last = len(self._mailboxes) - 1
            raise RefusedError(f"unknown learner number {learner!r}; use one from 0 to {last}")
        mailbox = self._mailboxes[learner]
        mailbox.called_s = self._handler.now()
        return mailbox
