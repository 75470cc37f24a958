"""`melisma orchestrate` without a task: serves devices, and the tasks that its owner submits.

The folder of the service has its journal, and a run folder for each task. A service that is stopped
keeps its queue: started again with the same folder it goes on with all tasks, and devices reconnect
by themselves.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np

from melisma.backports import timeout
from melisma.errors import SettingError
from melisma.live.invitation import Invitation, OrchestrationObserver
from melisma.live.orchestrator.learner_service import LearnerChange
from melisma.live.orchestrator.learner_worker import learner_worker
from melisma.live.orchestrator.mailbox import Mailbox, Mailboxes
from melisma.live.orchestrator_settings import OrchestratorSettings
from melisma.live.preparation import PreparedTask
from melisma.live.protocol import TaskRef
from melisma.live.reception import Reception, background
from melisma.live.run_setup import Reachability, RunSetup
from melisma.live.service.learner_numbers import LearnerNumbers
from melisma.live.service.live_service import LiveService
from melisma.live.service.owner_methods import OwnerMethods
from melisma.live.service.proposals import EXPIRY_S, Proposal, submission_of
from melisma.live.service.service_folder import ServiceFolder
from melisma.live.service.service_learners import ServiceLearner, ServiceLearners
from melisma.live.service.task_host import TaskHost
from melisma.runs.interruption import Cancellation, run_in_thread
from melisma.runs.report import Report
from melisma.runs.service_progress import ServiceProgress, ServiceStep
from melisma.runs.service_report import ServiceReport
from melisma.runs.trace import Step
from melisma.service import commands, events
from melisma.service.observation import observe
from melisma.service.plan_candidates import PlanCandidate, find_candidates
from melisma.service.service_state import TaskRecord

MAX_TASKS: Final = 16
"""Tasks that can be queued or running at a time; each needs calls of every device."""
PATIENCE_S: Final = 60.0
"""Time after the first device is ready for a task in which the others are awaited."""
LEAVE_S: Final = 5.0
LEAVING_CHECK_S: Final = 0.05


def serve_tasks(
    folder: ServiceFolder,
    settings: OrchestratorSettings,
    observer: OrchestrationObserver,
    cancellation: Cancellation | None = None,
) -> ServiceReport:
    """Serve devices and tasks until cancelled; return the report of all tasks so far."""
    cancellation = cancellation or Cancellation()

    async def serve() -> ServiceReport:
        return await ServedService(folder, settings, observer).run(cancellation)

    return run_in_thread(lambda: asyncio.run(serve()), cancellation, "melisma-service")


class ServedService:
    """The parts of one service for devices that join; created on its event loop."""

    def __init__(
        self,
        folder: ServiceFolder,
        settings: OrchestratorSettings,
        observer: OrchestrationObserver,
    ) -> None:
        self.folder, self._settings, self._observer = folder, settings, observer
        self.reception = Reception(settings, observer)
        self.service = LiveService(folder.journal, self._record)
        self.learners = ServiceLearners(
            folder.run,
            self.service.now,
            self._on_registered,
            lambda _, reason: observer.on_learner(reason),
        )
        self.progress = ServiceProgress()
        self._tasks: set[asyncio.Task[None]] = set()
        self._proposals: dict[int, Proposal] = {}
        self._held: dict[int, str] = {}  # why tasks wait, as it was said last
        self._stopped = asyncio.Event()

    async def run(self, cancellation: Cancellation) -> ServiceReport:
        """Serve until cancelled, or until the service fails."""
        loop, recovered = asyncio.get_running_loop(), self.folder.recovered
        hosts = self._restore() if recovered is not None else []
        try:
            async with AsyncExitStack() as stack:
                self._create_worker(hosts)
                if recovered is None:
                    self.service.start(self.folder.scheme, self.folder.budget, is_open=True)
                else:
                    self.service.resume(recovered, hosts)
                await self._open(stack)
                for host in hosts:
                    self._attend(host)
                cancellation.on_request(lambda: loop.call_soon_threadsafe(self._stopped.set))
                self.service.failed.add_done_callback(lambda _: self._stopped.set())
                await self._stopped.wait()
                cancellation.on_request(lambda: None)
                await self._dismiss_learners()
            if self.service.failed.done():
                self.service.failed.result()
        finally:
            proposed = [proposal.host for proposal in self._proposals.values()]
            for host in proposed:
                self.withdraw(host.number, "the service ends")
            for host in self.service.hosts.values():
                host.suspend()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for host in proposed:
                await self._discard(host)
            await self.service.close()
        return self._report()

    async def _dismiss_learners(self) -> None:
        """Let devices go if there is nothing left to do; others call again later."""
        self.reception.close()
        if self.live:
            return
        self.learners.end()
        try:
            async with timeout(LEAVE_S):
                while not self.learners.all_dismissed:  # noqa: ASYNC110 - bounded, and rare
                    await asyncio.sleep(LEAVING_CHECK_S)
        except TimeoutError:
            return

    def _report(self) -> ServiceReport:
        found = {record.number: self.report(record.number) for record in self.records}
        known = {number: report for number, report in found.items() if report is not None}
        return ServiceReport(
            self.folder.scheme,
            tuple(known.values()),
            self.progress.rounds,
            self.folder.budget,
            self.folder.path,
            tuple(self.progress.paid[number] for number in known),
        )

    @property
    def records(self) -> list[TaskRecord]:
        """All tasks that were ever submitted."""
        return list(self.service.machine.state.tasks.values())

    @property
    def live(self) -> list[TaskRecord]:
        """The tasks that have not ended."""
        return self.service.machine.state.live

    def report(self, number: int) -> Report | None:
        """Return the report of a task so far; None before its first step."""
        return self.folder.report(number)

    def _create_worker(self, hosts: Iterable[TaskHost]) -> None:
        """Create the worker for devices and the owner; nothing listens yet."""
        reception, settings = self.reception, self._settings
        authenticator = reception.prepare(chain.from_iterable(host.mailboxes for host in hosts))
        self._worker = worker = learner_worker(
            authenticator,
            self._find_file,
            settings.max_learners,
            host=settings.host,
            port=settings.port,
            tls=reception.identity,
            on_refused=reception.on_refused,
            max_tasks=MAX_TASKS,
        )
        self.learners.expose(worker)
        OwnerMethods(self).expose(worker)
        for host in hosts:
            host.expose(worker, self.learners.require_known)

    async def _open(self, stack: AsyncExitStack) -> None:
        """Start to listen, and invite devices."""
        reception, start = self.reception, self._settings.start
        joined, left_out = await reception.open(stack, self._worker, self.folder.run)
        self.folder.save_port(joined.port)
        invitation = Invitation(joined, left_out, reception.fingerprint, start, None)
        await reception.invite(stack, invitation)

    def _find_file(self, name: str, caller: str) -> Path | None:
        task, _, rest = name.partition("/")
        for host in self._hosts:
            if host.name == task:
                return host.find_file(rest, caller)
        return None

    @property
    def _hosts(self) -> list[TaskHost]:
        """All tasks that devices may know, those that are not confirmed included."""
        return [*self.service.hosts.values(), *(each.host for each in self._proposals.values())]

    def _restore(self) -> list[TaskHost]:
        """Open the tasks of an earlier process that have not ended."""
        assert self.folder.recovered is not None
        self.progress = self.folder.recovered.progress
        state = self.folder.recovered.machine.state
        for name, price in zip(state.names, state.price.tolist(), strict=True):
            self.learners.add(name).price = price
        hosts = []
        for record in self.folder.recovered.machine.state.live:
            host = self._create_host(record.number, self.folder.resume_task(record.number))
            hosts.append(host)
        return hosts

    async def propose(self, path: str) -> tuple[int, list[PlanCandidate]]:
        """Load the task of a file, and let devices measure it; return its number and candidates.

        Without devices there are no candidates. Raises an error if the task cannot be added.
        """
        if len(self.live) + len(self._proposals) >= MAX_TASKS:
            raise SettingError(
                f"{len(self.live)} tasks are queued or running, the most that this service takes: "
                "wait until one has ended, or cancel one"
            )
        number = self.folder.reserve_number()
        prepared = await asyncio.to_thread(
            self.folder.prepare_task, number, Path(path), [record.task for record in self.live]
        )
        host = self._create_host(number, prepared)
        host.expose(self._worker, self.learners.require_known)
        self._proposals[number] = proposal = Proposal(host)
        self._attend(host)
        self._start(self._expire(proposal))
        if not self.learners.present or not await proposal.wait():
            return number, []
        submission = submission_of(proposal, self.service.machine.state)
        assert submission is not None
        return number, await asyncio.to_thread(find_candidates, submission)

    async def _expire(self, proposal: Proposal) -> None:
        await asyncio.sleep(EXPIRY_S)
        self.withdraw(proposal.host.number, "it was not confirmed in time")

    def confirm(self, number: int) -> TaskHost:
        """Let the service plan a proposed task; raises an error if there is none."""
        proposal = self._proposals.get(number)
        if proposal is None or proposal.host.has_ended:
            raise SettingError("this task was withdrawn, or has failed: submit it again")
        self.service.submit(proposal.host, proposal.request, proposal.observed_before)
        del self._proposals[number]
        return proposal.host

    def withdraw(self, number: int, reason: str) -> None:
        """End a proposed task, unless it was confirmed."""
        proposal = self._proposals.pop(number, None)
        if proposal is not None:
            proposal.host.withdraw(reason)

    def _observe(self, number: int, step: Step) -> None:
        """Tell the service what a step of a task means, once the task is confirmed."""
        proposal = self._proposals.get(number)
        if proposal is None:
            self.service.observe(number, step)
            return
        for event in observe(number, step.event, step.commands):
            proposal.observed += 1
            if isinstance(event, events.SharesRequested):
                translated = proposal.host.to_service(event)
                assert isinstance(translated, events.SharesRequested)
                proposal.set_request(translated)

    def _create_host(self, number: int, prepared: PreparedTask) -> TaskHost:
        mailboxes = Mailboxes(max_learners=self._settings.max_learners)
        host = TaskHost(number, prepared, mailboxes, self._on_step, self._observe)
        setup = RunSetup(
            run=prepared.spec.run,
            task=prepared.task,
            module_path=prepared.module_path,
            shards="",
            reachability=Reachability.of(self._settings),
        )

        def on_change(mailbox: Mailbox, change: LearnerChange) -> None:
            self._on_change(prepared.task.name, mailbox, change)

        numbers = LearnerNumbers(mailboxes, self.learners.number, self.learners.name)
        host.open(setup, numbers, self._observer.on_note, on_change)
        return host

    def _attend(self, host: TaskHost) -> None:
        """Offer a task to the devices, and do what it needs until it has ended."""
        self._start(self._follow(host))
        self._list_tasks()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, host: TaskHost) -> None:
        """Do what a task needs; an error ends that task alone."""
        try:
            await self._follow_to_end(host)
        except Exception as error:  # noqa: BLE001 - the task fails with it
            host.orchestrator.fail(error)
            self._observer.on_note(f"{host.prepared.task.name} has failed: {error}")

    async def _follow_to_end(self, host: TaskHost) -> None:
        async with self._watching(host):
            if not host.has_begun:
                await host.begin(lambda: len(self.learners.present), PATIENCE_S)
            await asyncio.wait({host.orchestrator.finished})
        await host.delivered()
        await host.wait_for_leaving(LEAVE_S)
        self._list_tasks()
        if host.is_withdrawn:
            await self._discard(host)
        else:
            await host.close()
            self._observer.say(host.describe_end())
            # Its data and its methods are needed no more.
            del self.service.hosts[host.number]
        self._worker.functions.remove(host.name)

    async def _discard(self, host: TaskHost) -> None:
        """Delete what a task has left that its owner did not confirm."""
        self._proposals.pop(host.number, None)
        await host.close()
        shutil.rmtree(host.prepared.folder, ignore_errors=True)

    @asynccontextmanager
    async def _watching(self, host: TaskHost) -> AsyncIterator[None]:
        remove = host.learners.remove_learner
        async with (
            background(host.learners.watch_silence()),
            background(self.reception.watch_revocations(host.mailboxes, remove)),
        ):
            yield

    def _list_tasks(self) -> None:
        self.learners.list(
            TaskRef(host.name, host.prepared.task.name, host.prepared.spec.run)
            for host in self._hosts
            if not host.has_left
        )

    def _on_registered(self, learner: ServiceLearner, is_new: bool) -> None:
        if learner.fingerprint is not None:
            self.reception.registry.record_host(learner.fingerprint, learner.host)
        self._observer.on_learner(f"{learner.name}: registered from {learner.host}")
        if not is_new:
            return
        self.service.add_learners(
            np.array([learner.number]), [learner.name], np.array([learner.price])
        )

    def _on_change(self, task: str, mailbox: Mailbox, change: LearnerChange) -> None:
        if change == "copied":
            self._observer.on_note(mailbox.conflict)
        elif change == "left" and mailbox.departure:
            self._observer.on_learner(f"{task}: {mailbox.departure}")
        elif change == "ready":
            self._observer.on_learner(f"{task}: {mailbox.name} is ready")

    def _on_step(self, number: int, step: Step) -> None:
        host = self.service.hosts.get(number)
        if host is not None:
            self._observer.watch_task(number, host.progress, step)

    def _record(self, step: ServiceStep) -> None:
        self.progress.apply(step)
        for command in step.commands:
            if isinstance(command, commands.GrantShares):
                self._held.pop(command.number, None)
            if not isinstance(command, commands.HoldTask):
                continue
            if self._held.get(command.number) != command.reason:
                self._held[command.number] = command.reason
                name = self.service.machine.state.tasks[command.number].task.name
                self._observer.say(f"{name} waits{self._until(command)}: {command.reason}")

    def _until(self, command: commands.HoldTask) -> str:
        """Return until when a task waits, as local time."""
        if command.until_s is None:
            return " for devices"
        left_s = command.until_s - self.service.now()
        until = datetime.now().astimezone() + timedelta(seconds=max(left_s, 0.0))
        return f" until {until:%H:%M:%S} at the latest"
