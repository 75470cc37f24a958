"""One training round: dispatch work, receive updates, close the cycle.

A round begins with `dispatch`. It ends in `close_cycle`, when the last update is in or the time
limit is reached: its updates are aggregated, or the cycle is empty.
"""

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.planning import PlannedCycle, deal, plan_cycle
from melisma.cycle.state import CycleState, Stage, WorkStatus
from melisma.errors import InfeasibleError
from melisma.fleet.array_types import Ints

Commands = list[commands.AnyCommand]

# Learners stop in time to arrive by the deadline. Wait for mispredicted updates for this part of
# the deadline, or for twice the recent lateness, up to the second part.
MIN_TAIL_FRACTION, MAX_TAIL_FRACTION = 0.1, 0.5
# End the run after this many cycles in a row without an update.
MAX_EMPTY_CYCLES = 3


def dispatch(state: CycleState, at_s: float) -> Commands:
    """Plan the cycle, deal shards and send out the work."""
    try:
        planned = plan_cycle(state)
    except InfeasibleError as error:
        return reject_plan(state, str(error))
    if planned.assigned.any():
        tail_s = start_round(state, at_s)
        assignment = assign(state, planned, tail_s)
        return [*benchmark_left_out(state, planned), assignment, *wake(state)]
    if planned.no_pass.size:
        return reject_plan(state, describe_short_deadline(state, planned.no_pass.size))
    return record_empty_cycle(state, "the plan gives no learner a shard and a pass")


def assign(state: CycleState, planned: PlannedCycle, tail_s: float) -> commands.Dispatch:
    """Deal shards by the plan and record the assignments."""
    table, assigned = state.learners, planned.assigned
    learners, counts = planned.learners[assigned], planned.plan.shards[assigned]
    shards = deal(state, learners, counts)
    table.work[learners], table.attempts[learners] = WorkStatus.ASSIGNED, 1
    table.passes[learners] = planned.plan.updates[assigned]
    names = ", ".join(table.names[learner] for learner in planned.left_out)
    too_slow = f"; {names} cannot meet the deadline" if names else ""
    return commands.Dispatch(
        reason=f"scheme {state.scheme.name}{too_slow}",
        learners=learners,
        cycle=state.cycle,
        attempts=table.attempts[learners].copy(),
        shards=shards,
        passes=table.passes[learners].copy(),
        seconds_left=state.task.deadline_s,
        tail_s=tail_s,
        predicted_s=planned.predicted_s[assigned],
        no_pass=planned.no_pass,
    )


def start_round(state: CycleState, at_s: float) -> float:
    """Set the limits of the round and return its tail in seconds."""
    deadline_s = state.task.deadline_s
    tail_s = max(MIN_TAIL_FRACTION * deadline_s, 2 * state.recent_lateness_s)
    tail_s = min(tail_s, MAX_TAIL_FRACTION * deadline_s)
    state.stage, state.began_s = Stage.TRAINING, at_s
    state.limit_s = state.deadline_at_s + tail_s
    state.recent_lateness_s /= 2
    return tail_s


def describe_short_deadline(state: CycleState, count: int) -> str:
    """Describe a plan in which no learner has time for one pass over its shards."""
    return (
        f"deadline_s = {state.task.deadline_s:g} is too short: none of the {count} learners with "
        "shards can train them once in time; use a longer deadline_s or fewer samples"
    )


def reject_plan(state: CycleState, reason: str) -> Commands:
    """Fail the run in its first cycle; later, record an empty cycle and measure again."""
    if state.cycle == 1:
        return finish(state, "failed", reason)
    state.learners.costs[:] = np.nan
    return record_empty_cycle(state, reason)


def benchmark_left_out(state: CycleState, planned: PlannedCycle) -> Commands:
    """Measure learners without work again: no update will show that they have become faster."""
    learners = [*planned.left_out, *planned.no_pass.tolist()]
    if not learners:
        return []
    return [
        commands.Benchmark(
            reason="left out of this cycle; they may be fast enough for the next",
            learners=np.array(learners),
            seconds=state.task.deadline_s,
        )
    ]


