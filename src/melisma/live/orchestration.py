"""`orchestrate`: runs a task on devices that join over the network, and returns the report.

Devices call this machine, always with TLS, and are known by their certificates. They may join and
leave at any time.
"""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from melisma.backports import timeout
from melisma.cycle import events
from melisma.cycle.restarts import MAX_RECONNECT_S
from melisma.fleet.arguments import check_arguments
from melisma.fleet.run_settings import RunSettings
from melisma.fleet.tables import Port, PositiveInt
from melisma.fleet.task import Task
from melisma.learning.given_objects import GivenObjects
from melisma.live.invitation import Invitation, OrchestrationObserver
from melisma.live.orchestrator.federated_evaluator import FederatedEvaluator
from melisma.live.orchestrator.learner_service import LearnerChange, LearnerService
from melisma.live.orchestrator.lobby import StartCondition
from melisma.live.orchestrator.mailbox import Mailbox, Mailboxes
from melisma.live.orchestrator.orchestrator import Orchestrator, Watcher
from melisma.live.orchestrator.run_journal import RunJournal
from melisma.live.orchestrator.run_store import RunStore
from melisma.live.orchestrator.session_records import restore_sessions
from melisma.live.orchestrator.status_service import StatusService
from melisma.live.orchestrator_settings import (
    DEFAULT_PORT,
    MAX_LEARNERS,
    Decide,
    OrchestratorSettings,
)
from melisma.live.preparation import PreparedTask
from melisma.live.reception import Reception, background
from melisma.live.resume_preparation import prepare_or_resume
from melisma.live.run_setup import SETUP, Reachability, RunSetup
from melisma.live.training import remove_empty
from melisma.runs.cycle_result import OnCycle, check_callback, follow_cycles
from melisma.runs.folder import PICTURE_FILE, SHARDS_FOLDER, naming_kept_files
from melisma.runs.interruption import CallerThread, Cancellation, run_in_thread
from melisma.runs.report import Report
from melisma.runs.svg import save_picture
from melisma.runs.trace import Step
from melisma.text import format_speed

LEAVE_S: Final = 5.0
"""Time in which learners ask for the last time, to be told that the run has ended."""
DISMISSAL_CHECK_S: Final = 0.05
ABSENCE_CHECK_S: Final = 0.5
# Of `orchestrate`, as far as no other check covers them.
ARGUMENT_TYPES = {
    "scheme": str | None,
    "host": str,
    "port": Port,
    "once": bool,
    "max_learners": PositiveInt,
    "name": str,
    "discovery": bool,
}


def orchestrate(  # noqa: PLR0913 - each is a setting of its own
    task: Task | str | Path,
    *,
    model: Any = None,
    data: Any = None,
    learners: int | None = None,
    until_ready: float | str | None = None,
    scheme: str | None = None,
    deadline_s: float | None = None,
    total_s: float | None = None,
    finish_by: str | None = None,
    start: str | Path | None = None,
    aggregation: str | None = None,
    folder: str | Path | None = None,
    host: str = "",
    port: int = DEFAULT_PORT,
    approve: Decide | None = None,
    once: bool = False,
    max_learners: int = MAX_LEARNERS,
    name: str = "",
    discovery: bool = True,
    say: Callable[[str], None] = print,
    on_cycle: OnCycle | None = None,
) -> Report:
    """Train a task on devices that join over the network, by ``melisma join STRING``.

    The run begins when `learners` are ready, or with at least one after `until_ready`, which is a
    number of seconds or a local time such as ``"23:00"``; devices may join and leave until its end.
    `host` is one address of this machine to listen on, instead of all. `approve` decides about a
    device by its name, fingerprint and host; with `once` the join string is valid for one new
    device. `name` is announced in the local network, by default that of this machine, if
    `discovery` is on. `say` receives the join string, the score of each cycle and further lines for
    the owner. The rest is as in `train`; devices that join with ``--trust-code`` run the source of
    a `model` that is given. Ctrl-C ends the run and keeps its results so far; before the run it
    raises `KeyboardInterrupt`. If `folder` is that of an earlier run of the task, that run goes on.
    """
    check_arguments("orchestrate", ARGUMENT_TYPES, locals())
    check_callback(on_cycle)
    settings = OrchestratorSettings(
        start=StartCondition(learners, until_ready),
        host=host,
        port=port,
        approve=approve,
        once=once,
        max_learners=max_learners,
        name=name,
        discovery=discovery,
    )
    run_settings = RunSettings(deadline_s, total_s, finish_by, start, aggregation)
    objects = GivenObjects(model, data)
    prepared = prepare_or_resume(task, scheme, folder, run_settings, objects)

    def watch(step: Step) -> None:
        if isinstance(step.event, events.Evaluated):
            say(_score_line(step.event, prepared.task))

    observer = OrchestrationObserver(say, watch)
    report = run_orchestrator(prepared, settings, observer, on_cycle=on_cycle)
    say(f"{report.outcome}: {report.reason}; the results are in {report.folder}")
    return report.require_success()


