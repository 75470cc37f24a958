"""One task of several: its orchestrator, the methods that its learners call, and its files."""

import asyncio
import shutil
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, Final

from melisma.axon import Worker
from melisma.axon.server.calls.functions import CheckCaller
from melisma.cycle import events as cycle_events
from melisma.cycle.state import Stage
from melisma.errors import DataError
from melisma.fleet.array_types import Ints
from melisma.live.orchestrator.federated_evaluator import FederatedEvaluator
from melisma.live.orchestrator.learner_authentication import check_learner
from melisma.live.orchestrator.learner_service import LearnerService, OnChange
from melisma.live.orchestrator.mailbox import Mailboxes
from melisma.live.orchestrator.orchestrator import Orchestrator
from melisma.live.orchestrator.run_store import RunStore
from melisma.live.orchestrator.session_records import restore_sessions
from melisma.live.preparation import PreparedTask
from melisma.live.run_setup import RunSetup
from melisma.live.service.learner_numbers import LearnerNumbers
from melisma.live.training import remove_empty
from melisma.runs.folder import (
    DEVICES_FOLDER,
    PICTURE_FILE,
    SHARDS_FOLDER,
    naming_kept_files,
)
from melisma.runs.progress import RunProgress
from melisma.runs.report import Report
from melisma.runs.svg import save_picture
from melisma.runs.trace import Step
from melisma.service import events

TASK_NAMES: Final = "task{}"
"""The name of a task in the calls of its learners, by its number from 1."""
LEAVING_CHECK_S: Final = 0.05
OnStep = Callable[[int, Step], object]


