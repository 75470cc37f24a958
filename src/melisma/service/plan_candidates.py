"""Candidates before money is spent: when tasks would end, and what they cost.

Each candidate changes the budgets or the deadlines of the tasks that are to be submitted beside the
live ones, and forecasts all rounds: tasks that do not fit wait, a round is as long as its longest
task, and the learners of a task that has ended move on. Rounds of the same tasks are planned once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isinf
from typing import Any

import msgspec
import numpy as np

from melisma.allocation.infeasible import format_rounded_up, round_up
from melisma.allocation.med.diagnosis import BoundedSearch, least_stretch
from melisma.allocation.med.learner_classes import group_learners
from melisma.allocation.med.levels import earliest_levels
from melisma.allocation.med.solver import cheapest
from melisma.allocation.schemes import Scheme
from melisma.cycle.events import COSTS
from melisma.errors import InfeasibleError
from melisma.fleet.array_types import NO_INTS, Ints
from melisma.fleet.fleet import Fleet
from melisma.fleet.task import Task
from melisma.prices import AMOUNT_TOLERANCE
from melisma.service import events
from melisma.service.commands import PlanRound
from melisma.service.round_planning import plan_round, shared_problem
from melisma.service.service_state import ServiceState, SharesRequest

MIN_GAIN = 1e-3
"""A larger budget has to save this part of the time."""
LATER_DEADLINES = (1.5, 2.0)
COST_SLACK = 0.01
"""Plans of least cost may cost this part more: at the very least they are slow to find."""
LIMIT_S = 0.2
"""Of one plan: there are many of them, and their owner waits."""
MAX_NODES, NEAREST_WORK = 2000, 5e6
AS_SUBMITTED = "as submitted"


@dataclass(frozen=True)
class TaskForecast:
    """A task in a candidate: its first cycle begins at `begins_s` from now, and its last one ends.

    `round_s` and `round_cost` are the planned seconds and the cost of its first cycle, `cost` that
    of all cycles. `budget` is its own, None without one.
    """

    name: str
    deadline_s: float
    budget: float | None
    cycles: int
    begins_s: float
    round_s: float
    ends_s: float
    round_cost: float
    cost: float


@dataclass(frozen=True)
class PlanCandidate:
    """What a change of the submitted tasks gives; `reason` says why there is no plan.

    `values` are the settings that it changes, and `round_budget` is that of each round, None
    without one.
    """

    change: str
    round_budget: float | None
    tasks: tuple[TaskForecast, ...] = ()
    reason: str = ""
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def feasible(self) -> bool:
        """Whether all tasks run to their end."""
        return not self.reason

    @property
    def ends_s(self) -> float:
        """When the last task ends, from now."""
        return max((task.ends_s for task in self.tasks), default=inf)

    @property
    def cost(self) -> float:
        """The cost of all cycles of all tasks."""
        return sum(task.cost for task in self.tasks)

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as JSON values."""
        figures = {"ends_s": self.ends_s, "cost": self.cost} if self.feasible else {}
        tasks = [vars(task) for task in self.tasks]
        fields: dict[str, Any] = {"change": self.change, "values": dict(self.values)}
        fields |= {"feasible": self.feasible, "reason": self.reason}
        return {**fields, "round_budget": self.round_budget, **figures, "tasks": tasks}


