"""The service in virtual time: its decisions, and a driver for each of its tasks."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from melisma.allocation.schemes import get_scheme
from melisma.cycle import events as cycle_events
from melisma.errors import MelismaError
from melisma.fleet.array_types import Ints
from melisma.runs.interruption import interruptible
from melisma.runs.service_progress import ServiceStep
from melisma.runs.trace import Step
from melisma.service import commands, events
from melisma.service.observation import observe
from melisma.service.round_planning import plan_round
from melisma.service.service_machine import ServiceMachine
from melisma.simulation.compute.compute import ComputeBackend
from melisma.simulation.driver import HANGS, Driver
from melisma.simulation.scenario import Scenario
from melisma.simulation.service.shared_learners import Rounds, SharedPresence, share_learners
from melisma.simulation.surroundings import Surroundings

TaskWatcher = Callable[[int, Step], object]
ServiceWatcher = Callable[[ServiceStep], object]


class ServiceDriver:
    """Runs the tasks of these scenarios on one fleet, each from its instant of `submits_s` on.

    `watch_task` is called with every step of a task, and `watch` with those of the service.
    """

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        computes: Sequence[ComputeBackend],
        submits_s: Sequence[float],
        watch_task: TaskWatcher,
        watch: ServiceWatcher,
    ) -> None:
        self._fleet, self._scheme = scenarios[0].fleet, get_scheme(scenarios[0].task.scheme)
        self._watch, self._watch_task = watch, watch_task
        self.machine, self._rounds = ServiceMachine(), Rounds(self._fleet)
        self._presence = SharedPresence(self._report_priced)
        self._around = _surroundings(scenarios, self._presence)
        self.queue = self._around.queue
        self.drivers = [
            Driver(scenario, compute, partial(self._observe, number), self._around)
            for number, (scenario, compute) in enumerate(zip(scenarios, computes, strict=True))
        ]
        share_learners(self.drivers, self._fleet, self._scheme, self._rounds)
        self._tasks, self._submits_s = [scenario.task for scenario in scenarios], submits_s
        self._wakes = self._granted = 0
        self._planned: deque[events.AnyEvent] = deque()

    def run(self) -> None:
        """Run until all tasks have ended."""
        budget = self._fleet.budget if isfinite(self._fleet.budget) else None
        self._handle(events.ServiceStarted(at_s=0.0, scheme=self._scheme.name, budget=budget))
        self._report_priced(np.flatnonzero(self._around.churn.present))
        for number, at_s in enumerate(self._submits_s):
            self.queue.schedule(at_s, partial(self._submit, number))
        with interruptible() as check:
            while any(driver.finished is None for driver in self.drivers):
                check()
                if not isfinite(self.queue.next_s):
                    raise MelismaError(HANGS)
                self.queue.step()

    def cancel(self, reason: str) -> None:
        """Cancel all tasks that have not ended."""
        for driver, submit_s in zip(self.drivers, self._submits_s, strict=True):
            if driver.finished is None and self.queue.now_s >= submit_s:
                driver.cancel(reason)

    def _submit(self, number: int) -> None:
        now_s = self.queue.now_s
        self._handle(events.TaskQueued(at_s=now_s, number=number, task=self._tasks[number]))
        self._presence.drivers.append(self.drivers[number])
        self.drivers[number].begin()

    def _report_priced(self, learners: Ints) -> None:
        names, price = self._fleet.names, self._fleet.price[learners]
        self._handle(
            events.LearnersPriced(
                at_s=self.queue.now_s,
                learners=learners,
                names=tuple(names[learner] for learner in learners.tolist()),
                price=price,
            )
        )

    def _observe(self, number: int, step: Step) -> None:
        """Tell the service what a step of a task means, after the step is carried out."""
        self._watch_task(number, step)
        for event in observe(number, step.event, step.commands):
            self.queue.schedule(self.queue.now_s, partial(self._handle, event))

    def _handle(self, event: events.AnyEvent) -> None:
        """Handle an event, and the results of the plans that follow from it."""
        self._planned.append(event)
        while self._planned:
            event = self._planned.popleft()
            issued = self.machine.handle(event)
            self._watch(ServiceStep(event, issued))
            for command in issued:
                HANDLERS[type(command)](self, command)

    def plan_round(self, command: commands.PlanRound) -> None:
        """Plan at once: planning takes no virtual time."""
        self._planned.append(plan_round(command, self.queue.now_s, repeatable=True))

    def grant_shares(self, command: commands.GrantShares) -> None:
        """Let a task begin its cycle; all tasks of a round begin at the same time."""
        if command.round != self._granted:
            self._granted = command.round
            self._rounds.number += 1
        self._send(
            command.number,
            cycle_events.SharesGranted(
                at_s=self.queue.now_s, learners=command.learners, shards=command.shards
            ),
        )

    def refuse_shares(self, command: commands.RefuseShares) -> None:
        """Tell a task that there is no plan for it."""
        event = cycle_events.SharesRefused(
            at_s=self.queue.now_s, reason=command.reason, final=command.final
        )
        self._send(command.number, event)

    def _send(self, number: int, event: Any) -> None:
        driver = self.drivers[number]
        self.queue.schedule(self.queue.now_s, partial(driver.handle, event))

    def hold_task(self, command: commands.HoldTask) -> None:
        """Do nothing: the reason is in the report."""

    def pay(self, command: commands.Pay) -> None:
        """Do nothing: the payment is in the record."""

    def release_shares(self, command: commands.ReleaseShares) -> None:
        """Do nothing: the release is in the record."""

    def wake(self, command: commands.Wake) -> None:
        """Set the timer; it replaces the previous one."""
        self._wakes += 1
        nth = self._wakes

        def fire() -> None:
            if nth == self._wakes:
                self._handle(events.TimeReached(at_s=self.queue.now_s))

        self.queue.schedule(command.at_s, fire)


def _surroundings(scenarios: Sequence[Scenario], presence: SharedPresence) -> Surroundings:
    """Return the surroundings of all tasks, which notice absences for the shortest deadline."""
    shortest = min(scenarios, key=lambda scenario: scenario.task.deadline_s)
    until_s = sum(scenario.horizon_s for scenario in scenarios)
    return Surroundings(replace(shortest, until_s=until_s), presence)


HANDLERS: dict[type[commands.Command], Callable[[ServiceDriver, Any], None]] = {
    commands.PlanRound: ServiceDriver.plan_round,
    commands.GrantShares: ServiceDriver.grant_shares,
    commands.RefuseShares: ServiceDriver.refuse_shares,
    commands.HoldTask: ServiceDriver.hold_task,
    commands.Pay: ServiceDriver.pay,
    commands.ReleaseShares: ServiceDriver.release_shares,
    commands.Wake: ServiceDriver.wake,
}
