"""Runs several tasks on devices that this machine emulates, each of which has one turn at a time.

A device has a process for each task, as the tasks have models, data and code of their own.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import isfinite
from pathlib import Path

import msgspec

from melisma.live.emulated_learners import complete_settings
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.live.orchestrator.learner_authentication import LearnerTokens
from melisma.live.orchestrator.learner_worker import learner_worker
from melisma.live.orchestrator.mailbox import Mailboxes
from melisma.live.processes import run_processes
from melisma.live.run_setup import RunSetup
from melisma.live.service.learner_numbers import LearnerNumbers
from melisma.live.service.live_service import LiveService, ServiceWatcher, all_learners
from melisma.live.service.service_preparation import PreparedTasks
from melisma.live.service.task_host import OnStep, TaskHost
from melisma.live.training import remove_empty
from melisma.private_files import make_private_folder
from melisma.runs.folder import LOGS_FOLDER
from melisma.runs.interruption import Cancellation, run_in_thread
from melisma.runs.service_journal import ServiceJournal
from melisma.runs.service_progress import ServiceProgress, ServiceStep
from melisma.runs.service_report import ServiceReport

TURNS_FOLDER = "turns"


def run_service(
    prepared: PreparedTasks,
    port: int = 0,
    *,
    watch_task: OnStep = lambda _number, _step: None,
    watch: ServiceWatcher = lambda _step: None,
    on_note: Callable[[str], None] = lambda _note: None,
    cancellation: Cancellation | None = None,
) -> ServiceReport:
    """Run all tasks to the end or until cancelled; the watchers are called in another thread."""
    cancellation = cancellation or Cancellation()
    emulated = EmulatedService(prepared, watch_task, watch, on_note)

    def work() -> ServiceReport:
        return asyncio.run(emulated.run(port, cancellation))

    return run_in_thread(work, cancellation, "melisma-service")


class EmulatedService:
    """The tasks of a service, and a process of this machine for each device and task."""

    def __init__(
        self,
        prepared: PreparedTasks,
        watch_task: OnStep,
        watch: ServiceWatcher,
        on_note: Callable[[str], None],
    ) -> None:
        self._prepared, self._watch_task = prepared, watch_task
        self._watch, self._on_note = watch, on_note
        self._progress = ServiceProgress()
        self._service: LiveService
        self._hosts: list[TaskHost] = []

    async def run(self, port: int, cancellation: Cancellation) -> ServiceReport:
        """Run until all tasks have ended; return the report of each, with its model."""
        prepared, fleet = self._prepared, self._prepared.fleet
        journal = ServiceJournal.create(prepared.folder)
        self._service = service = LiveService(journal, self._record)
        self._open_tasks()
        try:
            async with self._learners(port):
                service.start(prepared.scheme, fleet.budget if isfinite(fleet.budget) else None)
                service.add_learners(all_learners(fleet.learners), fleet.names, fleet.price)
                for host in self._hosts:
                    service.submit(host)
                    host.orchestrator.start()
                loop = asyncio.get_running_loop()
                cancellation.on_request(
                    lambda: loop.call_soon_threadsafe(self._cancel, cancellation.reason)
                )
                try:
                    await service.wait()
                finally:
                    cancellation.on_request(lambda: None)
        finally:
            await service.close()
            shutil.rmtree(prepared.folder / TURNS_FOLDER, ignore_errors=True)
            remove_empty(prepared.folder)
        reports = tuple(host.report() for host in self._hosts)
        progress = self._progress
        return ServiceReport(
            prepared.scheme, reports, progress.rounds, progress.budget, prepared.folder
        )

    def _record(self, step: ServiceStep) -> None:
        self._progress.apply(step)
        self._watch(step)

    def _cancel(self, reason: str) -> None:
        for host in self._hosts:
            host.cancel(reason)

    def _open_tasks(self) -> None:
        for number, each in enumerate(self._prepared.tasks):
            mailboxes = Mailboxes(each.fleet.names)
            host = TaskHost(number, each, mailboxes, self._watch_task, self._service.observe)
            setup = RunSetup(
                run=each.spec.run,
                task=each.task,
                module_path=each.module_path,
                shards="",
                fleet=each.emulated,
            )
            names = each.fleet.names
            numbers = LearnerNumbers(mailboxes, names.index, names.__getitem__)
            host.open(setup, numbers, self._on_note)
            self._hosts.append(host)

    @asynccontextmanager
    async def _learners(self, port: int) -> AsyncIterator[None]:
        """Serve the learners of all tasks, and run their processes."""
        names, tasks = self._prepared.fleet.names, len(self._hosts)
        tokens = LearnerTokens(names)
        worker = learner_worker(tokens, self._find_file, len(names), port=port, max_tasks=tasks)
        for host in self._hosts:
            host.expose(worker)
        async with worker.listening() as address:
            settings = self._settings(address, tokens)
            logs, trainer = (
                self._prepared.folder / LOGS_FOLDER,
                self._hosts[0].prepared.spec.trainer,
            )
            async with run_processes(settings, logs, self._on_exit, trainer=trainer):
                watches = [
                    asyncio.create_task(host.learners.watch_silence()) for host in self._hosts
                ]
                try:
                    yield
                finally:
                    for watch in watches:
                        watch.cancel()

    def _settings(self, address: str, tokens: LearnerTokens) -> list[LearnerSettings]:
        """Return the settings of all processes, task by task."""
        turns = self._prepared.folder / TURNS_FOLDER
        make_private_folder(turns)
        settings = []
        for host, each in zip(self._hosts, self._prepared.tasks, strict=True):
            learners = complete_settings(
                each.emulated.learners, each.folder, each.task.mode, address, tokens
            )
            settings += [
                msgspec.structs.replace(item, task=host.name, turns=str(turns / str(number)))
                for number, item in enumerate(learners)
            ]
        return settings

    def _on_exit(self, process: int, reason: str) -> None:
        task, learner = divmod(process, self._prepared.fleet.learners)
        self._hosts[task].learners.remove_learner(learner, reason)

    def _find_file(self, name: str, caller: str) -> Path | None:
        task, _, rest = name.partition("/")
        for host in self._hosts:
            if host.name == task:
                return host.find_file(rest, caller)
        return None
