"""The service on the wall clock: its decisions, and an orchestrator for each of its tasks."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np

from melisma.cycle import events as cycle_events
from melisma.fleet.array_types import Floats, Ints
from melisma.live.service.task_host import TaskHost
from melisma.runs.service_progress import ServiceStep
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

    def __init__(self, watch: ServiceWatcher) -> None:
        self._watch, self.machine = watch, ServiceMachine()
        self.hosts: dict[int, TaskHost] = {}
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._planning: set[asyncio.Task[None]] = set()
        self._granted_round = self._cycle_round = 0
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._task_ended = asyncio.Event()
        self.failed.add_done_callback(lambda _: self._task_ended.set())

    def now(self) -> float:
        """Return the seconds since this service was created."""
        return self._loop.time() - self._began

    def start(self, scheme: str, budget: float | None) -> None:
        """Start to plan by a scheme, within a budget for each round."""
        self._handle(events.ServiceStarted(at_s=self.now(), scheme=scheme, budget=budget))

    def add_learners(self, learners: Ints, names: Sequence[str], price: Floats) -> None:
        """Record that learners joined, or have another price."""
        self._handle(
            events.LearnersPriced(
                at_s=self.now(), learners=learners, names=tuple(names), price=price
            )
        )

    def submit(self, host: TaskHost) -> None:
        """Add an open task, and begin with it as soon as there are learners."""
        self.hosts[host.number] = host
        task = host.prepared.task
        self._handle(events.TaskQueued(at_s=self.now(), number=host.number, task=task))
        host.orchestrator.finished.add_done_callback(lambda _: self._on_ended(host))
        host.orchestrator.start()

    def _on_ended(self, host: TaskHost) -> None:
        """Go on without a task that has ended, also if it has no step that says so."""
        self._task_ended.set()
        ended = host.orchestrator.finished
        if not ended.cancelled() and ended.exception() is not None:
            event = events.TaskEnded(at_s=self.now(), number=host.number, outcome="failed")
            self._handle(event)

    async def wait(self) -> None:
        """Return when all tasks have ended; raise the error of the service if it fails."""
        while not all(host.has_ended for host in self.hosts.values()):
            self._task_ended.clear()
            await self._task_ended.wait()
            if self.failed.done():
                self.failed.result()

    def observe(self, number: int, step: Step) -> None:
        """Record what a step of a task means, after its commands have been carried out."""
        for event in observe(number, step.event, step.commands):
            # Each task has a clock of its own.
            self._handle(event.at(self.now()))

    def _handle(self, event: events.AnyEvent) -> None:
        if self.failed.done():
            return
        try:
            issued = self.machine.handle(event)
            self._watch(ServiceStep(event, issued))
            for command in issued:
                HANDLERS[type(command)](self, command)
        except Exception as error:  # noqa: BLE001 - raised by `wait`
            self.failed.set_exception(error)

    def plan_round(self, command: commands.PlanRound) -> None:
        """Plan in a thread; the search ends in time."""

        async def plan() -> None:
            at_s = self.now()
            result = await asyncio.to_thread(plan_round, command, at_s, repeatable=False)
            self._handle(result.at(self.now()))

        self._run_in_background(plan())

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._planning.add(task)
        task.add_done_callback(self._on_planned)

    def _on_planned(self, task: "asyncio.Task[None]") -> None:
        self._planning.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_exception(error)

    def grant_shares(self, command: commands.GrantShares) -> None:
        """Let a task begin its cycle; all tasks of a round begin at the same time."""
        if command.round != self._granted_round:
            self._granted_round = command.round
            self._cycle_round += 1
        host = self.hosts[command.number]
        host.handle(
            cycle_events.SharesGranted,
            self._cycle_round,
            learners=command.learners,
            shards=command.shards,
        )

    def refuse_shares(self, command: commands.RefuseShares) -> None:
        """Tell a task that there is no plan for it."""
        host = self.hosts[command.number]
        host.handle(cycle_events.SharesRefused, self._cycle_round, reason=command.reason)

    def hold_task(self, command: commands.HoldTask) -> None:
        """Do nothing: whoever watches says why a task waits."""

    def wake(self, command: commands.Wake) -> None:
        """Set the timer; it replaces the previous one."""
        if self._timer is not None:
            self._timer.cancel()
        event = events.TimeReached(at_s=command.at_s)
        at = self._began + command.at_s
        self._timer = self._loop.call_at(at, lambda: self._handle(event.at(self.now())))

    async def close(self) -> None:
        """Stop to plan, and release the files of all tasks."""
        if self._timer is not None:
            self._timer.cancel()
        self.failed.cancel()
        for host in self.hosts.values():
            await host.close()
        await asyncio.gather(*self._planning, return_exceptions=True)


def all_learners(count: int) -> Ints:
    """Return the numbers of this many learners."""
    return np.arange(count, dtype=np.int64)


HANDLERS: dict[type[commands.Command], Callable[[LiveService, Any], None]] = {
    commands.PlanRound: LiveService.plan_round,
    commands.GrantShares: LiveService.grant_shares,
    commands.RefuseShares: LiveService.refuse_shares,
    commands.HoldTask: LiveService.hold_task,
    commands.Wake: LiveService.wake,
}
