"""One task of several: its orchestrator, the methods that its learners call, and its files."""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from melisma.axon import Worker
from melisma.cycle import events
from melisma.live.orchestrator.federated_evaluator import FederatedEvaluator
from melisma.live.orchestrator.learner_service import LearnerService, OnChange
from melisma.live.orchestrator.mailbox import Mailboxes
from melisma.live.orchestrator.orchestrator import Orchestrator
from melisma.live.orchestrator.run_store import RunStore
from melisma.live.preparation import PreparedTask
from melisma.live.run_setup import RunSetup
from melisma.live.training import remove_empty
from melisma.runs.folder import (
    DEVICES_FOLDER,
    PICTURE_FILE,
    SHARDS_FOLDER,
    naming_kept_files,
)
from melisma.runs.report import Report
from melisma.runs.svg import save_picture
from melisma.runs.trace import Step

TASK_NAMES: Final = "task{}"
"""The name of a task in the calls of its learners, by its number from 1."""
OnStep = Callable[[int, Step], object]


class TaskHost:
    """One task of a service, from its start until it has ended.

    `on_step` is called with each step of the task, and `carried_out` when its commands have been
    carried out.
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
        self.orchestrator: Orchestrator
        self.learners: LearnerService
        self._store: RunStore

    @property
    def name(self) -> str:
        """The name of the task in the calls of its learners."""
        return TASK_NAMES.format(self.number + 1)

    @property
    def has_ended(self) -> bool:
        """Whether the run of the task has ended."""
        return self.orchestrator.finished.done()

    def open(
        self,
        setup: RunSetup,
        on_note: Callable[[str], None],
        on_change: OnChange = lambda _mailbox, _change: None,
    ) -> None:
        """Open the files of the task; `setup` is what its run starts with."""
        spec, mailboxes = self.prepared.spec, self.mailboxes
        self._store = store = self.prepared.open_store(setup)
        store.on_note = on_note
        evaluator = FederatedEvaluator(mailboxes)
        self.orchestrator = Orchestrator(spec, mailboxes, store, evaluator, self._record)
        self.learners = LearnerService(
            spec, mailboxes, store, evaluator, self.orchestrator, on_change
        )

    def _record(self, step: Step) -> None:
        self._on_step(self.number, step)
        # The orchestrator carries out the commands of the step before the loop goes on.
        asyncio.get_running_loop().call_soon(self._carried_out, self.number, step)

    def expose(self, worker: Worker) -> None:
        """Let learners call the methods of this task."""
        self.learners.expose(worker, self.name)

    def find_file(self, name: str, caller: str) -> Path | None:
        """Return the file of this task that a learner may download by this name."""
        return self.learners.find_file(name, caller)

    def handle(
        self, make: Callable[..., events.AnyEvent], round_number: int, **fields: Any
    ) -> None:
        """Let the cycle machine of the task handle an event, at the time of its clock."""
        self.orchestrator.round = round_number
        self.orchestrator.handle(make(at_s=self.orchestrator.now(), **fields))

    def cancel(self, reason: str) -> None:
        """End the task, and keep its results so far."""
        if not self.has_ended:
            self.orchestrator.cancel(reason)

    async def close(self) -> None:
        """Wait for what goes on in the background, and release the files of the task."""
        orchestrator, folder = self.orchestrator, self.prepared.folder
        ended = self.has_ended and not orchestrator.finished.cancelled()
        ended = ended and orchestrator.finished.exception() is None
        orchestrator.finished.cancel()
        await orchestrator.end()
        for name in (DEVICES_FOLDER, SHARDS_FOLDER):
            shutil.rmtree(folder / name, ignore_errors=True)
        self._report = Report.from_trace(self._store.journal.journal.steps())
        self._store.close(ended=ended)
        remove_empty(folder)

    def report(self) -> Report:
        """Return the report of the closed task, and save its picture."""
        folder = self.prepared.folder
        with naming_kept_files(folder):
            report = replace(self._report, folder=folder, model=self._store.model)
            save_picture(report.plot, folder / PICTURE_FILE)
        return report
