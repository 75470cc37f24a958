"""One training round: dispatch work, receive updates, close the cycle.

A round begins with `dispatch`. It ends in `close_cycle`: when the last update is in, from the
deadline on with the quorum, or when the time limit is reached. Its updates are aggregated, together
with late ones of earlier cycles, or the cycle is empty.
"""

import msgspec
import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.cache_index import EMPTY_CACHE
from melisma.cycle.commands import Commands
from melisma.cycle.extensions import extend, take_back_work
from melisma.cycle.late_work import await_late, later_attempts, receive_late
from melisma.cycle.learner import benchmark_s, count_steps
from melisma.cycle.planning import PlannedCycle, deal, dismiss, mark_held, plan_cycle
from melisma.cycle.ragged import RaggedArray
from melisma.cycle.sampling import draws_all
from melisma.cycle.schedule import Schedule
from melisma.cycle.state import CycleState, Stage, WorkStatus, covered_shards, plausible_visits
from melisma.errors import InfeasibleError, SchemeError
from melisma.fleet.array_types import NO_INTS, Bools, Floats, Ints

# Learners stop in time to arrive by the deadline. Wait for mispredicted updates for this part of
# the deadline, or for twice the recent lateness, up to the second part.
MIN_TAIL_FRACTION, MAX_TAIL_FRACTION = 0.1, 0.5
# In federated learning one update weighs at most this many times the median.
MAX_WEIGHT_FACTOR = 10.0
# End the run after this many cycles in a row without an update.
MAX_EMPTY_CYCLES = 3
TIME_IS_UP = "no time is left for another cycle"
NO_UPDATE = "no update was received"


def dispatch(state: CycleState, at_s: float) -> Commands:
    """Plan the cycle, deal shards and send out the work."""
    left_s = state.stop_s - at_s
    if 0 < left_s < state.task.deadline_s:
        state.set_length(left_s)
    try:
        planned = plan_cycle(state)
    except InfeasibleError as error:
        return reject_plan(state, str(error))
    except SchemeError as error:
        return finish(state, "failed", str(error))
    dismissed = dismiss(state, planned.offenders)
    if planned.assigned.any():
        start_round(state, at_s)
        if state.schedule is not None:
            record_dispatch(state, state.schedule, planned)
        assignment = assign(state, planned)
        return [*dismissed, *benchmark_left_out(state, planned), assignment, *wake(state)]
    if planned.no_pass.size:
        problem = describe_short_deadline(state, planned.no_pass.size)
        return [*dismissed, *reject_plan(state, problem)]
    reason = "the plan gives no learner a shard and a pass"
    return [*dismissed, *record_empty_cycle(state, reason)]


def record_dispatch(state: CycleState, schedule: Schedule, planned: PlannedCycle) -> None:
    """Record the begin of a cycle, and whether it is too short for a shard of some learner."""
    schedule.record_dispatch(state.began_s)
    if planned.left_out or planned.no_pass.size:
        schedule.record_idle(state.task.deadline_s)


def assign(state: CycleState, planned: PlannedCycle) -> commands.Dispatch:
    """Deal shards by the plan and record the assignments."""
    table, assigned = state.learners, planned.assigned
    learners, counts = planned.learners[assigned], planned.plan.shards[assigned]
    shards = deal(state, learners, counts)
    if not state.federated:
        state.last_shards = int(counts.sum())
    state.prefetched = EMPTY_CACHE
    table.work[learners], table.passes[learners] = (
        WorkStatus.ASSIGNED,
        planned.plan.updates[assigned],
    )
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
        tail_s=state.tail_s,
        predicted_s=planned.predicted_s[assigned],
        no_pass=planned.no_pass,
        drawn=drawn_learners(state, learners),
    )


def drawn_learners(state: CycleState, assigned: Ints) -> Ints:
    """Return the learners that take part in the cycle, if others are present."""
    if state.shared:
        return assigned
    return NO_INTS if state.task.sample is None else np.flatnonzero(state.learners.drawn)


