"""The service in virtual time: its decisions, and a driver for each of its tasks."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from melisma.allocation.schemes import get_scheme
from melisma.cycle import events as cycle_events
from melisma.cycle.state import Stage
from melisma.errors import MelismaError
from melisma.fleet.array_types import Ints
from melisma.runs.interruption import interruptible
from melisma.runs.service_progress import ServiceStep
from melisma.runs.service_recovery import missed_events
from melisma.runs.trace import Step
from melisma.service import commands, events
from melisma.service.observation import observe
from melisma.service.round_planning import plan_round
from melisma.service.service_machine import ServiceMachine
from melisma.simulation.compute.compute import ComputeBackend
from melisma.simulation.driver import HANGS, Driver
from melisma.simulation.faults import Fault
from melisma.simulation.network import OrchestratorDownError
from melisma.simulation.scenario import Scenario
from melisma.simulation.service.service_process import ServiceProcess
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
        self._process = self._make_process(scenarios[0].faults)
        self.drivers = [
            self._make_driver(number, scenario, compute)
            for number, (scenario, compute) in enumerate(zip(scenarios, computes, strict=True))
        ]
        share_learners(self.drivers, self._fleet, self._scheme, self._rounds)
        self._presence.is_down = lambda: self.is_down
        self._tasks, self._submits_s = [scenario.task for scenario in scenarios], submits_s
        self._wakes = self._granted = 0
        self._planned: deque[events.AnyEvent] = deque()
        self._observed: deque[events.AnyEvent] = deque()
        self._is_recovering = False

    def _make_process(self, faults: Sequence[Fault]) -> ServiceProcess | None:
        """Return the process of the orchestrator, if a fault can stop it."""
        stops = [fault for fault in faults if fault.of_orchestrator]
        return ServiceProcess(stops, self._around, self._restart) if stops else None

    def _make_driver(self, number: int, scenario: Scenario, compute: ComputeBackend) -> Driver:
        watch = partial(self._observe, number)
        part = None if self._process is None else self._process.add_task(watch)
        return Driver(scenario, compute, watch, self._around, part)

    @property
    def is_down(self) -> bool:
        """Whether a fault has stopped the orchestrator."""
        return self._process is not None and self._process.is_down

    def run(self) -> None:
        """Run until all tasks have ended."""
        budget = self._fleet.budget if isfinite(self._fleet.budget) else None
        with suppress(OrchestratorDownError):
            self._handle(events.ServiceStarted(at_s=0.0, scheme=self._scheme.name, budget=budget))
            self._report_priced(np.flatnonzero(self._around.churn.present))
        for number, at_s in enumerate(self._submits_s):
            self.queue.schedule(at_s, partial(self._submit, number))
        with interruptible() as check:
            while self.is_down or any(driver.finished is None for driver in self.drivers):
                check()
                if not isfinite(self.queue.next_s):
                    raise MelismaError(HANGS)
                with suppress(OrchestratorDownError):
                    self.queue.step()
                if self._has_ended:
                    # What the last steps mean may stop the process once more.
                    with suppress(OrchestratorDownError):
                        self._handle_observed()

    @property
    def _has_ended(self) -> bool:
        return all(driver.finished is not None for driver in self.drivers)

    def close(self) -> None:
        """Release the journals, if there are any."""
        if self._process is not None:
            self._process.close()

    def cancel(self, reason: str) -> None:
        """Cancel all tasks that have not ended."""
        if self.is_down:
            self._restart()
        for driver, submit_s in zip(self.drivers, self._submits_s, strict=True):
            if driver.finished is None and self.queue.now_s >= submit_s:
                driver.cancel(reason)
        self._handle_observed()

    def _submit(self, number: int) -> None:
        now_s, downtime = self.queue.now_s, self._around.network.downtime
        if downtime is not None:
            self.queue.schedule(downtime.to_s, partial(self._submit, number))
            return
        self._handle(events.TaskQueued(at_s=now_s, number=number, task=self._tasks[number]))
        self._presence.drivers.append(self.drivers[number])
        self.drivers[number].begin()

    def _restart(self) -> None:
        """Go on with the service and its tasks from their journals."""
        process = self._process
        assert process is not None
        self._wakes += 1  # Its timers ended with the process.
        self._observed.clear()
        self._planned.clear()
        service, self._is_recovering = process.recover(), True
        self.machine = service.machine
        begun = [n for n in self.machine.state.tasks if self.drivers[n].finished is None]
        runs = {number: self.drivers[number].recover() for number in begun}
        self._is_recovering = False
        for number in self.machine.state.tasks:
            steps = process.steps_of(number)
            self._observed += missed_events(number, steps, service.handled[number])
        grants = {
            number: (each, self._grants_of(number)) for number, each in service.grants.items()
        }
        self._handle_observed()
        self._report_priced(np.flatnonzero(self._around.churn.present))
        for command in service.pending:
            if not isinstance(command, commands.PlanRound) or self.machine.state.planning:
                HANDLERS[type(command)](self, command)
        self._handle_planned()
        for number, run in runs.items():
            self.drivers[number].resume_run(run)
        for number, (grant, count) in grants.items():
            if self._awaits(number, grant) and self._grants_of(number) == count:
                self.grant_shares(grant)

    def _grants_of(self, number: int) -> int:
        """Return how many cycles a task was granted."""
        return self.machine.state.tasks[number].cycles

    def _awaits(self, number: int, grant: commands.GrantShares) -> bool:
        """Return whether a task has not handled a grant."""
        state, record = self.drivers[number].state, self.machine.state.tasks[number]
        is_waiting = state.stage is Stage.SHARING and state.cycle == grant.cycle
        return record.in_cycle and is_waiting

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
        if self._is_recovering:
            return
        self._observed += observe(number, step.event, step.commands)
        self.queue.schedule(self.queue.now_s, self._handle_observed)

    def _handle_observed(self) -> None:
        """Handle what the steps of tasks mean, also after the last task has ended."""
        while self._observed and not self.is_down:
            self._handle(self._observed.popleft())

    def _handle(self, event: events.AnyEvent) -> None:
        """Handle an event, and the results of the plans that follow from it."""
        if self.is_down:
            return  # Its successor learns it from the journals of the tasks.
        self._planned.append(event)
        self._handle_planned()

    def _handle_planned(self) -> None:
        while self._planned:
            event = self._planned.popleft()
            issued = self.machine.handle(event)
            self._record(ServiceStep(event, issued))
            for command in issued:
                HANDLERS[type(command)](self, command)

    def _record(self, step: ServiceStep) -> None:
        """Write a step to the journal, if there is one; the process may stop right after it."""
        if self._process is not None:
            self._process.write(step)
        self._watch(step)
        if self._process is not None:
            self._process.stop_if_due()

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
        stops = 0 if self._process is None else self._process.stops

        def send() -> None:
            if self._process is None or self._process.stops == stops:
                self.drivers[number].handle(event)

        self.queue.schedule(self.queue.now_s, send)

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
