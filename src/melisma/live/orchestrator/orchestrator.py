"""The orchestrator: lets the cycle machine decide, and carries out what it says.

Everything happens on one event loop; only averaging, scoring and files of parameters are left to
threads beside it.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from math import isfinite
from typing import Any

import numpy as np

from melisma.axon import Limits, Worker
from melisma.cycle import commands, events
from melisma.cycle.machine import CycleMachine
from melisma.learning.aggregation import Spooled
from melisma.learning.trainer import Score
from melisma.live import protocol
from melisma.live.orchestrator.federated_evaluator import FederatedEvaluator
from melisma.live.orchestrator.learner_service import METHODS, LearnerService
from melisma.live.orchestrator.mailbox import Mailbox
from melisma.live.orchestrator.run_spec import RunSpec
from melisma.live.orchestrator.run_store import RunStore
from melisma.runs.trace import Step

Watcher = Callable[[Step], None]


class Orchestrator:
    """One run of one task with learners that are known by name; made on the loop that runs it."""

    def __init__(
        self, goal: RunSpec, names: Sequence[str], store: RunStore, watch: Watcher
    ) -> None:
        self._goal, self._store, self._watch = goal, store, watch
        self._seats = [Mailbox(name) for name in names]
        self._jury = FederatedEvaluator(self._seats)
        self._desk = LearnerService(goal, self._seats, store, self._jury, self)
        self._machine = CycleMachine()
        self._timer: asyncio.TimerHandle | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.token = secrets.token_urlsafe(24)
        self.finished: asyncio.Future[commands.Finish] = self._loop.create_future()

    def worker(self, port: int = 0) -> Worker:
        """Where learners call."""
        limits = Limits(max_calls=4 * len(self._seats) + 64)
        worker = Worker(port=port, token=self.token, limits=limits, files=self._store.path)
        worker.expose(self._desk, METHODS, name="")
        return worker

    def begin(self) -> None:
        """Submit the task; `SettingError` if it cannot be run."""
        self._store.save_initial(self._goal.trainer.initial())
        samples = np.array(self._store.samples, dtype=np.int64)
        self._heard(
            events.TaskSubmitted(
                at_s=self.now(),
                run=self._goal.run,
                task=self._goal.task,
                learners=len(self._seats),
                samples=samples,
                names=tuple(seat.name for seat in self._seats),
                rates=self._goal.rates,
            )
        )

    def cancel(self, reason: str) -> None:
        """End it here."""
        self.handle(events.TaskCancelled(at_s=self.now(), reason=reason))

    def gone(self, number: int, reason: str) -> None:
        """A learner is no longer there."""
        self._desk.gone(number, reason)

    def now(self) -> float:
        """Seconds since the run began."""
        return self._loop.time() - self._began

    def expects(self, learner: int, cycle: int, attempt: int) -> bool:
        """Whether an update of that assignment would count now."""
        one, attempts = np.array([learner]), np.array([attempt])
        return bool(self._machine.state.expects(one, cycle, attempts)[0])

    def handle(self, event: Any) -> None:
        """Something happened; what goes wrong here ends the run."""
        if self.finished.done():
            return
        try:
            self._heard(event)
        except Exception as error:
            if not self.finished.done():
                self.finished.set_exception(error)
            raise

    def _heard(self, event: Any) -> None:
        """Let the machine decide what an event means, write it down, and do what it says."""
        said = self._machine.handle(event)
        heard = Step(event, said)  # type: ignore[arg-type]
        self._store.record(heard)
        self._watch(heard)
        for command in said:
            HANDLERS[type(command)](self, command)

    def _benchmark(self, command: commands.Benchmark) -> None:
        for learner in command.learners.tolist():
            self._seats[learner].put(protocol.RunBenchmark(command.seconds))

    def _ask_bound(self, command: commands.AskBound) -> None:
        for learner, held in zip(command.learners.tolist(), command.held.tolist(), strict=True):
            self._seats[learner].put(protocol.ComputeBound(command.cycle, command.deadline_s, held))

    def _dispatch(self, command: commands.Dispatch) -> None:
        now_s, deadline_at = self.now(), self._loop.time() + command.seconds_left
        for place, learner in enumerate(command.learners.tolist()):
            self._seats[learner].sent_s = now_s
            self._seats[learner].put(self._train(command, place, deadline_at))

    def _train(
        self, command: commands.Dispatch, place: int, deadline_at: float
    ) -> Callable[[], protocol.AnyInstruction]:
        shards, model = command.shards[place].tolist(), self._store.model_name
        federated = self._goal.task.mode == "federated"
        return lambda: protocol.Train(
            cycle=command.cycle,
            attempt=int(command.attempts[place]),
            model=model,
            passes=int(command.passes[place]),
            seconds_left=max(0.0, deadline_at - self._loop.time()),
            shards=() if federated else self._store.shard_refs(shards),
            local_shards=tuple(shards) if federated else (),
        )

    def _withdraw(self, command: commands.Withdraw) -> None:
        both = zip(command.learners.tolist(), command.attempts.tolist(), strict=True)
        for learner, attempt in both:
            self._seats[learner].put(protocol.StopTraining(command.cycle, attempt))

    def _wake(self, command: commands.Wake) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(
            self._began + command.at_s, lambda: self.handle(events.TimeReached(at_s=self.now()))
        )

    def _aggregate(self, command: commands.Aggregate) -> None:
        learners, weights = command.learners.tolist(), command.weights.tolist()
        paths = self._desk.kept(command.cycle, learners, command.attempts.tolist())
        updates = list(map(Spooled, learners, weights, paths))

        async def work() -> None:
            began = self._loop.time()
            await asyncio.to_thread(self._store.aggregate, command.cycle, updates)
            took_s = self._loop.time() - began
            self.handle(events.Aggregated(at_s=self.now(), cycle=command.cycle, seconds=took_s))

        self._start(work())

    def _evaluate(self, command: commands.Evaluate) -> None:
        async def work() -> None:
            began = self._loop.time()
            score = await self._score(command.cycle)
            self.handle(
                events.Evaluated(
                    at_s=self.now(),
                    cycle=command.cycle,
                    loss=score.loss if isfinite(score.loss) else None,
                    accuracy=score.accuracy if isfinite(score.accuracy) else None,
                    seconds=self._loop.time() - began,
                )
            )

        self._start(work())

    async def _score(self, cycle: int) -> Score:
        if not len(self._goal.test):
            wait_s = self._goal.task.deadline_s
            return await self._jury.score(cycle, self._store.model_name, wait_s)
        parameters, test = self._store.parameters, self._goal.test
        return await asyncio.to_thread(self._goal.trainer.score, parameters, test)

    def _finish(self, command: commands.Finish) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for seat in self._seats:
            seat.put(protocol.Leave())
        self.finished.set_result(command)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        job = self._loop.create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._ended)

    def _ended(self, job: "asyncio.Task[None]") -> None:
        self._jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) and not self.finished.done():
            self.finished.set_exception(error)


HANDLERS: dict[type[commands.Command], Callable[[Orchestrator, Any], None]] = {
    commands.Benchmark: Orchestrator._benchmark,
    commands.AskBound: Orchestrator._ask_bound,
    commands.Dispatch: Orchestrator._dispatch,
    commands.Withdraw: Orchestrator._withdraw,
    commands.Wake: Orchestrator._wake,
    commands.Aggregate: Orchestrator._aggregate,
    commands.Evaluate: Orchestrator._evaluate,
    commands.Finish: Orchestrator._finish,
}