def start_round(state: CycleState, at_s: float) -> None:
    """Set the limits of the round: the deadline, and how long updates are awaited after it."""
    deadline_s = state.task.deadline_s
    tail_s = max(MIN_TAIL_FRACTION * deadline_s, 2 * state.recent_lateness_s)
    state.tail_s = min(tail_s, MAX_TAIL_FRACTION * deadline_s)
    state.last_deadline_at_s = state.deadline_at_s
    state.stage, state.began_s, state.unaveraged = Stage.TRAINING, at_s, True
    state.quorum_from_s = state.deadline_at_s
    set_limit(state)
    state.recent_lateness_s /= 2


def set_limit(state: CycleState) -> None:
    """Let the round end when the quorum suffices; without a quorum after the tail."""
    latest_s = state.deadline_at_s + state.tail_s
    state.limit_s = latest_s if state.task.quorum == 1.0 else state.quorum_from_s


def describe_short_deadline(state: CycleState, count: int) -> str:
    """Describe a plan in which no learner has time for one pass over its shards."""
    return (
        f"deadline_s = {state.task.deadline_s:g} is too short: none of the {count} learners with "
        "shards can train them once in time; use a longer deadline_s or fewer samples"
    )


def reject_plan(state: CycleState, reason: str) -> Commands:
    """Fail the run in its first cycle; later, record an empty cycle and measure again.

    Learners that were not drawn for the first cycle may be able to train.
    """
    if state.cycle == 1 and draws_all(state):
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
            seconds=benchmark_s(state.task),
        )
    ]


def on_updates(state: CycleState, event: events.UpdatesReceived) -> Commands:
    """Count each assignment's update once, in its cycle or as a late one; withdraw all others."""
    awaited = state.expects_in_cycle(event.learners, event.cycle, event.attempts)
    late = state.expects_late(event.learners, event.cycle, event.attempts)
    receive_late(state, event, late)
    learners, attempts = event.learners[awaited], event.attempts[awaited]
    receive(state, event, awaited)
    if (awaited | late).any():
        learn_lateness(state, event)
    if state.schedule is not None:
        state.schedule.record_updates(event, awaited)
    replies: Commands = []
    if not (awaited | late).all():
        reason = "the update was already counted, or its cycle is closed"
        others = ~(awaited | late)
        replies += [withdraw(event.learners[others], event.cycle, event.attempts[others], reason)]
    if event.refused:
        replies += [withdraw(learners, event.cycle, attempts, event.refused)]
    if learners.size:
        replies += [*extend(state), *close_if_complete(state, event.at_s)]
    return replies


def receive(state: CycleState, event: events.UpdatesReceived, awaited: Bools) -> None:
    """Record the updates of this cycle; shards that they do not cover are handed on."""
    table, learners = state.learners, event.learners[awaited]
    released = state.taken_back
    take_back_unused(state, learners, event.attempts[awaited])
    table.work[learners] = WorkStatus.DROPPED if event.refused else WorkStatus.RECEIVED
    table.visits[learners] = 0 if event.refused else event.visits_of_plan[awaited]
    table.all_visits[learners] = plausible_visits(
        event.visits[awaited], table.samples[learners], table.passes[learners]
    )
    table.attempts[learners] = event.attempts[awaited]
    state.lost_work = event.refused or state.lost_work
    trained = table.visits[learners] > 0
    if not state.federated and trained.any():
        mark_held(state, learners[trained], event.shipped[awaited][trained], released)
    take_back_work(state, learners[~trained])


def take_back_unused(state: CycleState, learners: Ints, attempts: Ints) -> None:
    """Take back the shards of extensions that learners did not begin to train."""
    if not (attempts < state.learners.attempts[learners]).any():
        return
    for assigned in later_attempts(state, state.assignments, learners, attempts):
        if state.federated:
            np.subtract.at(state.learners.samples, assigned.learners, assigned.samples)
            np.subtract.at(state.learners.shards, assigned.learners, assigned.shards.counts)
            state.learners.local_shards.give_back(assigned.learners, assigned.shards)
        else:
            state.take_back(*assigned.pairs)


