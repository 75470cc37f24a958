"""A service machine fed with events written by hand, whose rounds are planned at once."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from melisma.cycle.commands import CoveredWork
from melisma.fleet.array_types import Floats
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

    def __init__(
        self, scheme: str = "med", budget: float | None = None, price: Floats = PRICE
    ) -> None:
        self.machine = ServiceMachine()
        self.trace: list[tuple[events.AnyEvent, list[commands.AnyCommand]]] = []
        self.send(events.ServiceStarted(at_s=0.0, scheme=scheme, budget=budget))
        names = tuple(f"device-{number}" for number in range(LEARNERS))
        self.send(
            events.LearnersPriced(at_s=0.0, learners=np.arange(LEARNERS), names=names, price=price)
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

    def end_cycle(
        self,
        at_s: float,
        number: int,
        trained: Callable[[int, int], int] = lambda _, shards: shards,
        awaited: Sequence[int] = (),
    ) -> list[commands.AnyCommand]:
        """End a cycle: learners `awaited` are late, others train `trained(learner, shards)`."""
        record = self.machine.state.tasks[number]
        work = {
            learner: trained(learner, grant.shards)
            for (cycle, learner), grant in record.account.grants.items()
            if cycle == record.cycle and learner not in awaited
        }
        covered = CoveredWork(
            learners=np.array(list(work), np.int64),
            cycles=np.full(len(work), record.cycle),
            shards=np.array(list(work.values()), np.int64),
            awaited=np.array(awaited, np.int64),
            awaited_cycles=np.full(len(awaited), record.cycle),
        )
        return self.send(events.CycleEnded(at_s=at_s, number=number, covered=covered))

    def average(
        self, at_s: float, number: int, scales: dict[int, float] | None = None
    ) -> list[commands.AnyCommand]:
        """Report the average of a cycle; `scales` are those of guarded learners."""
        scales, cycle = scales or {}, self.machine.state.tasks[number].cycle
        return self.send(
            events.CycleAveraged(
                at_s=at_s,
                number=number,
                cycle=cycle,
                guarded=np.array(list(scales), np.int64),
                guarded_cycles=np.full(len(scales), cycle),
                scales=np.array(list(scales.values()), np.float64),
            )
        )

    def end(self, at_s: float, number: int) -> list[commands.AnyCommand]:
        return self.send(events.TaskEnded(at_s=at_s, number=number, outcome="finished"))


def grants(issued: list[commands.AnyCommand]) -> dict[int, commands.GrantShares]:
    return {each.number: each for each in issued if isinstance(each, commands.GrantShares)}
