"""A service machine fed with events written by hand, whose rounds are planned at once."""

from typing import Any

import numpy as np

from melisma.fleet.task import Task, TaskSizes
from melisma.service import commands, events
from melisma.service.round_planning import plan_round
from melisma.service.service_machine import ServiceMachine
from melisma.testing import make_task

LEARNERS = 6
PRICE = np.array([1.0, 0.5, 1.5, 1.0, 0.7, 1.2])


def task(name: str, shards: int = 12, **settings: Any) -> Task:
    sizes = TaskSizes(samples=shards * 10)
    return make_task(**({"name": name, "scheme": "med", "sizes": sizes} | settings))


class ScriptedService:
    """Feeds a `ServiceMachine` and plans its rounds; `trace` keeps events and commands."""

    def __init__(self, scheme: str = "med", budget: float | None = None) -> None:
        self.machine = ServiceMachine()
        self.trace: list[tuple[events.AnyEvent, list[commands.AnyCommand]]] = []
        self.send(events.ServiceStarted(at_s=0.0, scheme=scheme, budget=budget))
        names = tuple(f"device-{number}" for number in range(LEARNERS))
        self.send(
            events.LearnersPriced(at_s=0.0, learners=np.arange(LEARNERS), names=names, price=PRICE)
        )

    def send(self, event: events.AnyEvent) -> list[commands.AnyCommand]:
        """Send an event; return the commands that are not plans, those after planning, too."""
        issued = self.machine.handle(event)
        self.trace.append((event, issued))
        result: list[commands.AnyCommand] = []
        for command in issued:
            if isinstance(command, commands.PlanRound):
                result += self.send(plan_round(command, event.at_s, repeatable=True))
            else:
                result.append(command)
        return result

    def queue(self, at_s: float, number: int, task: Task) -> list[commands.AnyCommand]:
        return self.send(events.TaskQueued(at_s=at_s, number=number, task=task))

    def request(
        self, at_s: float, number: int, cycle: int = 1, learners: int = LEARNERS, speed: float = 1.0
    ) -> list[commands.AnyCommand]:
        train_s = (0.1 + 0.05 * np.arange(learners)) / speed
        costs = np.stack([train_s, np.full(learners, 0.05), np.full(learners, 0.4)])
        return self.send(
            events.SharesRequested(
                at_s=at_s, number=number, cycle=cycle, learners=np.arange(learners), costs=costs
            )
        )

    def end_cycle(self, at_s: float, number: int) -> list[commands.AnyCommand]:
        return self.send(events.CycleEnded(at_s=at_s, number=number))

    def end(self, at_s: float, number: int) -> list[commands.AnyCommand]:
        return self.send(events.TaskEnded(at_s=at_s, number=number, outcome="finished"))


def grants(issued: list[commands.AnyCommand]) -> dict[int, commands.GrantShares]:
    return {each.number: each for each in issued if isinstance(each, commands.GrantShares)}