def on_progress(state: CycleState, event: events.ProgressReported) -> Commands:
    """Store the visits made so far by learners at work."""
    if event.cycle == state.cycle:
        at_work = state.learners.work[event.learners] == WorkStatus.ASSIGNED
        state.learners.visits[event.learners[at_work]] = event.visits[at_work]
    return []


def on_updates(state: CycleState, event: events.UpdatesReceived) -> Commands:
    """Count each assignment's update once while its cycle is open; withdraw all others."""
    learners = state.learners
    awaited = state.expects(event.learners, event.cycle, event.attempts)
    received, attempts = event.learners[awaited], event.attempts[awaited]
    learners.work[received] = WorkStatus.DROPPED if event.refused else WorkStatus.RECEIVED
    learners.visits[received] = 0 if event.refused else event.visits[awaited]
    state.refusal = event.refused or state.refusal
    if not state.federated:
        learners.mark_held(received[learners.visits[received] > 0])
    replies: Commands = []
    if not awaited.all():
        reason = "the update was already counted, or its cycle is closed"
        others = ~awaited
        replies += [withdraw(event.learners[others], event.cycle, event.attempts[others], reason)]
    if event.refused:
        replies += [withdraw(received, event.cycle, attempts, event.refused)]
    if received.size:
        lateness_s = event.at_s - state.deadline_at_s
        state.recent_lateness_s = max(state.recent_lateness_s, lateness_s)
        replies += close_if_complete(state)
    return replies


def close_if_complete(state: CycleState) -> Commands:
    """Close the cycle if no update is awaited."""
    waiting = state.learners.having(WorkStatus.ASSIGNED).size
    return close_cycle(state) if state.stage is Stage.TRAINING and not waiting else []


def close_cycle(state: CycleState) -> Commands:
    """Withdraw open work and aggregate the updates that were received."""
    withdrawn = withdraw_open_work(state, "the deadline and the predicted tail have passed")
    received = state.learners.having(WorkStatus.RECEIVED)
    if not state.learners.weights(received).any():
        return [*withdrawn, *record_empty_cycle(state, state.refusal or "no update was received")]
    state.empty_cycles = 0
    reason = "the deadline has passed" if withdrawn else "all updates are in"
    return [*withdrawn, aggregate(state, received, reason)]


def record_empty_cycle(state: CycleState, reason: str) -> Commands:
    """Keep the parameters as they are; fail the run after `MAX_EMPTY_CYCLES` in a row."""
    state.empty_cycles, state.empty_reason = state.empty_cycles + 1, reason
    if state.empty_cycles >= MAX_EMPTY_CYCLES:
        problem = f"{MAX_EMPTY_CYCLES} cycles in a row were empty; cycle {state.cycle}: {reason}"
        return finish(state, "failed", problem)
    return [aggregate(state, np.empty(0, np.int64), f"empty: {reason}")]


def aggregate(state: CycleState, received: Ints, reason: str) -> commands.Aggregate:
    """Average the updates whose weight is positive."""
    state.stage = Stage.AGGREGATING
    weights = state.learners.weights(received)
    counted = weights > 0
    return commands.Aggregate(
        reason=reason,
        cycle=state.cycle,
        learners=received[counted],
        attempts=state.learners.attempts[received][counted],
        weights=weights[counted],
    )


def withdraw_open_work(state: CycleState, reason: str) -> Commands:
    """Drop and withdraw every assignment whose update is still awaited."""
    learners = state.learners.having(WorkStatus.ASSIGNED)
    state.learners.work[learners] = WorkStatus.DROPPED
    attempts = state.learners.attempts[learners]
    return [withdraw(learners, state.cycle, attempts, reason)] if learners.size else []


def withdraw(learners: Ints, cycle: int, attempts: Ints, reason: str) -> commands.Withdraw:
    """Withdraw assignments."""
    return commands.Withdraw(reason=reason, learners=learners, cycle=cycle, attempts=attempts)


def wake(state: CycleState) -> Commands:
    """Request `TimeReached` at the time limit of the stage."""
    return [commands.Wake(reason=f"time limit of {state.stage}", at_s=state.limit_s)]


def finish(state: CycleState, outcome: commands.Outcome, reason: str) -> Commands:
    """Finish the run."""
    state.stage = Stage.FINISHED
    return [commands.Finish(reason=reason, outcome=outcome)]