class TaskHost:
    """One task of a service, from its submission until it has ended.

    `on_step` is called with each step of the task, and `carried_out` when it is on disk and its
    commands have been carried out.
    """

    def __init__(
        self,
        number: int,
        prepared: PreparedTask,
        mailboxes: Mailboxes,
        on_step: OnStep,
        carried_out: OnStep,
    ) -> None:
        self.number, self.prepared, self.mailboxes = number, prepared, mailboxes
        self._on_step, self._carried_out = on_step, carried_out
        self.progress: RunProgress
        self.orchestrator: Orchestrator
        self.learners: LearnerService
        self.store: RunStore
        self._undelivered: deque[Step] = deque()
        self._delivery: asyncio.Task[None] | None = None
        self.has_left = False  # its learners know that it has ended
        self.is_withdrawn = False
        self._is_closed = False
        self._report: Report | None = None

    @property
    def name(self) -> str:
        """The name of the task in the calls of its learners."""
        return TASK_NAMES.format(self.number + 1)

    @property
    def has_begun(self) -> bool:
        """Whether the task has had a step."""
        return self.orchestrator.started

    @property
    def has_ended(self) -> bool:
        """Whether the run of the task has ended."""
        return self.orchestrator.finished.done()

    def waits_for_shares(self, cycle: int) -> bool:
        """Return whether the task waits for the shares that it requested for a cycle."""
        if not self.has_begun:
            return False
        state = self.orchestrator.state
        return state.stage is Stage.SHARING and state.cycle == cycle

    def open(
        self,
        setup: RunSetup,
        numbers: LearnerNumbers,
        on_note: Callable[[str], None],
        on_change: OnChange = lambda _mailbox, _change: None,
    ) -> None:
        """Open the files of the task; `setup` is what its run starts with."""
        spec, mailboxes = self.prepared.spec, self.mailboxes
        self._numbers, self.progress = numbers, RunProgress()
        self.store = store = self.prepared.open_store(setup)
        store.on_note = on_note
        evaluator = FederatedEvaluator(mailboxes)
        self.orchestrator = Orchestrator(spec, mailboxes, store, evaluator, self._record)
        self.learners = LearnerService(
            spec, mailboxes, store, evaluator, self.orchestrator, on_change
        )
        for step in self.prepared.earlier_steps:
            self.progress.apply(step)
        # Emulated learners are started again, and so register again.
        if self.prepared.journal is not None and self.prepared.resumed_fleet is None:
            restore_sessions(store.journal, mailboxes, alive=True)

    def earlier_steps(self) -> Iterable[Step]:
        """Yield the steps of earlier processes."""
        return self.store.journal.journal.steps()

    def resume(self) -> None:
        """Go on with the run of an earlier process, if it had begun."""
        resumption = self.prepared.resumption
        if resumption is not None:
            self.learners.resume_run(resumption)
            for mailbox in self.mailboxes:
                mailbox.called_s = mailbox.heard_s = self.orchestrator.now()

    async def begin(self, expected: Callable[[], int], patience_s: float) -> None:
        """Begin the run when the expected number of learners is ready, or with those after a time.

        At least one learner is awaited.
        """
        loop, until = asyncio.get_running_loop(), inf
        while not self.has_ended:
            self.mailboxes.became_ready.clear()
            ready, now = len(self.mailboxes.ready), loop.time()
            if ready and until == inf:
                until = now + patience_s
            if ready and (ready >= expected() or now >= until):
                self.learners.begin_run()
                return
            timeout_s = min(patience_s, max(until - now, 0.0))
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.mailboxes.became_ready.wait(), timeout_s)

    def _record(self, step: Step) -> None:
        self.progress.apply(step)
        self._on_step(self.number, step)
        self._undelivered.append(step)
        if self._delivery is None or self._delivery.done():
            self._delivery = asyncio.get_running_loop().create_task(self._deliver())

    async def _deliver(self) -> None:
        """Let the service see steps in order, when they are carried out and on disk.

        Otherwise a power cut could leave it with a payment for work that the task has forgotten.
        """
        while self._undelivered:
            count = len(self._undelivered)
            try:
                await self.store.journal.sync()
            except (OSError, DataError) as error:
                self.orchestrator.fail(error)
                return
            for _ in range(count):
                self._carried_out(self.number, self._undelivered.popleft())

    async def delivered(self) -> None:
        """Return when the service has seen all steps of the task, or the disk failed."""
        while self._delivery is not None and not self._delivery.done():
            await asyncio.wait({self._delivery})

    def expose(self, worker: Worker, check_caller: CheckCaller = check_learner) -> None:
        """Let learners call the methods of this task; `check_caller` refuses others."""
        self.learners.expose(worker, self.name, check_caller)

    def find_file(self, name: str, caller: str) -> Path | None:
        """Return the file of this task that a learner may download by this name."""
        return self.learners.find_file(name, caller)

    def to_service(self, event: events.AnyEvent) -> events.AnyEvent:
        """Return an event of this task with the numbers of learners in the service."""
        return self._numbers.translate(event)

    def to_task(self, learners: Ints) -> Ints:
        """Return the numbers in this task of learners of the service; -1 if one is unknown."""
        return self._numbers.to_task(learners)

    def handle(self, make: Callable[..., cycle_events.AnyEvent], **fields: Any) -> None:
        """Let the cycle machine of the task handle an event, at the time of its clock."""
        self.orchestrator.handle(make(at_s=self.orchestrator.now(), **fields))

    def cancel(self, reason: str) -> None:
        """End the task, and keep its results so far."""
        if not self.has_ended:
            self.orchestrator.cancel(reason)

    def suspend(self) -> None:
        """Stop serving the task; its learners call again until it goes on."""
        if not self.has_ended:
            self.mailboxes.close(resumable=True)

    async def wait_for_leaving(self, timeout_s: float) -> None:
        """Wait until all learners know that the task has ended, or for `timeout_s`."""
        until_s = self.orchestrator.now() + timeout_s
        while self.orchestrator.now() < until_s and any(  # noqa: ASYNC110 - bounded, and rare
            box.ready and not box.dismissed for box in self.mailboxes
        ):
            await asyncio.sleep(LEAVING_CHECK_S)
        self.has_left = True

    def describe_end(self) -> str:
        """Return how the closed task has ended, in one line."""
        name, report = self.prepared.task.name, self._report
        return (
            f"{name}: cancelled" if report is None else f"{name}: {report.outcome}: {report.reason}"
        )

    def withdraw(self, reason: str) -> None:
        """End a task that the service never planned; its files are of no use."""
        self.is_withdrawn = True
        if self.has_begun:
            self.cancel(reason)
        elif not self.has_ended:
            self.orchestrator.finished.cancel()

    async def close(self) -> None:
        """Wait for what goes on in the background, and release the files of the task."""
        if self._is_closed:
            return
        self._is_closed = True
        orchestrator, folder = self.orchestrator, self.prepared.folder
        finished = orchestrator.finished
        ended = finished.done() and not finished.cancelled() and finished.exception() is None
        finished.cancel()
        await orchestrator.end()
        await self.delivered()
        for name in (DEVICES_FOLDER, SHARDS_FOLDER):
            shutil.rmtree(folder / name, ignore_errors=True)
        if self.store.journal.journal.last:
            report = Report.from_trace(self.store.journal.journal.steps())
            self._report = replace(report, folder=folder)
            with naming_kept_files(folder):
                save_picture(report.plot, folder / PICTURE_FILE)
        self.store.close(ended=ended)
        remove_empty(folder)

    def report(self) -> Report:
        """Return the report of the closed task, which has had a step."""
        assert self._report is not None
        return replace(self._report, model=self.store.model)
