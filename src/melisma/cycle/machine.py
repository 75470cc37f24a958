"""The global update cycle: events in, commands out; no I/O, no clock, no chance of its own.

A task goes through its stages: learners join; they measure themselves, or say what they would take
(`asking`); a scheme shares the work out (`planning`, `dealing`); they train, and what came by the
deadline is averaged and scored (`training`); the next cycle begins. The state that `step` is given
is used up: go on with the one that it returns.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from melisma.allocation.schemes import TOLD
from melisma.cycle import commands as do
from melisma.cycle import events as ev
from melisma.cycle.asking import answered, bounds, next_cycle
from melisma.cycle.state import Stage, State, Work
from melisma.cycle.training import (
    Commands,
    closed,
    closed_if_all_in,
    finish,
    progress,
    updates,
    withdrawn,
)
from melisma.errors import MelismaError, SettingError

LETS_OUT = ("nothing", "bounds", "costs")


def step(state: State | None, event: ev.Event) -> tuple[State, Commands]:
    """The state after the event, and what is to be done."""
    if isinstance(event, ev.TaskSubmitted):
        return _submitted(event)
    if state is None:
        raise MelismaError(f"{type(event).__name__} before any task was submitted")
    if state.stage is Stage.FINISHED:
        return state, []
    return state, HEARD[type(event)](state, event)


def _submitted(event: ev.TaskSubmitted) -> tuple[State, Commands]:
    state = State.of(event)
    task, scheme = state.task, state.scheme
    if scheme.problem != "cycle":
        raise SettingError(
            f"scheme {scheme.name} plans no cycle of one task; "
            "equal, proportional, synchronous, staleness and dab do"
        )
    scheme.check_passes(task.passes)
    least = task.min_shards * event.learners
    if scheme.hands_out_all and event.samples.size and least > event.samples.size:
        enough = max(1, task.samples // least)
        raise SettingError(
            f"{event.learners} learners with min_shards of {task.min_shards} need {least} shards; "
            f"there are {event.samples.size}: shard_samples of {enough} would do"
        )
    if scheme.needs == "nothing" and task.passes is None:
        raise SettingError(f"scheme {scheme.name} knows nothing of learners, so it needs passes")
    return state, []


def _joined(state: State, event: ev.LearnersJoined) -> Commands:
    learners = state.learners
    learners.make_room(int(event.learners.max()) + 1)
    learners.present[event.learners] = True
    for place, learner in enumerate(event.learners.tolist()):
        learners.names[learner] = event.names[place]
        learners.tells[learner] = event.tells[place]
        if event.own:
            learners.own[learner] = event.own[place]
    return _begun_if_all_are_there(state, event.at_s)


def _begun_if_all_are_there(state: State, at_s: float) -> Commands:
    if state.stage is not Stage.GATHERING or state.learners.present.sum() < state.expected:
        return []
    refused = _untold(state)
    return finish(state, "failed", refused) if refused else next_cycle(state, at_s)


def _untold(state: State) -> str:
    """Why the scheme cannot have what it needs, or nothing."""
    wanted = LETS_OUT.index(state.scheme.needs)
    present = np.flatnonzero(state.learners.present).tolist()
    silent = [k for k in present if LETS_OUT.index(state.learners.tells[k]) < wanted]
    if not silent:
        return ""
    name, tells = state.learners.names[silent[0]], state.learners.tells[silent[0]]
    less = "dab" if tells == "bounds" else "equal"
    return (
        f"scheme {state.scheme.name} must know from each learner: {state.scheme.before}; "
        f"{name} tells no more than {TOLD[tells]}: scheme {less} would do"
    )


def _left(state: State, event: ev.LearnersLeft) -> Commands:
    learners = state.learners
    learners.present[event.learners] = False
    learners.costs[:, :, event.learners] = np.nan
    learners.bounds[event.learners] = -1
    given = event.learners[learners.work[event.learners] == Work.GIVEN]
    learners.work[given] = Work.DROPPED
    if state.stage is Stage.GATHERING:
        state.expected -= event.learners.size
    gathered = state.stage is not Stage.GATHERING or state.expected <= 0
    if gathered and not learners.present.any():
        return finish(state, "failed", f"no learner is left: {event.reason}")
    if state.stage in (Stage.MEASURING, Stage.ASKING, Stage.PROBING):
        return answered(state, event.at_s)
    return _begun_if_all_are_there(state, event.at_s) or closed_if_all_in(state)


def _estimates(state: State, event: ev.EstimatesReported) -> Commands:
    state.learners.costs[:, :, event.learners] = event.costs
    state.learners.silent[event.learners] = False
    return answered(state, event.at_s) if state.stage is Stage.MEASURING else []


def _time(state: State, event: ev.TimeReached) -> Commands:
    if event.at_s < state.limit_s:
        return []
    if state.stage in (Stage.MEASURING, Stage.ASKING, Stage.PROBING):
        return answered(state, event.at_s)
    return closed(state) if state.stage is Stage.TRAINING else []


def _aggregated(state: State, event: ev.Aggregated) -> Commands:
    state.stage = Stage.EVALUATING
    return [do.Evaluate(reason="the cycle has a model", cycle=event.cycle)]


def _evaluated(state: State, event: ev.Evaluated) -> Commands:
    stop = state.task.stop
    if stop.accuracy is not None and (event.accuracy or 0.0) >= stop.accuracy:
        return finish(state, "stopped", f"the accuracy reached {stop.accuracy:g}")
    if stop.loss is not None and event.loss is not None and event.loss <= stop.loss:
        return finish(state, "stopped", f"the loss fell to {stop.loss:g}")
    if state.cycle >= state.task.cycles and state.empty == state.cycle:
        return finish(state, "failed", f"no cycle had an update: {state.why}")
    if state.cycle >= state.task.cycles:
        return finish(state, "done", f"cycle {state.cycle} was the last")
    return next_cycle(state, event.at_s)


def _cancelled(state: State, event: ev.TaskCancelled) -> Commands:
    return [*withdrawn(state, event.reason), *finish(state, "cancelled", event.reason)]


HEARD: dict[type[ev.Event], Callable[[State, Any], Commands]] = {
    ev.LearnersJoined: _joined,
    ev.LearnersLeft: _left,
    ev.EstimatesReported: _estimates,
    ev.BoundsReported: bounds,
    ev.ProgressReported: progress,
    ev.UpdatesReceived: updates,
    ev.TimeReached: _time,
    ev.Aggregated: _aggregated,
    ev.Evaluated: _evaluated,
    ev.TaskCancelled: _cancelled,
}
