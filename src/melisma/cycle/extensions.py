"""Further shards within a cycle, for learners that will be done early or that come late.

Shards of a learner that left, or that will not get to them, are handed on first; then come shards
of the deck that were not dealt in this cycle. A request that cannot be met stays open until the
cycle ends. In federated learning a learner is given further shards of its own.
"""

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.commands import Commands
from melisma.cycle.dealing import match_holders
from melisma.cycle.learner import bound_by_costs
from melisma.cycle.planning import deal, dismiss, give, is_ready, reported_costs
from melisma.cycle.ragged import NO_ROWS, RaggedArray
from melisma.cycle.state import CycleState, Stage, WorkStatus
from melisma.fleet.array_types import NO_INTS, Ints

# A learner that is ready after its cycle began is given work if this part of the deadline is left.
MIN_LEFT_FRACTION = 0.2


def on_requested(state: CycleState, event: events.ShardsRequested) -> Commands:
    """Give learners at work further shards, or remember that they want some."""
    if not state.task.extension or not _is_open(state, event.cycle):
        return []
    at_work = state.learners.work[event.learners] == WorkStatus.ASSIGNED
    state.learners.wanted[event.learners[at_work]] = event.shards[at_work]
    return extend(state)


def on_released(state: CycleState, event: events.ShardsReleased) -> Commands:
    """Take back shards that learners will not get to, and hand them on."""
    if not state.task.extension or state.federated or not _is_open(state, event.cycle):
        return []
    learners = event.learners[event.shards.row_ids]
    valid = (state.learners.work[learners] == WorkStatus.ASSIGNED) & (
        event.shards.values < state.shard_samples.size
    )
    positions = state.deck.positions_of(event.shards.values[valid])
    state.take_back(learners[valid], positions)
    return extend(state)


def _is_open(state: CycleState, cycle: int) -> bool:
    return state.stage is Stage.TRAINING and cycle == state.cycle


def take_back_work(state: CycleState, learners: Ints) -> None:
    """Take back the shards of learners whose work is lost, so that they are handed on."""
    if state.task.extension and not state.federated and state.stage is Stage.TRAINING:
        lost = np.zeros(state.learners.present.size, np.bool_)
        lost[learners] = True
        if lost.any():
            state.take_back(*state.given.of_keys(lost))


def extend(state: CycleState) -> Commands:
    """Answer open requests with the shards that there are."""
    table = state.learners
    if state.stage is not Stage.TRAINING or not state.task.extension:
        return []
    learners = np.flatnonzero((table.wanted > 0) & (table.work == WorkStatus.ASSIGNED))
    learners, shards, handed_on = supply(state, learners, table.wanted[learners])
    if not learners.size:
        return []
    table.wanted[learners] -= shards.counts
    reason = "they will be done before the deadline"
    if handed_on.size:
        reason += f"; {handed_on.size} shards are handed on"
    return [
        commands.Extend(
            reason=reason,
            learners=learners,
            cycle=state.cycle,
            attempts=table.attempts[learners].copy(),
            shards=shards,
            passes=table.passes[learners].copy(),
            handed_on=handed_on,
        )
    ]


def supply(
    state: CycleState, learners: Ints, wanted: Ints, *, copies: bool = False
) -> tuple[Ints, RaggedArray, Ints]:
    """Give learners up to the wanted shards; with `copies` also shards that others train.

    Returns the learners that get any, their shards, and those of the shards that are handed on.
    """
    table, most = state.learners, state.task.max_shards
    if most is not None:
        wanted = np.minimum(wanted, np.maximum(most - table.shards[learners], 0))
    if state.federated:
        return *supply_local(state, learners, wanted), NO_INTS
    rows, positions = hand_on(state, learners, wanted)
    handed_on = state.deck.shards[positions]
    counts = wanted - np.bincount(rows, minlength=learners.size)
    undealt = max(state.shard_samples.size - state.dealt_shards, 0)
    if copies and int(counts.sum()) > undealt:
        # A copy of a shard that is handed on could go to the same learner.
        counts = np.where(counts < wanted, 0, np.minimum(counts, state.shard_samples.size))
    else:
        counts = np.clip(undealt - (np.cumsum(counts) - counts), 0, counts)
    new_rows, new_positions = _deal_more(state, learners, counts)
    rows, positions = np.concatenate([rows, new_rows]), np.concatenate([positions, new_positions])
    return *_give_pairs(state, learners, rows, positions), handed_on