def _score_line(event: events.Evaluated, task: Task) -> str:
    """Return the score of a cycle, as far as it is known."""
    accuracy = "" if event.accuracy is None else f"accuracy {event.accuracy:.1%}, "
    score = "not evaluated" if event.loss is None else f"{accuracy}loss {event.loss:.4g}"
    return f"{task.describe_cycle(event.cycle)}: {score}"


def run_orchestrator(
    prepared: PreparedTask,
    settings: OrchestratorSettings,
    observer: OrchestrationObserver,
    cancellation: Cancellation | None = None,
    on_cycle: OnCycle | None = None,
) -> Report:
    """Run to the end or until cancelled; a second Ctrl-C does not wait for the report.

    Raises `KeyboardInterrupt` if it is cancelled before the run begins.
    """
    cancellation = cancellation or Cancellation()
    caller = CallerThread(cancellation)
    follow = follow_cycles(on_cycle, caller.call, prepared.earlier_steps)

    def work() -> Report | None:
        orchestration = _Orchestration(prepared, settings, observer, follow)
        with naming_kept_files(prepared.folder):
            report = asyncio.run(orchestration.run(cancellation))
        if report is not None:
            save_picture(report.plot, prepared.folder / PICTURE_FILE)
            if orchestration.failure is not None:
                report.require_success(orchestration.failure)
        return report

    report = run_in_thread(work, cancellation, "melisma-orchestrator", caller)
    if report is None:
        raise KeyboardInterrupt
    return report


