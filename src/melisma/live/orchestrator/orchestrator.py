"""The orchestrator: gives events to the cycle machine and carries out its commands.

Everything runs on one event loop; only averaging, evaluation and parameter files use threads.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from math import isfinite
from typing import Any

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.late_work import MAX_LATE_CYCLES
from melisma.cycle.learner import MAX_ABSENCE_S, silence_limit_s
from melisma.cycle.machine import CycleMachine
from melisma.errors import DataError
from melisma.learning.trainer import Score
from melisma.live import protocol
from melisma.live.orchestrator.combined_score import CombinedScore
from melisma.live.orchestrator.federated_evaluator import FederatedEvaluator
from melisma.live.orchestrator.mailbox import InstructionFactory, Mailboxes
from melisma.live.orchestrator.run_spec import RunSpec
from melisma.live.orchestrator.run_store import RunStore
from melisma.runs.trace import Step

Watcher = Callable[[Step], None]
DESERTED_CHECK_S = 0.25
# To stop learners, and to save report and picture, after a run with a total time.
ENDING_S = 2.0


class Orchestrator:
    """One run of one task; created on the event loop that runs it."""

    def __init__(
        self,
        spec: RunSpec,
        mailboxes: Mailboxes,
        store: RunStore,
        evaluator: FederatedEvaluator,
        watch: Watcher,
    ) -> None:
        self._spec, self._mailboxes = spec, mailboxes
        self._store, self._evaluator, self._watch = store, evaluator, watch
        self._machine = CycleMachine()
        self._timer: asyncio.TimerHandle | None = None
        self._averaged: list[int] = []  # learners whose update is part of the latest average
        self._background: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.finished: asyncio.Future[commands.Finish] = self._loop.create_future()
        # Also when the run ends with an error: no poll waits for its timeout.
        self.finished.add_done_callback(lambda _: mailboxes.close())
        self.started = False
        self.failure: DataError | None = None
        store.save_initial(spec.initial)

    def start(self, learner_count: int | None = None) -> None:
        """Submit the task; the first cycle begins when `learner_count` learners have joined.

        By default these are all learners. Raises `SettingError` if the task cannot be run.
        """
        self.started = True
        self._step(
            events.TaskSubmitted(
                at_s=self.now(),
                run=self._spec.run,
                task=self._spec.task,
                learner_count=len(self._mailboxes) if learner_count is None else learner_count,
                shard_samples=np.array(self._store.samples, dtype=np.int64),
                names=tuple(mailbox.name for mailbox in self._mailboxes),
                rates=self._spec.rates,
                # Processes of this machine that have ended do not come back.
                absence_s=MAX_ABSENCE_S if self._mailboxes.grows else 0.0,
                ends_s=self._ends_s(),
            )
        )

    def _ends_s(self) -> float | None:
        """Return the instant at which a run with a total time ends."""
        spec = self._spec
        if spec.task.total_s is None:
            return None
        elapsed_s = 0.0 if spec.counts_from is None else time.monotonic() - spec.counts_from
        return self.now() + spec.task.seconds_left(elapsed_s) - ENDING_S

    def cancel(self, reason: str) -> None:
        """End the run and keep its results so far."""
        self.handle(events.TaskCancelled(at_s=self.now(), reason=reason))

    def now(self) -> float:
        """Return the seconds since this orchestrator was created."""
        return self._loop.time() - self._began

    def expects(self, learner: int, cycle: int, attempt: int) -> bool:
        """Return whether an update of that assignment would count now."""
        if not self.started:
            return False
        learners, attempts = np.array([learner]), np.array([attempt])
        return bool(self._machine.state.expects(learners, cycle, attempts)[0])

    def most_visits(self, learner: int, cycle: int) -> int:
        """Return the most visits that are believed of an assignment of that cycle."""
        return self._machine.state.most_visits(learner, cycle) if self.started else 0

    def handle(self, event: events.AnyEvent) -> None:
        """Give an event to the cycle machine and carry out its commands; an error ends the run.

        Events before the start or after the end of the run are ignored.
        """
        if self.finished.done() or not self.started:
            return
        try:
            self._step(event)
        except Exception as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """End the run with an error."""
        if not self.finished.done():
            self.finished.set_exception(error)

    def _step(self, event: events.AnyEvent) -> None:
        """Let the machine decide, record the step, and carry out the commands."""
        issued = self._machine.handle(event)
        step = Step(event, issued)
        self._store.record(step)
        self._watch(step)
        for command in issued:
            HANDLERS[type(command)](self, command)

    def benchmark(self, command: commands.Benchmark) -> None:
        """Ask learners to run their benchmark."""
        for learner in command.learners.tolist():
            self._put(learner, protocol.RunBenchmark(command.seconds))

    def ask_bound(self, command: commands.AskBound) -> None:
        """Ask learners how many shards they can train."""
        for learner, held in zip(command.learners.tolist(), command.held.tolist(), strict=True):
            self._put(learner, protocol.ComputeBound(command.cycle, command.deadline_s, held))

    def dispatch(self, command: commands.Dispatch) -> None:
        """Send assignments to learners."""
        self._store.begin_cycle(command.cycle)
        now_s, deadline_at = self.now(), self._loop.time() + command.seconds_left
        limits_s = silence_limit_s(command.predicted_s, command.seconds_left)
        for row, learner in enumerate(command.learners.tolist()):
            mailbox = self._mailboxes[learner]
            mailbox.dispatched_s.pop(command.cycle - MAX_LATE_CYCLES - 1, None)
            mailbox.dispatched_s[command.cycle] = mailbox.called_s = now_s
            mailbox.open_work = command.cycle, int(command.attempts[row])
            mailbox.silence_limit_s = float(limits_s[row])
            mailbox.put(self._assignment(command, row, deadline_at))

    def _assignment(
        self, command: commands.Dispatch, row: int, deadline_at: float
    ) -> InstructionFactory:
        """Return a function that creates the instruction with the seconds left at that time."""
        shards, model = command.shards[row].tolist(), self._store.model_name
        federated = self._spec.task.mode == "federated"
        return lambda: protocol.Train(
            cycle=command.cycle,
            attempt=int(command.attempts[row]),
            model=model,
            passes=int(command.passes[row]),
            seconds_left=max(0.0, deadline_at - self._loop.time()),
            shards=() if federated else self._store.shard_refs(shards),
            local_shards=tuple(shards) if federated else (),
        )

    def extend(self, command: commands.Extend) -> None:
        """Send further shards to learners at work."""
        federated = self._spec.task.mode == "federated"
        for row, learner in enumerate(command.learners.tolist()):
            shards, attempt = command.shards[row].tolist(), int(command.attempts[row])
            self._mailboxes[learner].open_work = command.cycle, attempt
            self._put(
                learner,
                protocol.ExtendTraining(
                    cycle=command.cycle,
                    attempt=attempt,
                    passes=int(command.passes[row]),
                    shards=() if federated else self._store.shard_refs(shards),
                    local_shards=tuple(shards) if federated else (),
                ),
            )

    def prefetch(self, command: commands.Prefetch) -> None:
        """Let learners fetch shards of the next cycle."""
        for learner, shards in zip(command.learners.tolist(), command.shards, strict=True):
            self._put(learner, protocol.PrefetchShards(self._store.shard_refs(shards.tolist())))

    def withdraw(self, command: commands.Withdraw) -> None:
        """Tell learners to stop work whose update would not count."""
        pairs = zip(command.learners.tolist(), command.attempts.tolist(), strict=True)
        for learner, attempt in pairs:
            self._mailboxes[learner].end_work(command.cycle)
            self._put(learner, protocol.StopTraining(command.cycle, attempt))

    def wake(self, command: commands.Wake) -> None:
        """Schedule a `TimeReached` event, instead of the one scheduled before."""
        self._stop_timer()
        self._timer = self._loop.call_at(self._began + command.at_s, self._on_time)

    def _on_time(self) -> None:
        """Handle that a time has come; while all learners are gone, wait for one of them.

        Otherwise a line that is cut for a few short cycles would end the run.
        """
        if self._mailboxes.are_deserted(self.now()):
            self._timer = self._loop.call_later(DESERTED_CHECK_S, self._on_time)
        else:
            self.handle(events.TimeReached(at_s=self.now()))

    def aggregate(self, command: commands.Aggregate) -> None:
        """Average updates in the background."""
        updates = self._store.take_accepted(command)
        self._averaged = sorted({*command.learners.tolist(), *command.late.learners.tolist()})

        async def work() -> None:
            began = self._loop.time()
            guarded = await asyncio.to_thread(self._store.aggregate, command.cycle, updates)
            self.handle(
                events.Aggregated(
                    at_s=self.now(),
                    cycle=command.cycle,
                    seconds=self._loop.time() - began,
                    guarded=guarded.learners,
                    guarded_cycles=guarded.cycles,
                    scales=guarded.scales,
                )
            )

        self._run_in_background(work())

    def evaluate(self, command: commands.Evaluate) -> None:
        """Evaluate the current model in the background."""

        async def work() -> None:
            began = self._loop.time()
            score = await self._score(command.cycle)
            await asyncio.to_thread(self._store.keep_checkpoint, command.cycle, score)
            self.handle(
                events.Evaluated(
                    at_s=self.now(),
                    cycle=command.cycle,
                    loss=score.loss if isfinite(score.loss) else None,
                    accuracy=score.accuracy if isfinite(score.accuracy) else None,
                    seconds=self._loop.time() - began,
                    finite=not score.samples or isfinite(score.loss),
                )
            )

        self._run_in_background(work())

    def restore(self, _: commands.Restore) -> None:
        """Return to the model before the latest average."""
        self._store.restore()

    def dismiss(self, command: commands.Dismiss) -> None:
        """Tell learners to leave, and record that they left."""
        for learner in command.learners.tolist():
            mailbox = self._mailboxes[learner]
            mailbox.leave()
            mailbox.joined, mailbox.open_work, mailbox.departure = False, None, command.reason
        event = events.LearnersLeft(
            at_s=self.now(), learners=command.learners, reason=command.reason
        )
        # After the other commands of this step.
        self._loop.call_soon(self.handle, event)

    async def _score(self, cycle: int) -> Score | CombinedScore:
        spec, store = self._spec, self._store
        if not len(spec.test):
            return await self._evaluator.evaluate(
                cycle, store.model_name, self._averaged, timeout_s=spec.task.deadline_s
            )
        return await asyncio.to_thread(spec.trainer.score, store.parameters, spec.test)

    def finish(self, command: commands.Finish) -> None:
        """End the run; all learners are told to leave."""
        self._stop_timer()
        self.finished.set_result(command)

    def _put(self, learner: int, instruction: protocol.AnyInstruction | InstructionFactory) -> None:
        self._mailboxes[learner].put(instruction)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._on_background_done)

    def _on_background_done(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, DataError):
            # An error of the user's code: the caller can save partial results.
            self.failure = error
            self.cancel(str(error))
        elif error is not None:
            self.fail(error)


HANDLERS: dict[type[commands.Command], Callable[[Orchestrator, Any], None]] = {
    commands.Benchmark: Orchestrator.benchmark,
    commands.AskBound: Orchestrator.ask_bound,
    commands.Dispatch: Orchestrator.dispatch,
    commands.Extend: Orchestrator.extend,
    commands.Prefetch: Orchestrator.prefetch,
    commands.Withdraw: Orchestrator.withdraw,
    commands.Wake: Orchestrator.wake,
    commands.Aggregate: Orchestrator.aggregate,
    commands.Evaluate: Orchestrator.evaluate,
    commands.Restore: Orchestrator.restore,
    commands.Dismiss: Orchestrator.dismiss,
    commands.Finish: Orchestrator.finish,
}