@dataclass(frozen=True)
class Submission:
    """Tasks that are planned together, in the order of their submission, with the cycles left.

    `command` has their costs on each learner, and what the tasks' own budgets leave for all of
    their cycles. `submitted` are the positions of those that are to be submitted; the others live.
    """

    command: PlanRound
    cycles: tuple[int, ...]
    submitted: tuple[int, ...]

    @classmethod
    def to_fleet(cls, tasks: Sequence[Task], fleet: Fleet, scheme: Scheme) -> "Submission":
        """Return the submission of tasks to an idle fleet, at the expected costs of its file."""
        costs = [fleet.state_costs(task).mean() for task in tasks]
        command = PlanRound(
            reason="candidates",
            round=1,
            numbers=tuple(range(len(tasks))),
            tasks=tuple(tasks),
            scheme=scheme.name,
            learners=np.arange(fleet.learners),
            names=fleet.names,
            costs=tuple(np.stack([cost[name] for name in COSTS]) for cost in costs),
            price=fleet.price,
            budget=None if isinf(fleet.budget) else fleet.budget,
            limit_s=LIMIT_S,
            assigned=NO_INTS,
            budgets_left=tuple(task.budget for task in tasks),
        )
        cycles = tuple(task.expected_cycles for task in tasks)
        return cls(command, cycles, tuple(range(len(tasks))))

    @classmethod
    def beside_live(cls, state: ServiceState, task: Task, request: SharesRequest) -> "Submission":
        """Return the submission of a task to a service, with the costs in its `request`.

        The live tasks have the costs of their latest request; those without any are left out.
        """
        records = [record for record in state.live if record.latest_request is not None]
        requests = [*(record.latest_request for record in records), request]
        known = [each for each in requests if each is not None]
        learners: Ints = np.unique(np.concatenate([each.learners for each in known]))
        tasks = (*(record.task for record in records), task)
        command = PlanRound(
            reason="candidates",
            round=state.round + 1,
            numbers=tuple(range(len(tasks))),
            tasks=tasks,
            scheme=state.scheme.name,
            learners=learners,
            names=tuple(state.names[learner] for learner in learners.tolist()),
            costs=tuple(each.costs_of(learners) for each in known),
            price=state.price[learners],
            budget=state.budget,
            limit_s=LIMIT_S,
            assigned=NO_INTS,
            budgets_left=(*(record.account.left for record in records), task.budget),
        )
        left = [record.remaining_cycles or 1 for record in records]
        return cls(command, (*left, task.expected_cycles), (len(records),))

    def with_deadlines(self, factor: float) -> "Submission":
        """Return the submission with the deadlines of submitted tasks times a factor."""
        tasks = tuple(
            msgspec.structs.replace(task, deadline_s=task.deadline_s * factor)
            if row in self.submitted
            else task
            for row, task in enumerate(self.command.tasks)
        )
        return replace(self, command=msgspec.structs.replace(self.command, tasks=tasks))

    def with_budgets(
        self, budgets: Sequence[float | None], round_budget: float | None
    ) -> "Submission":
        """Return the submission with these budgets of all tasks, and of each round."""
        command = msgspec.structs.replace(
            self.command, budgets_left=tuple(budgets), budget=round_budget
        )
        return replace(self, command=command)

    def unlimited(self) -> "Submission":
        """Return the submission without budgets of submitted tasks and of rounds."""
        budgets = [
            None if row in self.submitted else left
            for row, left in enumerate(self.command.budgets_left)
        ]
        return self.with_budgets(budgets, None)

    def least_cost(self) -> float:
        """Return the least cost of a round of all tasks by their deadlines; inf without a plan."""
        problem = shared_problem(self.command)
        classes = group_learners(problem)
        if np.isinf(earliest_levels(classes)).any() or problem.learners < problem.tasks:
            return inf
        return cheapest(problem, MAX_NODES)[0]

    def alone(self, row: int) -> "Submission":
        """Return one task without the others."""
        command = msgspec.structs.replace(
            self.command,
            numbers=(self.command.numbers[row],),
            tasks=(self.command.tasks[row],),
            costs=(self.command.costs[row],),
            budgets_left=(self.command.budgets_left[row],),
        )
        return Submission(command, (self.cycles[row],), (0,))