def learn_lateness(state: CycleState, event: events.UpdatesReceived) -> None:
    """Let the tails of the next cycles last for updates as late as these."""
    recent = {state.cycle: state.deadline_at_s, state.cycle - 1: state.last_deadline_at_s}
    if event.cycle in recent:
        lateness_s = event.at_s - recent[event.cycle]
        state.recent_lateness_s = max(state.recent_lateness_s, lateness_s)


def close_if_complete(state: CycleState, at_s: float) -> Commands:
    """Close the cycle if no update is awaited, or after the deadline if the quorum is in."""
    if state.stage is not Stage.TRAINING:
        return []
    complete = not state.learners.having(WorkStatus.ASSIGNED).size
    # An update has the instant of its arrival, which may lie before that of an earlier event.
    passed = at_s >= state.quorum_from_s or state.limit_s > state.quorum_from_s
    if complete or (passed and has_quorum(state)):
        return close_cycle(state, at_s)
    return []


def has_quorum(state: CycleState) -> bool:
    """Return whether the updates that are in have at least `quorum` of the planned weight."""
    table = state.learners
    received = table.samples[(table.work == WorkStatus.RECEIVED) & (table.visits > 0)].sum()
    awaited = table.samples[table.having(WorkStatus.ASSIGNED)].sum()
    quorum = state.task.quorum
    return bool(quorum < 1.0 and received > 0 and received >= quorum * (received + awaited))


def on_limit(state: CycleState, at_s: float) -> Commands:
    """Close the cycle; at the deadline only with the quorum, else wait for the tail."""
    latest_s = state.deadline_at_s + state.tail_s
    if at_s >= min(latest_s, state.stop_s) or has_quorum(state):
        return close_cycle(state, at_s)
    state.limit_s = latest_s
    return wake(state)


def close_cycle(state: CycleState, at_s: float) -> Commands:
    """Aggregate the updates that were received; open work is late or withdrawn."""
    if state.schedule is not None:
        state.schedule.record_close(at_s)
    ended = end_open_work(state)
    received = state.learners.having(WorkStatus.RECEIVED)
    if not state.learners.weights(received).any() and not state.carried:
        return [*ended, *record_empty_cycle(state, state.lost_work or NO_UPDATE)]
    state.empty_cycles = 0
    reason = "all updates are in"
    if state.learners.having(WorkStatus.LATE).size or ended:
        reason = "the deadline has passed"
    return [*ended, aggregate(state, received, reason), *prefetch(state)]


def end_open_work(state: CycleState) -> Commands:
    """Await open work as late updates, or withdraw it; shards of no learner return to the deck."""
    table = state.learners
    if state.task.late == "drop":
        take_back_work(state, table.having(WorkStatus.ASSIGNED))
    state.deck = state.deck.return_shards(state.to_hand_on)
    if state.task.late == "drop":
        return withdraw_open_work(state, "the deadline and the predicted tail have passed")
    return await_late(state, table.having(WorkStatus.ASSIGNED))


def prefetch(state: CycleState) -> Commands:
    """Let learners fetch what they will probably be given next, while the model is evaluated."""
    table, task = state.learners, state.task
    if not task.overlap or state.federated or state.cycle == task.cycles:
        return []
    if state.shared:
        return []  # The learners may train for other tasks next.
    if task.sample is not None and not draws_all(state):
        return []  # Others may be drawn next.
    learners = np.flatnonzero(table.present & (table.shards > 0))
    counts = table.shards[learners]
    if int(counts.sum()) > state.shard_samples.size:
        counts = np.minimum(counts, state.shard_samples.size)
    new = state.deck.next_new(learners, counts, table.held)
    rows = np.flatnonzero(new.counts)
    if not rows.size:
        return []
    new, learners = new.take(rows), learners[rows]
    state.prefetched = EMPTY_CACHE.union(new.values, learners[new.row_ids])
    shards = RaggedArray(new.counts, state.deck.shards[new.values])
    reason = "these shards probably come next"
    return [commands.Prefetch(reason=reason, learners=learners, shards=shards)]


