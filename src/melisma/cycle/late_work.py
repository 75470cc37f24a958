"""Late work: assignments whose cycle closed without their update, which may join a later average.

The update is awaited for `MAX_LATE_CYCLES`. If it is lost, because a later one of the same learner
is late too, it is overdue, refused or empty, or the learner left, its shards return to the deck at
once, unless they have been dealt again since.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.commands import Commands
from melisma.cycle.coverage import Coverage
from melisma.cycle.learner import count_steps
from melisma.cycle.ragged import RaggedArray
from melisma.cycle.state import (
    AssignedShards,
    CycleState,
    WorkStatus,
    covered_shards,
    plausible_visits,
    update_weights,
)
from melisma.fleet.array_types import NO_INTS, Bools, Ints

# A late update is awaited for this many cycles.
MAX_LATE_CYCLES = 3


def await_late(state: CycleState, learners: Ints) -> Commands:
    """Await the open work of these learners as late updates; withdraw earlier late ones."""
    table = state.learners
    overtaken = learners[table.late_cycles[learners] > 0]
    withdrawals = withdraw_late(state, overtaken, "a later update of the learner is late too")
    table.work[learners] = WorkStatus.LATE
    table.late_cycles[learners] = state.cycle
    table.late_attempts[learners] = table.attempts[learners]
    table.late_samples[learners] = table.samples[learners]
    table.late_passes[learners] = table.passes[learners]
    table.late_shards[learners] = table.shards[learners]
    for assigned in state.assignments:
        rows = np.flatnonzero(table.work[assigned.learners] == WorkStatus.LATE)
        if rows.size:
            part = state.without_trained_copies(state.without_taken_back(assigned.take(rows)))
            state.late_assignments.append((state.cycle, part))
    return withdrawals


def receive_late(state: CycleState, event: events.UpdatesReceived, late: Bools) -> None:
    """Keep late updates for the next average; refused or empty ones are lost."""
    table, learners = state.learners, event.learners[late]
    if not learners.size:
        return
    attempts = event.attempts[late]
    return_unused(state, event.cycle, learners, attempts)
    samples, passes = table.late_samples[learners], table.late_passes[learners]
    weights = update_weights(samples, passes, event.visits_of_plan[late])
    counted = (weights > 0) & (not event.refused)
    lose_late(state, learners[~counted])
    table.late_cycles[learners] = 0
    visits = plausible_visits(event.visits[late], samples, passes)
    covered = NO_INTS
    if state.shared:
        planned = samples * passes
        shards = table.late_shards[learners]
        covered = covered_shards(shards, planned, event.visits_of_plan[late])[counted]
    if counted.any():
        state.carried.append(
            commands.LateUpdates(
                learners[counted],
                np.full(int(counted.sum()), event.cycle),
                attempts[counted],
                weights[counted],
                visits[counted],
                count_steps(visits, samples, state.task.batch)[counted]
                if state.task.normalize
                else NO_INTS,
                covered,
            )
        )


def return_unused(state: CycleState, cycle: int, learners: Ints, attempts: Ints) -> None:
    """Return the shards of extensions that learners with late work did not begin to train."""
    table = state.learners
    if not (attempts < table.late_attempts[learners]).any():
        return
    assignments = [assigned for number, assigned in state.late_assignments if number == cycle]
    for assigned in later_attempts(state, assignments, learners, attempts):
        np.subtract.at(table.late_samples, assigned.learners, assigned.samples)
        np.subtract.at(table.late_shards, assigned.learners, assigned.shards.counts)
        return_shards(state, cycle, assigned.learners, assigned.shards)


def later_attempts(
    state: CycleState, assignments: Sequence[AssignedShards], learners: Ints, attempts: Ints
) -> Iterator[AssignedShards]:
    """Yield the assignments of these learners that are later than the given attempts."""
    coverage = Coverage(state.learners.present.size, learners, attempts)
    for assigned in assignments:
        rows = np.flatnonzero(coverage.excludes(assigned.learners, assigned.attempts))
        if rows.size:
            yield assigned.take(rows)


def lose_late(state: CycleState, learners: Ints) -> None:
    """Return the shards of late work that will not count; learners without any are ignored."""
    table = state.learners
    if not learners.size:
        return
    lost = np.zeros(table.present.size, np.bool_)
    lost[learners[table.late_cycles[learners] > 0]] = True
    if lost.any():
        for cycle, assigned in state.late_assignments:
            rows = lost[assigned.learners] & (table.late_cycles[assigned.learners] == cycle)
            part = assigned.take(np.flatnonzero(rows))
            return_shards(state, cycle, part.learners, part.shards)
    table.late_cycles[learners] = 0


def return_shards(state: CycleState, cycle: int, learners: Ints, shards: RaggedArray) -> None:
    """Return shards of a cycle to the deck, but for those that were dealt again since.

    In federated learning they come next on their devices; a device that has had work since then has
    had it in this cycle only.
    """
    if state.federated:
        if cycle < state.cycle:
            dealt = state.given.contains(learners[shards.row_ids], shards.values)
            shards = shards.select(~dealt)
        state.learners.local_shards.give_back(learners, shards)
    elif state.task.extension:
        positions = shards.values
        state.deck = state.deck.return_shards(positions[state.last_dealt[positions] == cycle])


def withdraw_late(state: CycleState, learners: Ints, reason: str) -> Commands:
    """Withdraw late assignments, one command for each cycle."""
    table, issued = state.learners, list[commands.AnyCommand]()
    for cycle in np.unique(table.late_cycles[learners]).tolist():
        members = learners[table.late_cycles[learners] == cycle]
        attempts = table.late_attempts[members]
        issued.append(
            commands.Withdraw(reason=reason, learners=members, cycle=cycle, attempts=attempts)
        )
    lose_late(state, learners)
    return issued


def withdraw_overdue(state: CycleState) -> Commands:
    """Withdraw assignments that have been late for too many cycles."""
    cycles, oldest = state.learners.late_cycles, state.cycle - MAX_LATE_CYCLES
    overdue = np.flatnonzero((cycles > 0) & (cycles < oldest))
    issued = withdraw_late(state, overdue, f"late for more than {MAX_LATE_CYCLES} cycles")
    state.late_assignments = [each for each in state.late_assignments if each[0] >= oldest]
    return issued