@dataclass
class _Forecast:
    """The tasks of a submission on their way through the rounds."""

    submission: Submission
    now_s: float = 0.0
    left: list[int] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)
    found: dict[int, dict[str, float]] = field(default_factory=dict)

    def run(self) -> tuple[TaskForecast, ...]:
        """Return the forecast of all tasks; raise `InfeasibleError` if one has no plan."""
        command = self.submission.command
        self.left, self.spent = list(self.submission.cycles), [0.0] * len(command.tasks)
        while any(self.left):
            self._plan([row for row, left in enumerate(self.left) if left])
        return tuple(
            TaskForecast(
                name=task.name,
                deadline_s=task.deadline_s,
                budget=command.budgets_left[row],
                cycles=self.submission.cycles[row],
                cost=self.spent[row],
                **self.found[row],
            )
            for row, task in enumerate(command.tasks)
        )

    def _plan(self, rows: list[int]) -> None:
        """Plan these tasks, without those that do not fit, until one of them ends."""
        last = None
        while rows:
            planned = plan_round(self._command(rows), 0.0, repeatable=True)
            if isinstance(planned, events.RoundPlanned):
                self._advance(rows, planned)
                return
            over = planned.over_budget
            last = planned.reason
            rows = [row for row in rows if row != (rows[-1] if over is None else over)]
        raise InfeasibleError(last or "no task", constraint="plan", miss=0.0, nearest={})

    def _command(self, rows: list[int]) -> PlanRound:
        """Return the command for some tasks; each may spend an even part of what is left."""
        command = self.submission.command
        lefts = [command.budgets_left[row] for row in rows]
        return msgspec.structs.replace(
            command,
            numbers=tuple(rows),
            tasks=tuple(command.tasks[row] for row in rows),
            costs=tuple(command.costs[row] for row in rows),
            budgets_left=tuple(
                None if left is None else max(left - self.spent[row], 0.0) / self.left[row]
                for row, left in zip(rows, lefts, strict=True)
            ),
        )

    def _advance(self, rows: list[int], planned: events.RoundPlanned) -> None:
        rounds, round_s = min(self.left[row] for row in rows), max(planned.task_s)
        price = dict(
            zip(
                self.submission.command.learners.tolist(),
                self.submission.command.price,
                strict=True,
            )
        )
        for index, row in enumerate(rows):
            learners, shards = planned.learners[index].tolist(), planned.shards[index].tolist()
            cost = float(sum(price[n] * d for n, d in zip(learners, shards, strict=True)))
            first = {"begins_s": self.now_s, "round_s": planned.task_s[index], "round_cost": cost}
            task = self.found.setdefault(row, first)
            task["ends_s"] = self.now_s + (rounds - 1) * round_s + planned.task_s[index]
            self.spent[row] += rounds * cost
            self.left[row] -= rounds
        self.now_s += rounds * round_s


def find_candidates(submission: Submission) -> list[PlanCandidate]:
    """Return the plan as submitted, and what other budgets and deadlines give.

    If there is no plan as submitted, the others are the nearest budget and deadline that allow one.
    """
    first = forecast(AS_SUBMITTED, submission)
    if not first.feasible:
        return [first, *find_nearest(submission)]
    found = [first, *_larger_budgets(submission, first)]
    for factor in (1.0, *LATER_DEADLINES):
        later = submission.with_deadlines(factor)
        name = "least cost" if factor == 1.0 else f"least cost, deadlines x {factor:g}"
        cheapest = _cheapest(name, later)
        if cheapest is not None:
            found.append(cheapest)
    return _distinct(found)


def check_submission_feasible(submission: Submission) -> None:
    """Raise `InfeasibleError` if a submitted task has no plan, with nearest budget and deadline."""
    for row in submission.submitted:
        alone, name = submission.alone(row), submission.command.tasks[row].name
        first = forecast(AS_SUBMITTED, alone)
        if first.feasible:
            continue
        nearest = find_nearest(alone)
        values = {name: value for each in nearest for name, value in each.values.items()}
        hints = " or ".join(each.change for each in nearest)
        hint = f"; use {hints}" if hints else ""
        raise InfeasibleError(
            f"task {name} has no plan for all of its cycles: {first.reason}{hint}",
            constraint="submission",
            miss=0.0,
            nearest=values,
        )


def forecast(change: str, submission: Submission) -> PlanCandidate:
    """Return the candidate of a submission with a change that is made already."""
    budget = submission.command.budget
    try:
        return PlanCandidate(change, budget, _Forecast(submission).run())
    except InfeasibleError as error:
        return PlanCandidate(change, budget, (), str(error))


