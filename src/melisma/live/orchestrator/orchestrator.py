"""The orchestrator: gives events to the cycle machine and carries out its commands.

Everything runs on one event loop; only averaging, evaluation and parameter files use threads. A
step is in the journal before its commands are carried out.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Coroutine
from errno import ENOSPC
from math import inf, isfinite
from typing import Any

import msgspec
import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.late_work import MAX_LATE_CYCLES
from melisma.cycle.learner import MAX_ABSENCE_S, MAX_SILENCE_S, silence_limit_s
from melisma.cycle.machine import CycleMachine
from melisma.cycle.restarts import FIRST_ATTEMPT
from melisma.cycle.state import CycleState
from melisma.cycle.trust import challenged_segment
from melisma.errors import BusyError, DataError
from melisma.learning.trainer import Score
from melisma.learning.verification.reexecution import Verdict
from melisma.live import protocol
from melisma.live.orchestrator.combined_score import CombinedScore
from melisma.live.orchestrator.federated_evaluator import FederatedEvaluator
from melisma.live.orchestrator.full_disk import PATIENCE_S, PAUSE_S
from melisma.live.orchestrator.mailbox import InstructionFactory, Mailboxes
from melisma.live.orchestrator.run_spec import RunSpec
from melisma.live.orchestrator.run_store import RunStore
from melisma.live.orchestrator.session_records import put_session
from melisma.live.orchestrator.update_verifier import UpdateVerifier
from melisma.runs.folder import FULL_DISK
from melisma.runs.recovery import RecoveredRun
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
        self.verifier: UpdateVerifier | None = None
        if spec.task.verify != "off":
            self.verifier = UpdateVerifier(spec.task, store.samples, store.shard_path)
        self._timer: asyncio.TimerHandle | None = None
        self._averaged: list[int] = []  # learners whose update is part of the latest average
        self._background: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self.finished: asyncio.Future[commands.Finish] = self._loop.create_future()
        # Also when the run ends with an error: no poll waits for its timeout.
        self.finished.add_done_callback(self._close_mailboxes)
        self.started = False
        self.failure: DataError | None = None
        self.round = 0  # of tasks that share learners: those that have begun
        # While the disk is full: the step that is not written yet, and the events since then.
        self._unwritten: Step | None = None
        self._waiting_events: deque[events.AnyEvent] = deque()
        self._give_up_at = inf

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
                shared=self._spec.shared,
                secret=secrets.token_hex(16) if self._spec.task.verify == "audit" else "",
            )
        )

    def resume(self, run: RecoveredRun, downtime_s: float) -> None:
        """Go on with a run that an earlier process began, `downtime_s` after its last step."""
        self._recover(run, downtime_s)
        self._step(events.OrchestratorRestarted(at_s=self.now(), downtime_s=downtime_s))
        if run.job is not None:
            HANDLERS[type(run.job)](self, run.job)

    def continue_run(self, run: RecoveredRun, goal: events.TaskContinued) -> None:
        """Go on after the end of a run, with a new goal and the learners that will join."""
        self._recover(run, 0.0)
        at_s = self.now()
        ends_s = None if goal.ends_s is None else at_s + goal.ends_s
        self._step(msgspec.structs.replace(goal, at_s=at_s, ends_s=ends_s))

    def _recover(self, run: RecoveredRun, downtime_s: float) -> None:
        self._machine, self.started = run.machine, True
        self._began = self._loop.time() - run.at_s - downtime_s
        if run.averaged is not None:
            self._averaged = averaged_learners(run.averaged)

    @property
    def state(self) -> CycleState:
        """The state of the cycle machine."""
        return self._machine.state

    def _ends_s(self) -> float | None:
        """Return the instant at which a run with a total time ends."""
        spec = self._spec
        if spec.task.total_s is None:
            return None
        elapsed_s = 0.0 if spec.counts_from is None else time.monotonic() - spec.counts_from
        return self.now() + spec.task.seconds_left(elapsed_s) - ENDING_S

    def cancel(self, reason: str) -> None:
        """End the run and keep its results so far."""
        if self._unwritten is not None:
            self.fail(OSError(ENOSPC, "the disk is full"))
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
        if self._unwritten is not None:
            self._waiting_events.append(event)
            return
        try:
            self._step(event)
        except Exception as error:
            self.fail(error)
            raise

    def challenged_segment(self, learner: int, cycle: int) -> int | None:
        """Return the segment that a learner has to reveal; None without a challenge."""
        return challenged_segment(self._machine.state, learner, cycle) if self.started else None

    async def end(self) -> None:
        """Wait for what goes on in the background, after the end of the run."""
        if self.verifier is not None:
            self.verifier.close()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _close_mailboxes(self, finished: "asyncio.Future[commands.Finish]") -> None:
        """End all polls; learners leave unless the disk failed, as the run can be resumed then."""
        failed = not finished.cancelled() and isinstance(finished.exception(), OSError)
        self._mailboxes.close(resumable=failed)

    async def _written(self) -> None:
        """Return when no step waits for space any more, or the run has ended."""
        while self._unwritten is not None and not self.finished.done():  # noqa: ASYNC110 - rare
            await asyncio.sleep(PAUSE_S)

    async def synced(self) -> None:
        """Return when all that was handled is on disk; `BusyError` if the run has failed."""
        await self._written()
        if self.finished.done() and (self.finished.cancelled() or self.finished.exception()):
            # Events after that were not handled: their sender has to keep what it sent.
            raise BusyError("the run of the orchestrator has failed: call again later")
        try:
            await self._store.journal.sync()
        except (OSError, DataError) as error:
            self.fail(error)
            raise BusyError("the disk of the orchestrator failed: call again later") from error

    def fail(self, error: BaseException) -> None:
        """End the run with an error."""
        if not self.finished.done():
            self.finished.set_exception(self._store.journal.explain(error))

    def _step(self, event: events.AnyEvent) -> None:
        """Let the machine decide, record the step, and carry out the commands."""
        self._record(Step(event, self._machine.handle(event)))

    def _record(self, step: Step) -> None:
        """Write a step, then carry out its commands; while the disk is full, wait for space."""
        try:
            self._store.record(step, self._machine.state)
        except OSError as error:
            if error.errno not in FULL_DISK or self._loop.time() > self._give_up_at:
                raise
            self._await_space(step)
            return
        self._unwritten, self._give_up_at = None, inf
        self._watch(step)
        for command in step.commands:
            HANDLERS[type(command)](self, command)

    def _await_space(self, step: Step) -> None:
        if self._unwritten is None:
            self._give_up_at = self._loop.time() + PATIENCE_S
            self._store.note_full_disk()
        self._unwritten = step
        self._loop.call_later(PAUSE_S, self._write_again)

    def _write_again(self) -> None:
        """Write the step that waits for space, then handle the events since then."""
        if self.finished.done() or self._unwritten is None:
            return
        try:
            self._record(self._unwritten)
            while self._waiting_events and self._unwritten is None and not self.finished.done():
                self._step(self._waiting_events.popleft())
        except Exception as error:  # noqa: BLE001 - the run raises it; a timer would only log it
            self.fail(error)

    def benchmark(self, command: commands.Benchmark) -> None:
        """Ask learners to run their benchmark."""
        next_round = self.round + 1 if self._spec.shared else 0
        for learner in command.learners.tolist():
            self._put(learner, protocol.RunBenchmark(command.seconds, next_round))

    def ask_bound(self, command: commands.AskBound) -> None:
        """Ask learners how many shards they can train."""
        for learner, held in zip(command.learners.tolist(), command.held.tolist(), strict=True):
            self._put(learner, protocol.ComputeBound(command.cycle, command.deadline_s, held))

    def request_shares(self, command: commands.RequestShares) -> None:
        """Do nothing: whoever plans for all tasks sees the step."""

    def dispatch(self, command: commands.Dispatch) -> None:
        """Send assignments to learners."""
        if self.verifier is not None:
            self.verifier.dispatch(command)
        now_s, deadline_at = self.now(), self._loop.time() + command.seconds_left
        limits_s = silence_limit_s(command.predicted_s, command.seconds_left)
        for row, learner in enumerate(command.learners.tolist()):
            mailbox = self._mailboxes[learner]
            mailbox.dispatched_s.pop(command.cycle - MAX_LATE_CYCLES - 1, None)
            mailbox.dispatched_s[command.cycle] = now_s
            # One that has not called since it was last given work has been silent since then.
            if mailbox.heard_s >= mailbox.called_s:
                mailbox.called_s = now_s
            mailbox.open_work = command.cycle, int(command.attempts[row])
            mailbox.silence_limit_s = float(limits_s[row])
            mailbox.put(self._assignment(command, row, deadline_at))

    def _assignment(
        self, command: commands.Dispatch | commands.Resend, row: int, deadline_at: float
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
            round=self.round if self._spec.shared else 0,
        )

    def extend(self, command: commands.Extend) -> None:
        """Send further shards to learners at work."""
        if self.verifier is not None:
            self.verifier.given.extend(command)
        for row, learner in enumerate(command.learners.tolist()):
            self._mailboxes[learner].open_work = command.cycle, int(command.attempts[row])
            self._put(learner, self._extension(command, row))

    def _extension(
        self, command: commands.Extend | commands.Resend, row: int, _deadline_at: float = 0.0
    ) -> InstructionFactory:
        """Return a function that creates the instruction."""
        shards, federated = command.shards[row].tolist(), self._spec.task.mode == "federated"
        return lambda: protocol.ExtendTraining(
            cycle=command.cycle,
            attempt=int(command.attempts[row]),
            passes=int(command.passes[row]),
            shards=() if federated else self._store.shard_refs(shards),
            local_shards=tuple(shards) if federated else (),
        )

    def resend(self, command: commands.Resend) -> None:
        """Send assignments and extensions again, whose instruction may be lost."""
        if self.verifier is not None:
            self.verifier.given.resend(command)
        deadline_at = self._loop.time() + command.seconds_left
        for row, learner in enumerate(command.learners.tolist()):
            attempt, mailbox = int(command.attempts[row]), self._mailboxes[learner]
            mailbox.open_work = command.cycle, attempt
            mailbox.silence_limit_s = MAX_SILENCE_S
            mailbox.dispatched_s[command.cycle] = self.state.began_s
            make = self._assignment if attempt == FIRST_ATTEMPT else self._extension
            mailbox.put(make(command, row, deadline_at))

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
        self._averaged, store = averaged_learners(command), self._store
        updates = store.take_accepted(command, self._updates_of_next())

        async def work() -> None:
            began = self._loop.time()
            verified = await self._verify(command)
            wrong = wrong_updates(verified)
            result = await asyncio.to_thread(store.aggregate, command.cycle, updates, wrong)
            # The records of this average belong to its step, and not to one before.
            await self._written()
            guarded, obsolete = result.guarded, store.conclude(result)
            self.handle(
                events.Aggregated(
                    at_s=self.now(),
                    cycle=command.cycle,
                    seconds=self._loop.time() - began,
                    model=result.version,
                    guarded=guarded.learners,
                    guarded_cycles=guarded.cycles,
                    scales=guarded.scales,
                    verified=verified,
                )
            )
            await self.synced()
            await store.clean_up(obsolete)

        self._run_in_background(work())

    async def _verify(self, command: commands.Aggregate) -> events.VerifiedUpdates:
        """Return the checks of all updates of an average."""
        if self.verifier is None:
            return events.NO_VERIFIED_UPDATES
        late, cycles = command.late, np.full(command.learners.size, command.cycle)
        assignments = [
            *zip(late.learners.tolist(), late.cycles.tolist(), late.attempts.tolist(), strict=True),
            *zip(
                command.learners.tolist(), cycles.tolist(), command.attempts.tolist(), strict=True
            ),
        ]
        challenged = {
            (learner, cycle, attempt)
            for learner, cycle, attempt in assignments
            if self.challenged_segment(learner, cycle) is not None
        }
        return await self.verifier.results(assignments, challenged)

    def challenge(self, command: commands.Challenge) -> None:
        """Do nothing: the reply to the commitment has the segment."""

    def suspect(self, command: commands.Suspect) -> None:
        """Do nothing: the report names the learners."""

    def _updates_of_next(self) -> set[tuple[int, int, int]]:
        """Return the assignments of updates that arrived since the machine decided to aggregate."""
        waiting = [it for it in self._waiting_events if isinstance(it, events.UpdatesReceived)]
        rows = [
            *((late.learners, late.cycles, late.attempts) for late in self.state.carried),
            *((it.learners, np.full(it.learners.size, it.cycle), it.attempts) for it in waiting),
        ]
        return {key for row in rows for key in zip(*(c.tolist() for c in row), strict=True)}

    def evaluate(self, command: commands.Evaluate) -> None:
        """Evaluate the current model in the background."""

        async def work() -> None:
            began = self._loop.time()
            score = await self._score(command.cycle)
            await asyncio.to_thread(self._store.keep_checkpoint, command.cycle, score)
            self._store.put_best()
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
            put_session(self._store.journal, learner, mailbox)
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


def averaged_learners(command: commands.Aggregate) -> list[int]:
    """Return the learners whose update is part of an average."""
    return sorted({*command.learners.tolist(), *command.late.learners.tolist()})


def wrong_updates(verified: events.VerifiedUpdates) -> set[tuple[int, int]]:
    """Return learner and cycle of the updates whose check failed."""
    rows = verified.verdicts == Verdict.WRONG
    return set(zip(verified.learners[rows].tolist(), verified.cycles[rows].tolist(), strict=True))


HANDLERS: dict[type[commands.Command], Callable[[Orchestrator, Any], None]] = {
    commands.Benchmark: Orchestrator.benchmark,
    commands.AskBound: Orchestrator.ask_bound,
    commands.RequestShares: Orchestrator.request_shares,
    commands.Dispatch: Orchestrator.dispatch,
    commands.Extend: Orchestrator.extend,
    commands.Resend: Orchestrator.resend,
    commands.Prefetch: Orchestrator.prefetch,
    commands.Withdraw: Orchestrator.withdraw,
    commands.Challenge: Orchestrator.challenge,
    commands.Suspect: Orchestrator.suspect,
    commands.Wake: Orchestrator.wake,
    commands.Aggregate: Orchestrator.aggregate,
    commands.Evaluate: Orchestrator.evaluate,
    commands.Restore: Orchestrator.restore,
    commands.Dismiss: Orchestrator.dismiss,
    commands.Finish: Orchestrator.finish,
}
