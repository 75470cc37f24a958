"""What changes when the orchestrator or a learner restarts, or when an ended run goes on.

The state of the machine is restored by replaying the events of the run. Timers, and instructions
that learners had not received, are lost with the process: they are issued again. A learner that
has received an instruction ignores its repetition.

Learners find the orchestrator again up to `reconnect_s` after its restart. Until then no cycle is
closed by its quorum: work that was done by the deadline could not be delivered. For an update that
was on its way, the tail begins anew.
"""

import msgspec
import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.collecting import (
    ask_bound,
    ask_late,
    await_learners,
    benchmark,
    collect,
    probe,
    probe_deadline_s,
    repeat_request,
)
from melisma.cycle.commands import Commands
from melisma.cycle.late_work import lose_late
from melisma.cycle.learner import MAX_SILENCE_S
from melisma.cycle.planning import ready_learners
from melisma.cycle.ragged import RaggedArray
from melisma.cycle.rounds import MAX_TAIL_FRACTION, end_in_time, set_limit, wake
from melisma.cycle.state import COLLECTING_STAGES, CycleState, Stage, WorkStatus
from melisma.fleet.array_types import Ints

# Learners that find the orchestrator gone try again after pauses no longer than the time that it
# has been gone, nor longer than this.
MAX_RECONNECT_S = 8.0
# A learner that restarts is awaited for this part of the deadline, within these limits.
RESTART_FRACTION, MIN_RESTART_S, MAX_RESTART_S = 1 / 3, MAX_SILENCE_S, 30.0
# A learner saves its training at most this often.
SAVE_S = 5.0
# The attempt of an assignment; those after it are its extensions.
FIRST_ATTEMPT = 1


def reconnect_s(downtime_s: float) -> float:
    """Return how long after a restart the last learner calls again."""
    return min(downtime_s, MAX_RECONNECT_S)


def restart_limit_s(deadline_s: float) -> float:
    """Return how long a learner may take to restart and go on with its work."""
    return min(max(RESTART_FRACTION * deadline_s, MIN_RESTART_S), MAX_RESTART_S)


def on_restarted(state: CycleState, event: events.OrchestratorRestarted) -> Commands:
    """Ask again what has not been answered, and repeat the assignments of learners at work."""
    if state.stage is Stage.TRAINING:
        return continue_round(state, event)
    if state.schedule is not None:
        state.schedule.exclude(event.downtime_s)
    if event.at_s >= state.stop_s:
        return end_in_time(state)
    if state.stage is Stage.COLLECTING:
        return collect(state, event.at_s)
    if state.stage is Stage.PROBING:
        return probe(state, event.at_s)
    if state.stage is Stage.SHARING:
        return repeat_request(state, event.at_s)
    if state.stage is Stage.WAITING:
        state.left_s = event.at_s
        return await_learners(state)
    return []


def continue_round(state: CycleState, event: events.OrchestratorRestarted) -> Commands:
    """Wait for learners to call again, repeat their assignments, and ask those without any."""
    calls_s = event.at_s + reconnect_s(event.downtime_s)
    if state.schedule is not None and calls_s > state.stop_s:
        # Its time was up while it was down; the work of this cycle is not lost for that.
        state.schedule.ends_s = calls_s + state.schedule.closing_s
    state.quorum_from_s = max(state.quorum_from_s, calls_s)
    latest_s = calls_s + MAX_TAIL_FRACTION * state.task.deadline_s
    state.tail_s = max(state.tail_s, latest_s - state.deadline_at_s)
    set_limit(state)
    present = state.learners.present
    idle = present & (state.learners.work == WorkStatus.NONE)
    unanswered = np.setdiff1d(np.flatnonzero(idle), ready_learners(state))
    at_work = state.learners.having(WorkStatus.ASSIGNED)
    return [
        *resend(state, at_work, event.at_s),
        *ask_late(state, unanswered, event.at_s),
        *wake(state),
    ]


def on_resumed(state: CycleState, event: events.LearnersResumed) -> Commands:
    """Repeat what learners that restarted were to do."""
    learners = np.unique(event.learners[event.learners < state.learners.present.size])
    learners = learners[state.learners.present[learners]]
    at_work = learners[state.learners.work[learners] == WorkStatus.ASSIGNED]
    idle = learners[state.learners.work[learners] == WorkStatus.NONE]
    if state.stage in COLLECTING_STAGES:
        return ask(state, learners)
    return [*resend(state, at_work, event.at_s), *ask_late(state, idle, event.at_s)]


def ask(state: CycleState, learners: Ints) -> Commands:
    """Ask learners again for the costs or bounds that are being collected."""
    learners = learners[state.learners.drawn[learners]]
    if not learners.size:
        return []
    if state.needs != "bounds":
        return [benchmark(state, learners)]
    probing = state.stage is Stage.PROBING
    deadline_s = probe_deadline_s(state) if probing else state.task.deadline_s
    return [ask_bound(state, learners, deadline_s)]


def resend(state: CycleState, learners: Ints, at_s: float) -> Commands:
    """Repeat the assignments of learners, and their extensions, one command for each of them."""
    if state.stage is not Stage.TRAINING or not learners.size:
        return []
    issued: Commands = []
    for assigned in state.assignments:
        part = assigned.take(np.flatnonzero(np.isin(assigned.learners, learners)))
        part = state.without_taken_back(part)
        # An assignment is repeated even without shards: its extensions belong to it.
        part = part.take(np.flatnonzero((part.attempts == 1) | (part.shards.counts > 0)))
        if not part.learners.size:
            continue
        shards = part.shards
        if not state.federated:
            shards = RaggedArray(shards.counts, state.deck.shards[shards.values])
        issued.append(
            commands.Resend(
                reason="the instruction may be lost with a process that restarted",
                learners=part.learners,
                cycle=state.cycle,
                attempts=part.attempts,
                shards=shards,
                passes=state.learners.passes[part.learners].copy(),
                seconds_left=max(0.0, state.deadline_at_s - at_s),
            )
        )
    return issued


def on_continued(state: CycleState, event: events.TaskContinued) -> Commands:
    """Go on after the end of a run, once `learner_count` learners have joined again.

    Shards whose updates are in no model, as the run ended before, are dealt first.
    """
    lose_late(state, np.flatnonzero(state.learners.late_cycles))
    if state.unaveraged:
        return_open_work(state)
    state.task = msgspec.structs.replace(state.task, cycles=event.cycles, stop=event.stop)
    if state.schedule is not None and event.ends_s is not None:
        state.schedule.ends_s = event.ends_s
    state.learners.present[:] = False
    state.learners.work[:] = WorkStatus.NONE
    state.learners.late_cycles[:] = 0
    state.carried, state.late_assignments = [], []
    state.stage, state.expected = Stage.JOINING, event.learner_count
    state.empty_cycles = state.rejected_models = state.left_out_averages = 0
    state.unanswered_requests = 0
    return []


def return_open_work(state: CycleState) -> None:
    """Return the shards of a cycle that was interrupted before its average."""
    for assigned in state.assignments:
        # That of late learners was returned before.
        rows = state.learners.work[assigned.learners] != WorkStatus.LATE
        part = state.without_taken_back(assigned.take(np.flatnonzero(rows)))
        if state.federated:
            state.learners.local_shards.give_back(part.learners, part.shards)
        else:
            state.deck = state.deck.return_shards(part.shards.values)
    state.deck = state.deck.return_shards(state.to_hand_on)
    state.unaveraged = False