def find_nearest(submission: Submission) -> list[PlanCandidate]:
    """Return what allows a plan of each submitted task alone: the least budget, and deadline."""
    found = []
    for row in submission.submitted:
        alone = submission.alone(row)
        if not forecast(AS_SUBMITTED, alone).feasible:
            found += [*_nearest_budget(alone), *_nearest_deadline(alone)]
    return found


def _nearest_budget(alone: Submission) -> list[PlanCandidate]:
    """Return the least budgets of a task and of its rounds at its deadline, if any is enough."""
    least = alone.least_cost()
    if not isfinite(least):
        return []
    (left,), (cycles,), (task,) = alone.command.budgets_left, alone.cycles, alone.command.tasks
    limit, values = alone.command.budget, dict[str, float]()
    if left is not None and left < least * cycles:
        left = values[f"budget of {task.name}"] = round_up(least * cycles)
    if limit is not None and limit < least:
        limit = values["budget of each round"] = round_up(least)
    changed = forecast(_at_least(values), alone.with_budgets([left], limit))
    return [replace(changed, values=values)] if values else []


def _nearest_deadline(alone: Submission) -> list[PlanCandidate]:
    """Return the least deadline of a task within its budget, if any is enough."""
    problem = shared_problem(alone.command)
    (left,), (cycles,), (task,) = alone.command.budgets_left, alone.cycles, alone.command.tasks
    limits = [inf if left is None else left / cycles, problem.budget]
    classes = replace(group_learners(problem), budget=min(limits))
    factor, _ = least_stretch(classes, BoundedSearch(NEAREST_WORK))
    if factor is None or factor <= 1.0:
        return []
    values = {f"deadline_s of {task.name}": round_up(task.deadline_s * factor)}
    later = alone.with_deadlines(round_up(task.deadline_s * factor) / task.deadline_s)
    return [replace(forecast(_at_least(values), later), values=values)]


def _at_least(values: Mapping[str, float]) -> str:
    return " and ".join(f"{name} >= {format_rounded_up(value)}" for name, value in values.items())


def _needed(task: TaskForecast) -> float:
    return task.round_cost * task.cycles


def _larger_budgets(submission: Submission, first: PlanCandidate) -> list[PlanCandidate]:
    """Return the least budgets that reach the time without any, and those half way to them."""
    best = forecast("", submission.unlimited())
    if not best.feasible or best.ends_s >= first.ends_s * (1 - MIN_GAIN):
        return []
    command, found = submission.command, []
    costs = sum(task.round_cost for task in best.tasks)
    for change, part in (("budget half way", 0.5), ("budget for the least time", 1.0)):
        budgets = [
            left if left is None else left + part * max(_needed(task) - left, 0.0)
            for left, task in zip(command.budgets_left, best.tasks, strict=True)
        ]
        limit = command.budget
        if limit is not None:
            limit += part * max(costs - limit, 0.0) * (1 + AMOUNT_TOLERANCE)
        found.append(forecast(change, submission.with_budgets(budgets, limit)))
    return [each for each in found if each.feasible]


def _cheapest(change: str, submission: Submission) -> PlanCandidate | None:
    """Return a plan of about the least cost of a round; None if the deadlines allow no plan."""
    unlimited = submission.unlimited()
    least = unlimited.least_cost()
    if not isfinite(least):
        return None
    budgets = unlimited.command.budgets_left
    found = forecast(change, unlimited.with_budgets(budgets, least * (1 + COST_SLACK)))
    return found if found.feasible else None


def _distinct(candidates: list[PlanCandidate]) -> list[PlanCandidate]:
    """Return the candidates without those whose times and costs an earlier one has."""
    found: dict[tuple[float, float], PlanCandidate] = {}
    for each in candidates:
        found.setdefault((round(each.ends_s, 6), round(each.cost, 6)), each)
    return list(found.values())
