"""Recovery of a service: its state from its journal, and what it has to do again.

Replaying the events of the journal restores the machine; the commands are compared with those that
were journaled. The tasks have journals of their own, and the process may have stopped between a
step of a task and the step of the service that follows from it, in either direction:

- Events that a task's steps mean for the service, and that it has not handled, are handled now
  (`missed_events`). So a payment that was due is made, and one that was made is not repeated.
- A grant that a task has not handled, as it still waits for shares, is sent again
  (`RecoveredService.grants`).

A plan or a timer that was under way is `pending`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from melisma.errors import DataError
from melisma.runs.service_journal import ServiceJournal
from melisma.runs.service_progress import SERVICE_STEPS, ServiceProgress, ServiceStep
from melisma.runs.trace import Step
from melisma.service import commands, events
from melisma.service.observation import observe
from melisma.service.service_machine import ServiceMachine

OBSERVED: Final = (
    events.SharesRequested,
    events.CycleEnded,
    events.CycleAveraged,
    events.TaskEnded,
)
"""Events that follow from the steps of a task."""


@dataclass
class RecoveredService:
    """The machine of a service as its last step left it.

    `handled` counts the events of each task that followed from its steps; `at_s` is the latest
    time of a step.
    """

    machine: ServiceMachine = field(default_factory=ServiceMachine)
    progress: ServiceProgress = field(default_factory=ServiceProgress)
    handled: Counter[int] = field(default_factory=Counter)
    at_s: float = 0.0
    _plan: commands.PlanRound | None = None
    _wake: commands.Wake | None = None
    _grants: dict[int, commands.GrantShares] = field(default_factory=dict)

    @classmethod
    def from_journal(cls, journal: ServiceJournal) -> "RecoveredService":
        """Replay a journal; raise `DataError` if it is damaged."""
        journal.check_ledger()
        return cls().replay(journal.steps())

    def replay(self, steps: Iterable[ServiceStep]) -> "RecoveredService":
        """Let the machine handle the events of these steps again."""
        for step in steps:
            issued = self.machine.handle(step.event)
            if SERVICE_STEPS.encode(ServiceStep(step.event, issued)) != SERVICE_STEPS.encode(step):
                raise DataError(
                    f"this version of Melisma decides differently after {step.event} than the one "
                    "that wrote the journal; go on with the service in that version"
                )
            self._apply(step)
        return self

    def _apply(self, step: ServiceStep) -> None:
        self.progress.apply(step)
        self.at_s = max(self.at_s, float(step.event.at_s))
        if isinstance(step.event, events.TaskQueued):
            self.handled[step.event.number] += step.event.observed
        if isinstance(step.event, OBSERVED):
            self.handled[step.event.number] += 1
        for command in step.commands:
            if isinstance(command, commands.PlanRound):
                self._plan = command
            elif isinstance(command, commands.Wake):
                self._wake = command
            elif isinstance(command, commands.GrantShares):
                self._grants[command.number] = command

    @property
    def pending(self) -> list[commands.AnyCommand]:
        """The plan that was under way, and the timer that was set."""
        state, found = self.machine.state, list[commands.AnyCommand]()
        if self._plan is not None and state.planning == self._plan.numbers:
            found.append(self._plan)
        if self._wake is not None and state.boundary.waits_until_s == self._wake.at_s:
            found.append(self._wake)
        return found

    @property
    def grants(self) -> dict[int, commands.GrantShares]:
        """The grant of each task that is in a cycle, by number.

        Send it again to a task that still waits for shares, and to no other.
        """
        tasks = self.machine.state.tasks
        return {number: each for number, each in self._grants.items() if tasks[number].in_cycle}


def missed_events(number: int, steps: Iterable[Step], handled: int) -> list[events.AnyEvent]:
    """Return what all steps of a task mean for the service, after the first `handled` events."""
    observed = (event for step in steps for event in observe(number, step.event, step.commands))
    return [event for index, event in enumerate(observed) if index >= handled]
