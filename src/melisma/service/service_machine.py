"""Decides which tasks of a shared fleet begin a cycle together, and when.

A *boundary* is when no task is in a cycle. Then all tasks that request shares are planned as one
round, and the tasks of the plan are granted their learners. The loop, by event::

    TaskQueued, LearnersPriced   the task or the learners take part from the next boundary on
    SharesRequested              PlanRound at a boundary, when no task is awaited any more
    RoundPlanned                 GrantShares for each task of the plan, HoldTask for the others
    RoundInfeasible              PlanRound without the task that was submitted last
    CycleEnded, TaskEnded        the boundary, if it was the last task in a cycle
    CycleAveraged                Pay for the shards that counted updates cover
    TimeReached                  PlanRound without the tasks that are not ready

A task that is between two cycles, or measures its learners, is awaited for the shortest deadline
of those that are ready. Planning takes time, so that it is a command: its result is
an event like any other, and replaying the events gives the same commands.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from melisma.allocation.schemes import get_scheme
from melisma.errors import MelismaError, SettingError
from melisma.fleet.array_types import NO_INTS, Ints
from melisma.prices import AMOUNT_TOLERANCE, check_prices
from melisma.service import commands, events
from melisma.service.accounts import Account, check_budget
from melisma.service.commands import Commands
from melisma.service.payments import issue
from melisma.service.service_state import (
    Association,
    Boundary,
    ServiceState,
    SharesRequest,
    TaskRecord,
    TaskStatus,
)

# Planning may take this part of the shortest deadline of its tasks.
PLANNING_FRACTION = 0.05


class ServiceMachine:
    """Decides for all tasks of one fleet; replaying the same events gives the same commands."""

    def __init__(self, state: ServiceState | None = None) -> None:
        self._state = state

    @property
    def state(self) -> ServiceState:
        """The state after the last event; `MelismaError` before `ServiceStarted`."""
        if self._state is None:
            raise MelismaError("the service has no state before ServiceStarted")
        return self._state

    def handle(self, event: events.AnyEvent) -> Commands:
        """Update the state and return the commands that a driver has to carry out."""
        if isinstance(event, events.ServiceStarted):
            scheme = get_scheme(event.scheme)
            scheme.check_shared()
            if event.budget is not None and not event.budget >= 0:
                raise SettingError(f"budget = {event.budget:g}; expected a number, 0 or more")
            self._state = ServiceState(scheme, event.budget, is_open=event.is_open)
            return []
        issued = HANDLERS[type(event)](self.state, event)
        return [*issued, *continue_service(self.state, event.at_s)]


def on_queued(state: ServiceState, event: events.TaskQueued) -> Commands:
    """Add a task; its name tells it apart from all others."""
    if any(record.task.name == event.task.name for record in state.live):
        raise SettingError(f"a task is called {event.task.name} already; rename the new one")
    check_budget(event.task, state.budget)
    account = Account(event.task.budget)
    state.tasks[event.number] = TaskRecord(event.number, event.task, account=account)
    return []


def on_priced(state: ServiceState, event: events.LearnersPriced) -> Commands:
    """Store the names and prices of learners; raise `SettingError` for an absurd price."""
    check_prices(event.price, event.names)
    state.make_room(int(event.learners.max(initial=-1)) + 1)
    state.price[event.learners] = event.price
    for learner, name in zip(event.learners.tolist(), event.names, strict=True):
        state.names[learner] = name
    return []


def on_requested(state: ServiceState, event: events.SharesRequested) -> Commands:
    """Store the request of a task, unless it has ended, or its budget is used up."""
    record = state.tasks[event.number]
    if record.is_live and not record.in_cycle:
        if reason := find_used_up(state, record, event.learners):
            record.request = None
            return [commands.RefuseShares(reason=reason, number=record.number, final=True)]
        order = np.argsort(event.learners)
        record.request_shares(
            SharesRequest(event.cycle, event.learners[order], event.costs[:, order])
        )
        state.boundary.stuck = ()
    return []


def find_used_up(state: ServiceState, record: TaskRecord, learners: Ints) -> str:
    """Return why the budget of a task pays for no cycle, at whatever speed; empty if it does."""
    left, budget = record.account.left, record.account.budget
    if left is None or budget is None or not learners.size:
        return ""
    least = record.task.shards * float(state.price[learners].min())
    if left >= least * (1 - AMOUNT_TOLERANCE):
        return ""
    paid, reserved = record.account.paid, record.account.reserved
    return (
        f"budget = {budget:g} of task {record.task.name} is used up: {paid:g} is paid, "
        + (f"{reserved:g} is reserved for late work, " if reserved else "")
        + f"{left:g} is left, and a cycle costs at least {least:g}; use a larger budget"
    )


def on_cycle_ended(state: ServiceState, event: events.CycleEnded) -> Commands:
    """Record that a task is not in a cycle any more; release the work that will not count."""
    record = state.tasks[event.number]
    record.in_cycle, account = False, record.account
    covered = event.covered
    settled = account.cancel(record.cycle) if covered is None else account.close(covered)
    return issue(state, record, record.cycle, settled)


def on_averaged(state: ServiceState, event: events.CycleAveraged) -> Commands:
    """Pay for the work whose updates are in the average."""
    record = state.tasks[event.number]
    settled = record.account.settle(event.guarded, event.guarded_cycles, event.scales)
    return issue(state, record, event.cycle, settled)


def on_ended(state: ServiceState, event: events.TaskEnded) -> Commands:
    """Record the end of a task, which is not held any more; a plan that includes it is void."""
    record = state.tasks[event.number]
    released = issue(state, record, record.cycle, record.account.end())
    record.status, record.outcome = TaskStatus.ENDED, event.outcome
    record.in_cycle, record.request = False, None
    boundary = state.boundary
    boundary.holds.pop(event.number, None)
    boundary.unfit = [number for number in boundary.unfit if number != event.number]
    boundary.unpaid = [number for number in boundary.unpaid if number != event.number]
    if event.number in state.planning:
        state.planning, boundary.holds, boundary.unfit, boundary.unpaid = (), {}, [], []
    return released


def on_time(_state: ServiceState, _event: events.TimeReached) -> Commands:
    """Change nothing: the instant of the event is what counts."""
    return []


def continue_service(state: ServiceState, at_s: float) -> Commands:
    """At a boundary, plan the tasks that request shares, once no other task is awaited."""
    if state.planning or any(record.in_cycle for record in state.live):
        return []
    requesting = state.requesting
    if not requesting:
        return []
    if len(requesting) < len(state.live):
        if state.boundary.stuck == requesting:
            return []
        if state.boundary.waits_until_s is None:
            patience_s = min(state.tasks[number].task.deadline_s for number in requesting)
            state.boundary.waits_until_s = at_s + patience_s
            return [wake(state, state.boundary.waits_until_s)]
        if at_s < state.boundary.waits_until_s:
            return []
    state.round += 1
    return [plan(state, requesting, "no task is in a cycle")]


def wake(state: ServiceState, at_s: float) -> commands.Wake:
    """Request `TimeReached`, to go on without the tasks that are not ready."""
    awaited = ", ".join(record.task.name for record in state.live if record.request is None)
    return commands.Wake(reason=f"not ready: {awaited}", at_s=at_s)


def plan(
    state: ServiceState, numbers: tuple[int, ...], reason: str, *, keep: bool = True
) -> commands.PlanRound:
    """Plan these tasks; with `keep`, learners keep their tasks where the scheme fixes them."""
    records = [state.tasks[number] for number in numbers]
    requests = [record.request for record in records if record.request is not None]
    learners: Ints = np.unique(np.concatenate([request.learners for request in requests]))
    state.planning, assigned = numbers, NO_INTS
    if keep and state.association.holds_for(numbers, learners):
        assigned = state.association.assigned
    state.boundary.keeps_tasks = bool(assigned.size)
    # The price of a grant is the one that it was planned with.
    state.planned_price = state.price.copy()
    return commands.PlanRound(
        reason=reason,
        round=state.round,
        numbers=numbers,
        tasks=tuple(record.task for record in records),
        scheme=state.scheme.name,
        learners=learners,
        names=tuple(state.names[learner] for learner in learners.tolist()),
        costs=tuple(request.costs_of(learners) for request in requests),
        price=state.price[learners],
        budget=state.budget,
        limit_s=PLANNING_FRACTION * min(record.task.deadline_s for record in records),
        assigned=assigned,
        budgets_left=tuple(record.allowance for record in records),
    )


def on_planned(state: ServiceState, event: events.RoundPlanned) -> Commands:
    """Grant the shares of the plan; tasks that it does not include wait."""
    if (event.round, event.numbers) != (state.round, state.planning):
        return []
    if state.scheme.costs_in == "present" and not state.boundary.keeps_tasks:
        state.association = associate(event)
    grants: Commands = []
    for row, number in enumerate(event.numbers):
        record, only = state.tasks[number], np.array([row])
        learners, shards = event.learners.take(only).values, event.shards.take(only).values
        price = state.planned_price[learners]
        record.begin_cycle()
        record.account.reserve(record.cycle, learners, shards, price)
        grants.append(
            commands.GrantShares(
                reason=f"scheme {state.scheme.name}",
                round=event.round,
                number=number,
                cycle=record.cycle,
                learners=learners,
                shards=shards,
                price=price,
                planned_s=event.task_s[row],
                cost=event.cost,
            )
        )
    return [*grants, *end_boundary(state, event)]


def associate(event: events.RoundPlanned) -> Association:
    """Return the task of each learner in a plan."""
    learners = np.concatenate([event.learners.values, event.idle])
    tasks = np.concatenate([event.learners.row_ids, np.full(event.idle.size, -1)])
    order = np.argsort(learners)
    return Association(event.numbers, learners[order], tasks[order])


def on_infeasible(state: ServiceState, event: events.RoundInfeasible) -> Commands:
    """Plan without the task that was submitted last, or that its own budget leaves out.

    A task that has no plan of its own does not keep later ones from theirs. If no task has one,
    all wait for those that are not ready; if there are none, nothing is going to change, and the
    requests are refused.
    """
    if (event.round, event.numbers) != (state.round, state.planning):
        return []
    if state.boundary.keeps_tasks:
        return [plan(state, event.numbers, "learners cannot keep their tasks", keep=False)]
    last = event.numbers[-1] if event.over_budget is None else event.over_budget
    if event.over_budget is not None and not state.tasks[last].spends_all:
        state.tasks[last].spends_all = True
        reason = f"task {state.tasks[last].task.name} spends more than an even part of its budget"
        return [plan(state, event.numbers, reason)]
    others = [number for number in event.numbers if number != last]
    state.boundary.holds[last] = event.reason
    if others:
        reason = f"without task {state.tasks[last].task.name}: {event.reason}"
        return [plan(state, tuple(others), reason)]
    state.boundary.unfit.append(last)
    state.boundary.unpaid += [last] if event.over_budget is not None else []
    rest = tuple(number for number in state.requesting if number not in state.boundary.unfit)
    if rest:
        reason = f"task {state.tasks[last].task.name} has no plan: {event.reason}"
        state.boundary.holds = {
            number: state.boundary.holds[number] for number in state.boundary.unfit
        }
        return [plan(state, rest, reason)]
    return hold_or_refuse(state)


def hold_or_refuse(state: ServiceState) -> Commands:
    """End a round without any plan.

    Tasks that learners may still join wait for them, unless a budget is used up.
    """
    if len(state.requesting) < len(state.live) or (state.is_open and not state.boundary.unpaid):
        held = hold(state)
        state.planning, state.boundary.stuck = (), state.requesting
        state.boundary.holds, state.boundary.unfit, state.boundary.unpaid = {}, [], []
        return held
    refused: Commands = []
    for number, reason in sorted(state.boundary.holds.items()):
        state.tasks[number].request = None
        final = number in state.boundary.unpaid
        refused.append(commands.RefuseShares(reason=reason, number=number, final=final))
    state.planning, state.boundary = (), Boundary()
    return refused


def hold(state: ServiceState, until_s: float | None = None) -> Commands:
    """Return why tasks wait for a later round, and until when at most."""
    return [
        commands.HoldTask(reason=reason, round=state.round, number=number, until_s=until_s)
        for number, reason in sorted(state.boundary.holds.items())
    ]


def end_boundary(state: ServiceState, event: events.RoundPlanned) -> Commands:
    """End the boundary with a round; return why other tasks wait."""
    longest_s = max(state.tasks[number].task.deadline_s for number in event.numbers)
    held = hold(state, event.at_s + longest_s)
    state.planning, state.boundary = (), Boundary()
    return held


HANDLERS: dict[type[events.Event], Callable[[ServiceState, Any], Commands]] = {
    events.TaskQueued: on_queued,
    events.LearnersPriced: on_priced,
    events.SharesRequested: on_requested,
    events.CycleEnded: on_cycle_ended,
    events.CycleAveraged: on_averaged,
    events.TaskEnded: on_ended,
    events.RoundPlanned: on_planned,
    events.RoundInfeasible: on_infeasible,
    events.TimeReached: on_time,
}
