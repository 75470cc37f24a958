"""The laws of payments, checked after each step of a service, with records of their own.

- A payment is for whole shards that a counted update covers, as the steps of its task show, at the
  price of the grant: `amount` = `shards` * `price`. Extensions are not paid.
- A task, cycle and learner are paid once, whatever restarts.
- No round costs more than its budget, and what a task has paid and granted never exceeds its own.
- Each granted shard is paid, or released with a reason, once.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import fsum, isnan
from typing import Any

import numpy as np

from melisma.cycle import commands as cycle_commands
from melisma.cycle import events as cycle_events
from melisma.fleet.array_types import Ints
from melisma.prices import AMOUNT_TOLERANCE
from melisma.runs.service_progress import ServiceStep
from melisma.runs.trace import Step
from melisma.service import commands, events
from melisma.simulation.invariants.violations import expect

Work = tuple[int, int, int]
"""Task, cycle and learner."""


@dataclass
class _TaskSteps:
    """What the steps of a task show: visits that were planned and made, by cycle and learner."""

    shard_samples: Ints
    extension: bool
    planned: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    visits: dict[tuple[int, int], int] = field(default_factory=dict)
    averaging: set[tuple[int, int]] = field(default_factory=set)
    counted: set[tuple[int, int]] = field(default_factory=set)


class ServiceInvariants:
    """The checks of one service; they raise `InvariantError`."""

    def __init__(self) -> None:
        self._tasks: dict[int, _TaskSteps] = {}
        self._budgets: dict[int, float | None] = {}
        self._round_budget: float | None = None
        self._granted: dict[Work, tuple[int, float]] = {}
        self._settled: Counter[Work] = Counter()
        self._paid: dict[Work, float] = {}

    @property
    def payments(self) -> dict[Work, float]:
        """The amount of each payment."""
        return dict(self._paid)

    def check_task(self, number: int, step: Step) -> None:
        """Record a step of a task."""
        for message in (step.event, *step.commands):
            if handler := TASK_HANDLERS.get(type(message)):
                handler(self, number, message)

    def check(self, step: ServiceStep) -> None:
        """Check one more step of the service."""
        if isinstance(step.event, events.ServiceStarted):
            self._round_budget = step.event.budget
        elif isinstance(step.event, events.TaskQueued):
            self._budgets[step.event.number] = step.event.task.budget
        for command in step.commands:
            if handler := SERVICE_HANDLERS.get(type(command)):
                handler(self, command)
        grants = [each for each in step.commands if isinstance(each, commands.GrantShares)]
        cost = fsum(float((each.shards * each.price).sum()) for each in grants)
        within = self._round_budget is None or cost <= self._round_budget * (1 + AMOUNT_TOLERANCE)
        expect(within, f"a round costs {cost:g} of {self._round_budget}")

    def check_end(self) -> None:
        """Check that all granted shards are settled, after all tasks have ended."""
        for work, (shards, _) in self._granted.items():
            done = self._settled[work]
            expect(done == shards, f"{work} was granted {shards} shards, and {done} are settled")

    def on_submitted(self, number: int, event: cycle_events.TaskSubmitted) -> None:
        """Record the sizes of shards."""
        self._tasks[number] = _TaskSteps(event.shard_samples, event.task.extension)

    def on_dispatch(self, number: int, command: cycle_commands.Dispatch) -> None:
        """Record the visits that are planned."""
        task = self._tasks[number]
        rows = zip(command.learners.tolist(), command.shards, command.passes.tolist(), strict=True)
        for learner, shards, passes in rows:
            planned = int(task.shard_samples[shards].sum()) * passes
            task.planned[command.cycle, learner] = shards.size, planned
            task.visits.pop((command.cycle, learner), None)

    def on_updates(self, number: int, event: cycle_events.UpdatesReceived) -> None:
        """Record the visits that were made, by the first update of each assignment."""
        rows = zip(event.learners.tolist(), event.visits_of_plan.tolist(), strict=True)
        for learner, visits in rows if not event.refused else ():
            self._tasks[number].visits.setdefault((event.cycle, learner), visits)

    def on_aggregate(self, number: int, command: cycle_commands.Aggregate) -> None:
        """Record the updates that are averaged."""
        late = zip(command.late.cycles.tolist(), command.late.learners.tolist(), strict=True)
        now = {(command.cycle, learner) for learner in command.learners.tolist()}
        self._tasks[number].averaging = {*late, *now}

    def on_aggregated(self, number: int, event: cycle_events.Aggregated) -> None:
        """Record the updates that count: those that were not left out."""
        task = self._tasks[number]
        keys = zip(event.guarded_cycles.tolist(), event.guarded.tolist(), strict=True)
        scales = zip(keys, event.scales.tolist(), strict=True)
        left_out = {key for key, scale in scales if isnan(scale) or scale == 0}
        task.counted |= task.averaging - left_out
        task.averaging = set()

    def on_granted(self, command: commands.GrantShares) -> None:
        """Check the budget of the task, and record the price of the grant."""
        number, cycle = command.number, command.cycle
        rows = zip(
            command.learners.tolist(), command.shards.tolist(), command.price.tolist(), strict=True
        )
        for learner, shards, price in rows:
            work = number, cycle, learner
            before, _ = self._granted.get(work, (0, 0.0))
            expect(self._settled[work] == before, f"{work} is granted while it is not settled")
            self._granted[work] = before + shards, price
        budget, spent = self._budgets[number], self._committed(number)
        within = budget is None or spent <= budget * (1 + AMOUNT_TOLERANCE)
        expect(within, f"task {number} is granted {spent:g} of its budget of {budget}")

    def _committed(self, number: int) -> float:
        """Return what a task has paid, and what its open grants may cost."""
        paid = [amount for work, amount in self._paid.items() if work[0] == number]
        open_work = [
            (shards - self._settled[work]) * price
            for work, (shards, price) in self._granted.items()
            if work[0] == number
        ]
        return fsum(paid + open_work)

    def on_paid(self, command: commands.Pay) -> None:
        """Check payments against the steps of the task, and the price of the grant."""
        columns = command.cycles, command.learners, command.shards, command.prices, command.amounts
        for cycle, learner, shards, price, amount in np.stack(columns, axis=1).tolist():
            work = command.number, int(cycle), int(learner)
            expect(work not in self._paid, f"{work} is paid twice")
            expect(work in self._granted, f"{work} is paid, and was not granted")
            expect(price == self._granted[work][1], f"{work} is paid at another price")
            expect(amount == shards * price, f"{work} is paid {amount:g}")
            self._check_work(work, int(shards))
            self._paid[work] = amount
            self._settle(work, int(shards))

    def _check_work(self, work: Work, shards: int) -> None:
        number, *key = work
        task = self._tasks[number]
        cycle, learner = key
        expect((cycle, learner) in task.counted, f"{work} is paid, and its update does not count")
        granted, planned = task.planned[cycle, learner]
        visits = min(task.visits[cycle, learner], planned)
        covered = granted * visits // max(planned, 1)
        right = shards <= granted if task.extension else shards == covered
        expect(right, f"{work} is paid for {shards} shards, and its visits cover {covered}")

    def on_released(self, command: commands.ReleaseShares) -> None:
        """Record released shards."""
        expect(command.reason, "shards are released without a reason")
        columns = command.cycles, command.learners, command.shards
        for cycle, learner, shards in np.stack(columns, axis=1).tolist():
            self._settle((command.number, cycle, learner), shards)

    def _settle(self, work: Work, shards: int) -> None:
        self._settled[work] += shards
        granted = self._granted.get(work, (0, 0.0))[0]
        expect(self._settled[work] <= granted, f"more shards of {work} are settled than granted")


TASK_HANDLERS: dict[type, Callable[[ServiceInvariants, int, Any], None]] = {
    cycle_events.TaskSubmitted: ServiceInvariants.on_submitted,
    cycle_commands.Dispatch: ServiceInvariants.on_dispatch,
    cycle_events.UpdatesReceived: ServiceInvariants.on_updates,
    cycle_commands.Aggregate: ServiceInvariants.on_aggregate,
    cycle_events.Aggregated: ServiceInvariants.on_aggregated,
}
SERVICE_HANDLERS: dict[type, Callable[[ServiceInvariants, Any], None]] = {
    commands.GrantShares: ServiceInvariants.on_granted,
    commands.Pay: ServiceInvariants.on_paid,
    commands.ReleaseShares: ServiceInvariants.on_released,
}
