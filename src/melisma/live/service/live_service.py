"""The service on the wall clock: its decisions, and an orchestrator for each of its tasks.

A step is in the journal before its commands are carried out, and on disk before a task begins a
cycle because of it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from melisma.cycle import events as cycle_events
from melisma.fleet.array_types import Floats, Ints
from melisma.live.service.task_host import TaskHost
from melisma.runs.service_journal import ServiceJournal
from melisma.runs.service_progress import ServiceStep
from melisma.runs.service_recovery import RecoveredService, missed_events
from melisma.runs.trace import Step
from melisma.service import commands, events
from melisma.service.observation import observe
from melisma.service.round_planning import plan_round
from melisma.service.service_machine import ServiceMachine

ServiceWatcher = Callable[[ServiceStep], object]


class LiveService:
    """Carries out the decisions of several tasks; created on the event loop that runs them.

    `watch` is called with each of its steps. An error of the service itself is the exception of
    `failed`; one of a task ends only that task.
    """

    def __init__(self, journal: ServiceJournal, watch: ServiceWatcher) -> None:
        self._journal, self._watch, self.machine = journal, watch, ServiceMachine()
        self.hosts: dict[int, TaskHost] = {}
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._granted_round = self._rounds = 0  # the latest one, and how many were granted
        self._task_ended = asyncio.Event()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.failed.add_done_callback(lambda _: self._task_ended.set())

    def now(self) -> float:
        """Return the seconds since this service started, those of earlier processes included."""
        return self._loop.time() - self._began

    def start(self, scheme: str, budget: float | None, *, is_open: bool = False) -> None:
        """Start to plan by a scheme, within a budget for each round."""
        self._handle(
            events.ServiceStarted(at_s=self.now(), scheme=scheme, budget=budget, is_open=is_open)
        )

    def resume(self, recovered: RecoveredService, hosts: Sequence[TaskHost]) -> None:
        """Go on with the service of an earlier process, and with its open tasks."""
        self.machine = recovered.machine
        self._began = self._loop.time() - recovered.at_s
        self._rounds = self._granted_round = self.machine.state.round
        grants = {
            number: (grant, self._cycles_of(number)) for number, grant in recovered.grants.items()
        }
        for host in hosts:
            self._follow(host)
            for event in missed_events(
                host.number, host.earlier_steps(), recovered.handled[host.number]
            ):
                self._handle(host.to_service(event).at(self.now()))
        for host in hosts:
            host.resume()
        for command in recovered.pending:
            HANDLERS[type(command)](self, command)
        for number, (grant, cycles) in grants.items():
            host_of = self.hosts.get(number)
            is_latest = self._cycles_of(number) == cycles
            if host_of is not None and is_latest and host_of.waits_for_shares(grant.cycle):
                self.grant_shares(grant)

    def _cycles_of(self, number: int) -> int:
        """Return how many cycles a task was granted."""
        return self.machine.state.tasks[number].cycles

    def add_learners(self, learners: Ints, names: Sequence[str], price: Floats) -> None:
        """Record that learners joined, or have another price."""
        self._handle(
            events.LearnersPriced(
                at_s=self.now(), learners=learners, names=tuple(names), price=price
            )
        )

    def submit(
        self, host: TaskHost, request: events.SharesRequested | None = None, observed: int = 0
    ) -> None:
        """Add an open task; raises `SettingError` if it cannot be added.

        `request` are the shares that it requests now, after `observed` earlier events.
        """
        event = events.TaskQueued(
            at_s=self.now(), number=host.number, task=host.prepared.task, observed=observed
        )
        self._step(event)
        self._follow(host)
        if request is not None:
            self._handle(request.at(self.now()))

    def _follow(self, host: TaskHost) -> None:
        self.hosts[host.number] = host
        host.orchestrator.round = self._rounds
        host.orchestrator.finished.add_done_callback(lambda _: self._on_ended(host))

    def _on_ended(self, host: TaskHost) -> None:
        """Go on without a task that has ended, also if it has no step that says so."""
        self._task_ended.set()
        ended = host.orchestrator.finished
        if not ended.cancelled() and ended.exception() is not None:
            self._run_in_background(self._report_failed(host))

    async def _report_failed(self, host: TaskHost) -> None:
        """Record that a task has failed, after all of its steps."""
        await host.delivered()
        event = events.TaskEnded(at_s=self.now(), number=host.number, outcome="failed")
        self._handle(event)

    async def wait(self) -> None:
        """Return when all tasks have ended; raise the error of the service if it fails."""
        while not all(host.has_ended for host in self.hosts.values()):
            self._task_ended.clear()
            await self._task_ended.wait()
            if self.failed.done():
                self.failed.result()

    async def synced(self) -> None:
        """Return when all steps of the service so far are on disk."""
        await asyncio.to_thread(self._journal.sync)

    def observe(self, number: int, step: Step) -> None:
        """Record what a step of a task means, after its commands have been carried out."""
        host = self.hosts.get(number)
        if host is None:
            return
        for event in observe(number, step.event, step.commands):
            # Each task has a clock and numbers of learners of its own.
            self._handle(host.to_service(event).at(self.now()))

    def cancel(self, number: int, reason: str) -> None:
        """End a task, also before its first step."""
        host = self.hosts[number]
        if host.has_begun:
            host.cancel(reason)
            return
        host.orchestrator.finished.cancel()
        # It waits for learners.
        host.mailboxes.became_ready.set()
        self._handle(events.TaskEnded(at_s=self.now(), number=number, outcome="cancelled"))

    def _handle(self, event: events.AnyEvent) -> None:
        if self.failed.done():
            return
        try:
            self._step(event)
        except Exception as error:  # noqa: BLE001 - raised by `wait`
            self.failed.set_exception(error)

    def _step(self, event: events.AnyEvent) -> None:
        step = ServiceStep(event, self.machine.handle(event))
        self._journal.write(step)
        self._watch(step)
        for command in step.commands:
            HANDLERS[type(command)](self, command)

    def plan_round(self, command: commands.PlanRound) -> None:
        """Plan in a thread; the search ends in time."""

        async def plan() -> None:
            at_s = self.now()
            result = await asyncio.to_thread(plan_round, command, at_s, repeatable=False)
            self._handle(result.at(self.now()))

        self._run_in_background(plan())

    def grant_shares(self, command: commands.GrantShares) -> None:
        """Let a task begin its cycle; all tasks of a round begin at the same time."""
        if command.round != self._granted_round:
            self._granted_round = command.round
            self._rounds += 1
            for each in self.hosts.values():
                each.orchestrator.round = self._rounds
        host = self.hosts[command.number]

        async def grant() -> None:
            await asyncio.to_thread(self._journal.sync)
            granted = host.to_task(command.learners)
            here = granted >= 0
            # An error ends the task alone, which then has failed.
            with suppress(Exception):
                host.handle(
                    cycle_events.SharesGranted,
                    learners=granted[here],
                    shards=command.shards[here],
                )

        self._run_in_background(grant())

    def refuse_shares(self, command: commands.RefuseShares) -> None:
        """Tell a task that there is no plan for it."""
        host = self.hosts[command.number]
        # After this step, as the task answers at once.
        self._loop.call_soon(
            lambda: host.handle(
                cycle_events.SharesRefused, reason=command.reason, final=command.final
            )
        )

    def hold_task(self, command: commands.HoldTask) -> None:
        """Do nothing: whoever watches says why a task waits."""

    def pay(self, command: commands.Pay) -> None:
        """Do nothing: the journal has the payments."""

    def release_shares(self, command: commands.ReleaseShares) -> None:
        """Do nothing: the release is in the journal."""

    def wake(self, command: commands.Wake) -> None:
        """Set the timer; it replaces the previous one."""
        if self._timer is not None:
            self._timer.cancel()
        event = events.TimeReached(at_s=command.at_s)
        at = self._began + command.at_s
        # A timer may fire a moment early.
        self._timer = self._loop.call_at(
            at, lambda: self._handle(event.at(max(command.at_s, self.now())))
        )

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._on_background_done)

    def _on_background_done(self, task: "asyncio.Task[None]") -> None:
        self._background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)

    async def close(self) -> None:
        """Stop to plan, and release the files of all tasks and of the service."""
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        try:
            for host in self.hosts.values():
                await host.delivered()
            await asyncio.gather(*self._background, return_exceptions=True)
            for host in self.hosts.values():
                await host.close()
        finally:
            self.failed.cancel()
            self._journal.close()


HANDLERS: dict[type[commands.Command], Callable[[LiveService, Any], None]] = {
    commands.PlanRound: LiveService.plan_round,
    commands.GrantShares: LiveService.grant_shares,
    commands.RefuseShares: LiveService.refuse_shares,
    commands.HoldTask: LiveService.hold_task,
    commands.Pay: LiveService.pay,
    commands.ReleaseShares: LiveService.release_shares,
    commands.Wake: LiveService.wake,
}
