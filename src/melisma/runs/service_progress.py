"""The progress of a service, folded from its steps: its rounds, and the tasks that had to wait."""

from dataclasses import dataclass, field, replace

import msgspec

from melisma.runs.trace import StepCodec
from melisma.service import commands, events


class ServiceStep(msgspec.Struct, frozen=True, eq=False):
    """An event of the service, and the commands that its machine returned for it."""

    event: events.AnyEvent
    commands: list[commands.AnyCommand]


SERVICE_STEPS = StepCodec(ServiceStep)


@dataclass(frozen=True)
class Round:
    """One round: when its tasks began, by name with the seconds of their plan, and its cost.

    `cost` is the price of all planned shards. `held` are the tasks that had to wait, and why.
    """

    number: int
    began_s: float
    planned_s: dict[str, float] = field(default_factory=dict)
    cost: float = 0.0
    held: dict[str, str] = field(default_factory=dict)

    @property
    def expected_s(self) -> float:
        """The sum of the planned seconds of its tasks, which `med` minimizes."""
        return sum(self.planned_s.values())


class ServiceProgress:
    """The rounds so far; call `apply` with each step of the service."""

    def __init__(self) -> None:
        self.scheme = ""
        self.budget: float | None = None
        self.paid: dict[int, float] = {}  # by the number of the task
        self._names: dict[int, str] = {}
        self._rounds: dict[int, Round] = {}

    @property
    def rounds(self) -> tuple[Round, ...]:
        """The rounds in which a task began a cycle or had to wait."""
        return tuple(self._rounds.values())

    def apply(self, step: ServiceStep) -> None:
        """Record a step."""
        event = step.event
        if isinstance(event, events.ServiceStarted):
            self.scheme, self.budget = event.scheme, event.budget
        elif isinstance(event, events.TaskQueued):
            self._names[event.number], self.paid[event.number] = event.task.name, 0.0
        for command in step.commands:
            if isinstance(command, commands.Pay):
                self.paid[command.number] += float(command.amounts.sum())
            if isinstance(command, commands.GrantShares):
                this = self._round(command.round, event.at_s)
                planned_s = this.planned_s | {self._names[command.number]: command.planned_s}
                changed = replace(this, planned_s=planned_s, cost=command.cost)
                self._rounds[command.round] = changed
            elif isinstance(command, commands.HoldTask):
                this = self._round(command.round, event.at_s)
                held = this.held | {self._names[command.number]: command.reason}
                self._rounds[command.round] = replace(this, held=held)

    def _round(self, number: int, at_s: float) -> Round:
        return self._rounds.get(number) or Round(number, at_s)
