"""The global update cycle as a state machine: events in, commands out; no I/O, no clock.

A run starts when all expected learners have joined. Its loop, by event, until `Finish`::

    LearnersJoined            begin_run -> begin_cycle       request costs or bounds (`collecting`)
    Costs/BoundsReported      continue_if_ready -> dispatch  plan, deal and send work (`rounds`)
    ShardsRequested/Released  extend                         further shards (`extensions`)
    SharesGranted             on_granted -> assign           dispatch, if shared (`sharing`)
    UpdatesCommitted          on_committed                   check some of them (`trust`)
    UpdatesReceived           close_if_complete              aggregate when the last update is in
    TimeReached               on_time                        go on without the missing learners
    LearnersLeft              on_left                        await a learner if all have left
    Aggregated                on_aggregated                  evaluate the new model
    Evaluated                 on_evaluated                   begin_cycle again, or finish
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from melisma.allocation.schemes import get_scheme
from melisma.cycle import commands, events
from melisma.cycle.collecting import (
    ask_late,
    await_learners,
    begin_cycle,
    collect,
    continue_if_ready,
    on_bounds,
    on_costs,
    repeat_request,
)
from melisma.cycle.commands import Commands
from melisma.cycle.extensions import extend, on_released, on_requested, take_back_work
from melisma.cycle.late_work import lose_late
from melisma.cycle.restarts import on_continued, on_restarted, on_resumed
from melisma.cycle.rounds import (
    MAX_EMPTY_CYCLES,
    NO_UPDATE,
    TIME_IS_UP,
    close_if_complete,
    end_in_time,
    finish,
    on_limit,
    on_updates,
    withdraw,
    withdraw_open_work,
)
from melisma.cycle.sampling import await_next_draw, sample_size
from melisma.cycle.sharing import check_shared, on_granted, on_refused
from melisma.cycle.state import COLLECTING_STAGES, CycleState, Stage, WorkStatus
from melisma.cycle.trust import on_committed, record_checks
from melisma.disclosure import DISCLOSURE
from melisma.errors import MelismaError, SettingError
from melisma.fleet.array_types import Ints

# End the run after this many models in a row whose loss is not finite.
MAX_REJECTED_MODELS = 3


class CycleMachine:
    """Decides what happens in one run.

    It is deterministic: replaying the same events gives the same commands. With a `state` it goes
    on from there.
    """

    def __init__(self, state: CycleState | None = None) -> None:
        self._state = state

    @property
    def state(self) -> CycleState:
        """The state after the last event; `MelismaError` before `TaskSubmitted`."""
        if self._state is None:
            raise MelismaError("the machine has no state before TaskSubmitted")
        return self._state

    def handle(self, event: events.AnyEvent) -> Commands:
        """Update the state and return the commands that a driver has to carry out."""
        if isinstance(event, events.TaskSubmitted):
            self._state = submit(event)
            return []
        if self._state is None:
            raise MelismaError(f"{type(event).__name__} before any task was submitted")
        if self._state.stage is Stage.FINISHED and not isinstance(event, events.TaskContinued):
            return []
        return HANDLERS[type(event)](self._state, event)


def submit(event: events.TaskSubmitted) -> CycleState:
    """Return the state of a new run; `SettingError` if its scheme cannot run the task."""
    check_submission(event)
    return CycleState.from_submission(event)


def check_submission(event: events.TaskSubmitted) -> None:
    """Raise `SettingError` if the scheme of the task cannot run it."""
    task, scheme = event.task, get_scheme(event.task.scheme)
    if event.shared:
        check_shared(task, scheme)
        return
    scheme.check_cycle()
    scheme.check_passes(task.passes)
    learners = sample_size(task.sample, event.learner_count)
    needed, shards = task.min_shards * learners, event.shard_samples.size
    if scheme.hands_out_all and shards and needed > shards:
        raise SettingError(
            f"{learners} learners with min_shards = {task.min_shards} need {needed} "
            f"shards, but there are {shards}; use shard_samples <= {max(1, task.samples // needed)}"
        )


def on_registered(state: CycleState, event: events.LearnersRegistered) -> Commands:
    """Store the names of learners that may join."""
    state.learners.make_room(int(event.learners.max()) + 1)
    for learner, name in zip(event.learners.tolist(), event.names, strict=True):
        state.learners.names[learner] = name
    return []


def on_shared(state: CycleState, event: events.IdentitiesShared) -> Commands:  # noqa: ARG001 - for the report
    """Change nothing: each learner has one session, whatever devices use its identity."""
    return []


def on_progress(state: CycleState, event: events.ProgressReported) -> Commands:  # noqa: ARG001 - for the display
    """Change nothing: no decision depends on progress, which is therefore not journaled."""
    return []


def on_joined(state: CycleState, event: events.LearnersJoined) -> Commands:
    """Register learners; one that was present before has restarted, and its work is lost."""
    learners = state.learners
    learners.make_room(int(event.learners.max()) + 1)
    restarted = event.learners[learners.present[event.learners]]
    withdrawals = withdraw_restarted(state, restarted)
    forget(state, event.learners)
    learners.present[event.learners] = True
    # A learner that joins during collection was not asked, so do not wait for it.
    learners.answer_awaited[event.learners] = state.stage not in COLLECTING_STAGES
    await_next_draw(state, event.learners)
    levels = {level: number for number, level in enumerate(DISCLOSURE)}
    learners.discloses[event.learners] = [levels[level] for level in event.discloses]
    for learner, name in zip(event.learners.tolist(), event.names, strict=True):
        learners.names[learner] = name
    if len(event.local_shard_samples):
        learners.local_shards.add(event.learners, event.local_shard_samples, state.task.seed)
    asked = ask_late(state, event.learners, event.at_s)
    return [*withdrawals, *asked, *continue_run(state, event.at_s)]


def withdraw_restarted(state: CycleState, learners: Ints) -> Commands:
    """Withdraw the open assignments of learners that restarted."""
    at_work = learners[state.learners.work[learners] == WorkStatus.ASSIGNED]
    attempts = state.learners.attempts[at_work]
    if not at_work.size:
        return []
    return [withdraw(at_work, state.cycle, attempts, "the learner restarted")]


def forget(state: CycleState, learners: Ints) -> None:
    """Drop the open assignments of learners, and the costs and bounds that they reported."""
    table = state.learners
    table.costs[:, :, learners] = np.nan
    table.bounds[learners] = -1
    lose_late(state, learners)
    take_back_work(state, learners[table.work[learners] == WorkStatus.ASSIGNED])
    table.work[learners[table.work[learners] == WorkStatus.ASSIGNED]] = WorkStatus.DROPPED


def on_left(state: CycleState, event: events.LearnersLeft) -> Commands:
    """Remove learners; if none is left, await one, or fail the run if none can come back."""
    learners = state.learners
    learners.make_room(int(event.learners.max()) + 1)
    learners.present[event.learners] = False
    if (learners.work[event.learners] == WorkStatus.ASSIGNED).any():
        state.lost_work = f"{NO_UPDATE}; {event.reason}"
    forget(state, event.learners)
    joining = state.stage is Stage.JOINING
    if joining:
        state.expected -= event.learners.size
    if learners.present.any() or (joining and state.expected > 0):
        return continue_run(state, event.at_s)
    if joining or not state.awaits_learners:
        return finish(state, "failed", f"no learner is left: {event.reason}")
    if state.stage is Stage.WAITING:
        return []
    state.left_s, state.departure = event.at_s, event.reason
    if state.stage in (*COLLECTING_STAGES, Stage.SHARING):
        return await_learners(state)
    return continue_run(state, event.at_s)


def continue_run(state: CycleState, at_s: float) -> Commands:
    """Go on if a learner that joined or left was the last one to wait for."""
    if state.stage is Stage.JOINING:
        return begin_run(state, at_s)
    if state.stage is Stage.WAITING:
        return collect(state, at_s)
    if state.stage in COLLECTING_STAGES:
        return continue_if_ready(state, at_s)
    if state.stage is Stage.SHARING:
        return repeat_request(state, at_s)
    return [*extend(state), *close_if_complete(state, at_s)]


def begin_run(state: CycleState, at_s: float) -> Commands:
    """Begin the first cycle once all expected learners are present."""
    if state.learners.present.sum() < state.expected:
        return []
    problem = find_undisclosed(state)
    return finish(state, "failed", problem) if problem else begin_cycle(state, at_s)


def find_undisclosed(state: CycleState) -> str:
    """Describe the first learner that discloses less than the scheme needs; empty if none does."""
    learners, scheme, levels = state.learners, state.scheme, list(DISCLOSURE)
    private = learners.present & (learners.discloses < levels.index(state.needs))
    if not private.any():
        return ""
    first = int(private.argmax())
    discloses = levels[learners.discloses[first]]
    alternative = "dab" if discloses == "bounds" else "equal"
    alternative += " with passes" if state.task.passes is None else ""
    return (
        f"scheme {scheme.name} needs from each learner: {DISCLOSURE[state.needs]}; "
        f'{learners.names[first]} has discloses = "{discloses}": use scheme {alternative}'
    )


def on_time(state: CycleState, event: events.TimeReached) -> Commands:
    """End the stage if its time limit has been reached, or the run if its time is up."""
    if event.at_s < min(state.limit_s, state.stop_s):
        return []
    if event.at_s >= state.stop_s and state.stage is not Stage.TRAINING:
        return end_in_time(state)
    if state.stage is Stage.WAITING:
        problem = f"no learner is left: {state.departure}; none joined for {state.absence_s:g} s"
        return finish(state, "failed", problem)
    if state.stage in COLLECTING_STAGES:
        return continue_if_ready(state, event.at_s)
    return on_limit(state, event.at_s) if state.stage is Stage.TRAINING else []


def on_aggregated(state: CycleState, event: events.Aggregated) -> Commands:
    """Evaluate the new model; fail if all updates of several averages were left out."""
    state.unaveraged = False
    suspicions = record_checks(state, event.verified)
    all_left_out = 0 < state.averaged == int((event.scales == 0).sum())
    state.left_out_averages = state.left_out_averages + 1 if all_left_out else 0
    if state.left_out_averages >= MAX_EMPTY_CYCLES:
        if event.verified.reasons:
            problem = (
                f"no update of {MAX_EMPTY_CYCLES} cycles in a row was verified: "
                + (event.verified.reasons[0])
            )
            return finish(state, "failed", problem)
        problem = (
            f"all updates of {MAX_EMPTY_CYCLES} cycles in a row were left out, as they changed the "
            'model too far; optimizer.lr may be too large, or use guard = "off"'
        )
        return finish(state, "failed", problem)
    state.stage = Stage.EVALUATING
    evaluate = commands.Evaluate(reason="the cycle is aggregated", cycle=event.cycle)
    return [*suspicions, evaluate]


def on_evaluated(state: CycleState, event: events.Evaluated) -> Commands:
    """Finish the run, or begin the next cycle; a model that is of no use is not kept."""
    if not event.finite:
        return reject_model(state, event)
    state.rejected_models = 0
    stop = state.task.stop
    if stop.accuracy is not None and (event.accuracy or 0.0) >= stop.accuracy:
        return finish(state, "reached goal", f"the accuracy reached {stop.accuracy:g}")
    if stop.loss is not None and event.loss is not None and event.loss <= stop.loss:
        return finish(state, "reached goal", f"the loss fell to {stop.loss:g}")
    last = find_last_reason(state, event.at_s)
    if last and state.empty_cycles == state.cycle:
        return finish(state, "failed", f"no cycle had an update: {state.empty_reason}")
    return finish(state, "finished", last) if last else begin_cycle(state, event.at_s)


def find_last_reason(state: CycleState, at_s: float) -> str:
    """Return why this cycle is the last one; empty if it is not."""
    if state.schedule is not None:
        state.schedule.record_evaluation(at_s)
        if state.schedule.length_s(at_s, state.cycle) is None:
            return TIME_IS_UP
    return f"cycle {state.cycle} was the last" if state.cycle == state.task.cycles else ""


def reject_model(state: CycleState, event: events.Evaluated) -> Commands:
    """Restore the model before this cycle; fail after `MAX_REJECTED_MODELS` in a row.

    The run fails after its last cycle too: it did not end with a model of that cycle.
    """
    state.rejected_models += 1
    reason = f"the loss of the model after cycle {state.cycle} is not finite"
    restore = commands.Restore(reason=reason, cycle=state.cycle)
    if state.rejected_models >= MAX_REJECTED_MODELS:
        problem = (
            f"the loss was not finite after {MAX_REJECTED_MODELS} cycles in a row, and the model "
            "before them is kept; optimizer.lr may be too large, or a learner sends bad updates"
        )
        return [restore, *finish(state, "failed", problem)]
    if find_last_reason(state, event.at_s):
        problem = f"{reason}; the model before it is kept"
        return [restore, *finish(state, "failed", problem)]
    return [restore, *begin_cycle(state, event.at_s)]


def on_cancelled(state: CycleState, event: events.TaskCancelled) -> Commands:
    """Withdraw all open work and finish the run."""
    return [*withdraw_open_work(state, event.reason), *finish(state, "cancelled", event.reason)]


HANDLERS: dict[type[events.Event], Callable[[CycleState, Any], Commands]] = {
    events.LearnersRegistered: on_registered,
    events.LearnersJoined: on_joined,
    events.LearnersResumed: on_resumed,
    events.LearnersLeft: on_left,
    events.IdentitiesShared: on_shared,
    events.CostsReported: on_costs,
    events.BoundsReported: on_bounds,
    events.SharesGranted: on_granted,
    events.SharesRefused: on_refused,
    events.ProgressReported: on_progress,
    events.ShardsRequested: on_requested,
    events.ShardsReleased: on_released,
    events.UpdatesCommitted: on_committed,
    events.UpdatesReceived: on_updates,
    events.TimeReached: on_time,
    events.Aggregated: on_aggregated,
    events.Evaluated: on_evaluated,
    events.TaskCancelled: on_cancelled,
    events.TaskContinued: on_continued,
    events.OrchestratorRestarted: on_restarted,
}