class _Orchestration:
    """The parts of one orchestrator that serves other devices."""

    def __init__(
        self,
        prepared: PreparedTask,
        settings: OrchestratorSettings,
        observer: OrchestrationObserver,
        follow: Watcher,
    ) -> None:
        self._follow = follow
        self._prepared, self._settings, self._observer = prepared, settings, observer
        self._reception = Reception(settings, observer)
        self._mailboxes = Mailboxes(max_learners=settings.max_learners)
        self._mailboxes.on_fetch = observer.on_fetch
        self._orchestrator: Orchestrator
        self._store: RunStore
        self._service: LearnerService
        self._status: StatusService

    async def run(self, cancellation: Cancellation) -> Report | None:
        """Serve devices until the run has ended; None if it was cancelled before it began."""
        folder, report, ended = self._prepared.folder, None, False
        store = self._prepared.open_store(self._setup())
        store.on_note = self._observer.on_note
        try:
            self._create_services(store)
            async with AsyncExitStack() as stack:
                await self._serve(stack)
                await self._wait_for_end(cancellation)
                self._reception.close()
                await self._dismiss_learners()
            ended = True
            await self._orchestrator.end()
            if store.journal.journal.last:
                report = replace(Report.from_trace(store.journal.journal.steps()), folder=folder)
        finally:
            if hasattr(self, "_orchestrator"):
                # After this, no event is handled or recorded.
                self._orchestrator.finished.cancel()
            # Before the trace is exported, which needs space.
            shutil.rmtree(folder / SHARDS_FOLDER, ignore_errors=True)
            store.close(ended=ended)
            remove_empty(folder)
        return None if report is None else replace(report, model=store.model)

    def _setup(self) -> RunSetup:
        prepared = self._prepared
        return RunSetup(
            run=prepared.spec.run,
            task=prepared.task,
            module_path=prepared.module_path,
            shards="",
            reachability=Reachability.of(self._settings),
        )

    @property
    def failure(self) -> Exception | None:
        """The error of the user's code that ended the run."""
        return self._orchestrator.failure

    def _create_services(self, store: RunStore) -> None:
        spec, mailboxes = self._prepared.spec, self._mailboxes
        evaluator = FederatedEvaluator(mailboxes)
        self._orchestrator = Orchestrator(spec, mailboxes, store, evaluator, self._record)
        self._service = LearnerService(
            spec, mailboxes, store, evaluator, self._orchestrator, self._on_change
        )
        start, now = self._settings.start, self._orchestrator.now
        self._status = StatusService(spec, mailboxes, start, now)
        for step in self._prepared.earlier_steps:
            self._status.apply(step)
        self._store = store
        if self._prepared.journal is not None:
            self._restore(store.journal)

    def _restore(self, journal: RunJournal) -> None:
        """Go on with the learners of an earlier process; those of an ended run register again."""
        resumption = self._prepared.resumption
        goes_on = resumption is None or resumption.goal is None
        # Learners try again after pauses that are no longer than the time they waited.
        downtime_s = min(journal.downtime_s(), MAX_RECONNECT_S)
        restore_sessions(journal, self._mailboxes, alive=goes_on)
        if resumption is not None and goes_on:
            self._service.resume_run(resumption)
        for mailbox in self._mailboxes:
            mailbox.called_s = mailbox.heard_s = self._orchestrator.now() + downtime_s

    def _record(self, step: Step) -> None:
        self._status.apply(step)
        self._observer.watch(step)
        self._follow(step)

    async def _serve(self, stack: AsyncExitStack) -> None:
        """Start to serve devices, and invite them."""
        reception, settings = self._reception, self._settings
        authenticator = reception.prepare(self._mailboxes)
        worker = self._service.worker(
            authenticator,
            host=settings.host,
            port=settings.port,
            tls=reception.identity,
            on_refused=reception.on_refused,
        )
        self._status.expose(worker)
        run = self._prepared.spec.run
        joined, left_out = await reception.open(stack, worker, run)
        self._save_port(joined.port)
        invitation = Invitation(
            joined,
            left_out,
            reception.fingerprint,
            settings.start,
            self._prepared.task,
            goes_on=self._orchestrator.started,
        )
        await reception.invite(stack, invitation)
        watches = (
            self._service.watch_silence(),
            reception.watch_revocations(self._mailboxes, self._service.remove_learner),
            self._watch_absence(),
        )
        for watch in watches:
            await stack.enter_async_context(background(watch))

    def _save_port(self, port: int) -> None:
        """Save the port at which learners expect the orchestrator after a restart."""
        setup = RunSetup.read(self._store.journal.journal)
        assert setup.reachability is not None
        reachability = msgspec.structs.replace(setup.reachability, port=port)
        setup = msgspec.structs.replace(setup, reachability=reachability)
        self._store.journal.put(SETUP, setup.encode())
        self._store.journal.flush()

    async def _wait_for_end(self, cancellation: Cancellation) -> None:
        """Wait for learners, then for the end of the run; or until the owner cancels."""
        loop, orchestrator = asyncio.get_running_loop(), self._orchestrator
        lobby = loop.create_task(self._wait_for_learners())

        def cancel() -> None:
            if orchestrator.started:
                orchestrator.cancel(cancellation.reason)
            else:
                lobby.cancel()
                orchestrator.finished.cancel()

        cancellation.on_request(lambda: loop.call_soon_threadsafe(cancel))
        with suppress(asyncio.CancelledError):
            await lobby
        if not lobby.cancelled():
            if not orchestrator.started:
                self._begin()
            await orchestrator.finished
        cancellation.on_request(lambda: None)

    async def _wait_for_learners(self) -> None:
        """Wait until the run can begin, or go on after its end."""
        if not self._orchestrator.started:
            await self._settings.start.wait(self._mailboxes)

    def _begin(self) -> None:
        resumption = self._prepared.resumption
        if resumption is None:
            self._service.begin_run()
        else:
            self._service.resume_run(resumption)

    async def _dismiss_learners(self) -> None:
        """Wait until all learners have been told that the run has ended, or `LEAVE_S`."""
        with suppress(TimeoutError):
            async with timeout(LEAVE_S):
                while any(box.ready and not box.dismissed for box in self._mailboxes):  # noqa: ASYNC110 - bounded, and rare
                    await asyncio.sleep(DISMISSAL_CHECK_S)

    async def _watch_absence(self) -> None:
        """Say when no learner answers, and until when the run waits for one, until cancelled."""
        orchestrator, before_s = self._orchestrator, None
        while True:
            await asyncio.sleep(ABSENCE_CHECK_S)
            if not orchestrator.started or orchestrator.finished.done():
                continue
            now_s = orchestrator.now()
            until_s = self._mailboxes.awaited_until_s(now_s)
            if until_s is not None and before_s is None:
                until = datetime.now().astimezone() + timedelta(seconds=until_s - now_s)
                note = f"no learner answers; the run waits for one until {until:%H:%M:%S}"
                self._observer.on_note(note)
            elif until_s is None and before_s is not None and now_s < before_s:
                self._observer.on_note("a learner answers again")
            before_s = until_s

    def _on_change(self, mailbox: Mailbox, change: LearnerChange) -> None:
        """Record and say what a learner does."""
        if change == "copied":
            self._observer.on_note(mailbox.conflict)
            return
        if change == "registered" and mailbox.fingerprint is not None:
            self._reception.registry.record_host(mailbox.fingerprint, mailbox.host)
        speed = mailbox.samples_per_s
        rate = f", {format_speed(speed)}" if speed is not None else ""
        lines = {
            "registered": f"{mailbox.name}: registered from {mailbox.host}",
            "ready": f"{mailbox.name}: ready{rate}{self._count_ready()}",
            "left": mailbox.departure,
        }
        self._observer.on_learner(lines[change])

    def _count_ready(self) -> str:
        """Return how many learners are ready of those that the run waits for, if it does."""
        expected = self._settings.start.learners
        if expected is None or self._orchestrator.started:
            return ""
        return f"; {len(self._mailboxes.ready)} of {expected}"