def _deal_more(state: CycleState, learners: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Deal the next shards of the deck; return pairs of a row of `learners` and a position."""
    rows = np.flatnonzero(counts)
    if not rows.size:
        return NO_INTS, NO_INTS
    held, before = state.learners.held, state.dealt
    state.deck, dealt, _ = state.deck.deal(learners[rows], counts[rows], held, before)
    state.record_dealt(dealt.values)
    return rows[dealt.row_ids], dealt.values


def _give_pairs(
    state: CycleState, learners: Ints, rows: Ints, positions: Ints
) -> tuple[Ints, RaggedArray]:
    """Give learners the positions paired with their rows; return those that get any, and these."""
    counts = np.bincount(rows, minlength=learners.size)
    learners = learners[counts > 0]
    given = RaggedArray(counts[counts > 0], positions[np.argsort(rows, kind="stable")])
    if not learners.size:
        return learners, given
    new = given.select(~state.learners.held.contains(given.values, learners[given.row_ids]))
    return learners, give(state, learners, given, new)


def supply_local(state: CycleState, learners: Ints, wanted: Ints) -> tuple[Ints, RaggedArray]:
    """Give learners up to the wanted shards of their own; return those that get any, and these."""
    table = state.learners
    left = table.local_shards.count_of(learners) - table.shards[learners]
    counts = np.minimum(wanted, left)
    rows = np.flatnonzero(counts > 0)
    if not rows.size:
        return NO_INTS, NO_ROWS
    return learners[rows], deal(state, learners[rows], counts[rows])


def hand_on(state: CycleState, learners: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """Take shards of other learners for these; return pairs of a row of `learners` and a position.

    A learner first gets shards that it holds, which it need not fetch. It does not get back a shard
    that it was given in this cycle.
    """
    parts = []
    for choose in (_choose_held, _choose_next, _choose_singly):
        if not state.to_hand_on.size or not wanted.any():
            break
        rows, positions = choose(state, learners, wanted)
        state.to_hand_on = np.setdiff1d(state.to_hand_on, positions)
        wanted = wanted - np.bincount(rows, minlength=wanted.size)
        parts.append((rows, positions))
    if not parts:
        return NO_INTS, NO_INTS
    rows, positions = (np.concatenate(part) for part in zip(*parts, strict=True))
    return rows, positions


def _choose_held(state: CycleState, learners: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """Choose shards to hand on that learners hold, up to the wanted number."""
    positions = state.to_hand_on
    shards, rows = state.deck.holders(positions, learners, state.learners.held)
    allowed = ~state.had(learners[rows], positions[shards])
    keepers = match_holders(shards[allowed], rows[allowed], positions.size, wanted)
    kept = keepers >= 0
    return keepers[kept], positions[kept]


def _choose_next(state: CycleState, learners: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """Choose the next shards to hand on for all learners at once, less those that they had."""
    count = state.to_hand_on.size
    rows = np.repeat(np.arange(learners.size), np.minimum(wanted, count))[:count]
    positions = state.to_hand_on[: rows.size]
    allowed = ~state.had(learners[rows], positions)
    return rows[allowed], positions[allowed]


def _choose_singly(state: CycleState, learners: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """Choose for one learner after another, where some had shards that others may get."""
    rows, positions, left = [NO_INTS], [NO_INTS], state.to_hand_on
    for row in np.flatnonzero(wanted).tolist():
        had = state.had(np.full(left.size, learners[row]), left)
        chosen = left[~had][: wanted[row]]
        left = np.setdiff1d(left, chosen)
        rows.append(np.full(chosen.size, row))
        positions.append(chosen)
        if not left.size:
            break
    return np.concatenate(rows), np.concatenate(positions)


def admit(state: CycleState, learners: Ints, at_s: float) -> Commands:
    """Give work to those of the learners that had none: they are ready after the cycle began.

    If the shards that are left do not suffice, they train copies of shards of others.
    """
    left_s, table = state.deadline_at_s - at_s, state.learners
    if state.stage is not Stage.TRAINING or not state.task.extension:
        return []
    if state.shared:
        return []  # The others train for other tasks.
    if left_s < MIN_LEFT_FRACTION * state.task.deadline_s:
        return []
    # A sort of the million learners that can answer at once takes longer than a mask.
    admitted = np.zeros(table.present.size, np.bool_)
    admitted[learners] = True
    admitted &= is_ready(state) & (table.work == WorkStatus.NONE)
    learners = np.flatnonzero(admitted)
    if not learners.size:
        return []
    passes = _passes_of_others(state)
    try:
        wanted = _bounds(state, learners, passes, left_s)
    except Exception:  # noqa: BLE001 - whatever the numbers of one learner cause
        if learners.size == 1:
            return dismiss(state, learners.tolist())
        # Learners that became ready together: find the one whose costs cannot be used.
        return [command for each in learners[:, None] for command in admit(state, each, at_s)]
    learners, shards, _ = supply(state, learners, wanted, copies=True)
    if not learners.size:
        return []
    table.work[learners], table.passes[learners] = WorkStatus.ASSIGNED, passes
    return [
        commands.Dispatch(
            reason="ready after the cycle began",
            learners=learners,
            cycle=state.cycle,
            attempts=table.attempts[learners].copy(),
            shards=shards,
            passes=table.passes[learners].copy(),
            seconds_left=left_s,
            tail_s=state.tail_s,
            predicted_s=np.full(learners.size, np.nan),
        )
    ]


def _passes_of_others(state: CycleState) -> int:
    """Return the passes that the task fixes, or the least that a learner of this cycle makes."""
    if state.task.passes is not None:
        return state.task.passes
    assigned = state.learners.passes[state.learners.having(WorkStatus.ASSIGNED)]
    return int(assigned.min()) if assigned.size else 1


def _bounds(state: CycleState, learners: Ints, passes: int, left_s: float) -> Ints:
    """Return the shards that each learner can train in the seconds left."""
    table, task = state.learners, state.task
    if state.needs == "bounds":
        share = left_s / task.deadline_s
        # A learner halts in time, so a last shard that it may not finish does no harm.
        shards: Ints = np.ceil(table.bounds[learners] * share).astype(np.int64)
        return np.maximum(shards, 0)
    if state.needs != "costs" or not learners.size:
        return np.zeros(learners.size, np.int64)
    return bound_by_costs(reported_costs(state, learners), task, left_s, passes, 0)
