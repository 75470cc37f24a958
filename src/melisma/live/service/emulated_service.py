"""Runs several tasks on devices that this machine emulates, each of which has one turn at a time.

A device has a process for each task, as the tasks have models, data and code of their own.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np

from melisma.live.emulated_learners import complete_settings
from melisma.live.learner.learner_settings import LearnerSettings
from melisma.live.orchestrator.learner_authentication import LearnerTokens
from melisma.live.orchestrator.learner_worker import learner_worker
from melisma.live.orchestrator.mailbox import Mailboxes
from melisma.live.processes import run_processes
from melisma.live.run_setup import RunSetup
from melisma.live.service.learner_numbers import LearnerNumbers
from melisma.live.service.live_service import LiveService, ServiceWatcher
from melisma.live.service.service_folder import read_report
from melisma.live.service.service_preparation import PreparedTasks
from melisma.live.service.task_host import OnStep, TaskHost
from melisma.live.training import remove_empty, wait_until_back
from melisma.private_files import make_private_folder
from melisma.runs.folder import LOGS_FOLDER, task_folder
from melisma.runs.interruption import Cancellation, run_in_thread
from melisma.runs.report import Report
from melisma.runs.service_journal import ServiceJournal
from melisma.runs.service_progress import ServiceProgress, ServiceStep
from melisma.runs.service_recovery import RecoveredService
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
        prepared, loop = self._prepared, asyncio.get_running_loop()
        earlier = prepared.earlier
        journal = ServiceJournal.create(prepared.folder) if earlier is None else earlier.journal
        self._service = service = LiveService(journal, self._record)
        self._open_tasks()
        try:
            async with self._learners(port):
                if earlier is None:
                    self._start()
                else:
                    await self._resume(earlier.recovered, cancellation)
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
        return self._report()

    def _start(self) -> None:
        service, prepared = self._service, self._prepared
        service.start(prepared.scheme, prepared.budget)
        names = prepared.names
        service.add_learners(np.arange(len(names)), names, prepared.price)
        for host in self._hosts:
            service.submit(host)
            host.orchestrator.start()

    async def _resume(self, recovered: RecoveredService, cancellation: Cancellation) -> None:
        """Go on once all processes are back, or have failed; meanwhile nobody trained."""
        self._progress = recovered.progress
        for host in self._hosts:
            await wait_until_back(host.mailboxes, cancellation)
        self._service.resume(recovered, self._hosts)
        for host in self._hosts:
            if not host.has_begun:
                host.orchestrator.start()

    def _report(self) -> ServiceReport:
        """Return the reports of all tasks, those that an earlier process ended included."""
        prepared, progress, reports = self._prepared, self._progress, dict[int, Report]()
        hosts = {host.number: host for host in self._hosts}
        for number, record in self._service.machine.state.tasks.items():
            if number in hosts:
                reports[number] = hosts[number].report()
                continue
            ended = read_report(prepared.folder / task_folder(number, record.task.name))
            reports |= {} if ended is None else {number: ended}
        return ServiceReport(
            prepared.scheme,
            tuple(reports.values()),
            progress.rounds,
            progress.budget,
            prepared.folder,
            tuple(progress.paid[number] for number in reports),
        )

    def _record(self, step: ServiceStep) -> None:
        self._progress.apply(step)
        self._watch(step)

    def _cancel(self, reason: str) -> None:
        for host in self._hosts:
            host.cancel(reason)

    def _open_tasks(self) -> None:
        names = self._prepared.names
        for number, each in self._prepared.tasks.items():
            mailboxes = Mailboxes(names)
            host = TaskHost(number, each, mailboxes, self._watch_task, self._service.observe)
            setup = RunSetup(
                run=each.spec.run,
                task=each.task,
                module_path=each.module_path,
                shards="",
                fleet=each.emulated,
            )
            numbers = LearnerNumbers(mailboxes, names.index, names.__getitem__)
            host.open(setup, numbers, self._on_note)
            self._hosts.append(host)

    @asynccontextmanager
    async def _learners(self, port: int) -> AsyncIterator[None]:
        """Serve the learners of all tasks, and run their processes."""
        names, tasks = self._prepared.names, len(self._hosts)
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
        for host in self._hosts:
            each = host.prepared
            learners = complete_settings(
                each.emulated.learners, each.folder, each.task.mode, address, tokens
            )
            settings += [
                msgspec.structs.replace(item, task=host.name, turns=str(turns / str(number)))
                for number, item in enumerate(learners)
            ]
        return settings

    def _on_exit(self, process: int, reason: str) -> None:
        task, learner = divmod(process, len(self._prepared.names))
        self._hosts[task].learners.remove_learner(learner, reason)

    def _find_file(self, name: str, caller: str) -> Path | None:
        task, _, rest = name.partition("/")
        for host in self._hosts:
            if host.name == task:
                return host.find_file(rest, caller)
        return None