def record_empty_cycle(state: CycleState, reason: str) -> Commands:
    """Keep the parameters, but for late updates; fail after `MAX_EMPTY_CYCLES` in a row.

    The run does not fail while it awaits learners that have all left.
    """
    if state.carried:
        state.empty_cycles = 0
        return [aggregate(state, NO_INTS, f"late updates only: {reason}")]
    state.empty_cycles, state.empty_reason = state.empty_cycles + 1, reason
    if state.empty_cycles >= MAX_EMPTY_CYCLES and not state.awaits_learners:
        problem = f"{MAX_EMPTY_CYCLES} cycles in a row were empty; cycle {state.cycle}: {reason}"
        return finish(state, "failed", problem)
    return [aggregate(state, NO_INTS, f"empty: {reason}")]


def aggregate(state: CycleState, received: Ints, reason: str) -> commands.Aggregate:
    """Average the updates whose weight is positive, and late ones, less the later they are."""
    state.stage = Stage.AGGREGATING
    weights = state.learners.weights(received)
    counted = weights > 0
    late = commands.LateUpdates.concatenate([commands.NO_LATE_UPDATES, *state.carried])
    discount = 1.0 + state.cycle - late.cycles
    state.carried = []
    if state.federated and state.task.guard != "off":
        limit = weight_limit(np.concatenate([weights[counted], late.weights]))
        weights, late_weights = np.minimum(weights, limit), np.minimum(late.weights, limit)
        late = msgspec.structs.replace(late, weights=late_weights)
    state.averaged = int(counted.sum()) + late.learners.size
    visits, steps = state.learners.all_visits[received][counted], NO_INTS
    if state.task.normalize:
        steps = count_steps(visits, state.learners.samples[received][counted], state.task.batch)
    return commands.Aggregate(
        reason=reason,
        cycle=state.cycle,
        learners=received[counted],
        attempts=state.learners.attempts[received][counted],
        weights=weights[counted],
        visits=visits,
        steps=steps,
        late=msgspec.structs.replace(late, weights=late.weights / discount),
        covered=cover(state, received[counted], late) if state.shared else None,
    )


def cover(state: CycleState, learners: Ints, late: commands.LateUpdates) -> commands.CoveredWork:
    """Return what the updates of these learners and late ones cover, and which are awaited."""
    table, awaited = state.learners, np.flatnonzero(state.learners.late_cycles)
    planned, visits = table.planned_visits(learners), table.visits[learners]
    covered = covered_shards(table.shards[learners], planned, visits)
    return commands.CoveredWork(
        learners=np.concatenate([learners, late.learners]),
        cycles=np.concatenate([np.full(learners.size, state.cycle), late.cycles]),
        shards=np.concatenate([covered, late.covered]),
        awaited=awaited,
        awaited_cycles=table.late_cycles[awaited].copy(),
    )


def weight_limit(weights: Floats) -> float:
    """Return the most that one update may weigh: `MAX_WEIGHT_FACTOR` times the lower median.

    In federated learning no other machine can verify how many samples a learner has.
    """
    if not weights.size:
        return np.inf
    return MAX_WEIGHT_FACTOR * float(np.sort(weights)[(weights.size - 1) // 2])


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
    """Request `TimeReached` at the time limit of the stage, or when the last cycle has to end."""
    at_s = min(state.limit_s, state.stop_s)
    return [commands.Wake(reason=f"time limit of {state.stage}", at_s=at_s)]


def finish(state: CycleState, outcome: commands.Outcome, reason: str) -> Commands:
    """Finish the run."""
    state.stage = Stage.FINISHED
    return [commands.Finish(reason=reason, outcome=outcome)]


def end_in_time(state: CycleState) -> Commands:
    """Finish a run whose total time is up, unless its last model is being evaluated."""
    if state.stage in (Stage.AGGREGATING, Stage.EVALUATING):
        return []
    if state.cycle <= 1:
        problem = "is too short: no cycle began in time; use a longer one"
        return finish(state, "failed", f"total_s = {state.task.total_s:g} {problem}")
    return finish(state, "finished", TIME_IS_UP)
