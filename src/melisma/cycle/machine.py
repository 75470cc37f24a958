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
from melisma.cycle import commands, events
from melisma.cycle.collecting import answered, bounds, next_cycle
from melisma.cycle.ragged import Ints
from melisma.cycle.rounds import (
    Commands,
    closed,
    closed_if_all_in,
    finish,
    progress,
    updates,
    withdraw,
    withdrawn,
)
from melisma.cycle.state import LETS_OUT, Stage, State, Work
from melisma.errors import MelismaError, SettingError

# Learners are asked something, and answer.
ASKED = (Stage.MEASURING, Stage.ASKING, Stage.PROBING)


def step(state: State | None, event: events.Event) -> tuple[State, Commands]:
    """The state after the event, and what is to be done."""
    if isinstance(event, events.TaskSubmitted):
        return _submitted(event)
    if state is None:
        raise MelismaError(f"{type(event).__name__} before any task was submitted")
    if state.stage is Stage.FINISHED:
        return state, []
    return state, HEARD[type(event)](state, event)


def _submitted(event: events.TaskSubmitted) -> tuple[State, Commands]:
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


def _joined(state: State, event: events.LearnersJoined) -> Commands:
    learners = state.learners
    learners.make_room(int(event.learners.max()) + 1)
    said = _begun_anew(state, event.learners[learners.present[event.learners]])
    _forget(state, event.learners)
    learners.present[event.learners] = True
    # Who comes while learners are asked was not: it is not waited for.
    learners.silent[event.learners] = state.stage in ASKED
    learners.tells[event.learners] = [LETS_OUT.index(tells) for tells in event.tells]
    for learner, name in zip(event.learners.tolist(), event.names, strict=True):
        learners.names[learner] = name
    if len(event.own):
        learners.own.add(event.learners, event.own, state.task.seed)
    return [*said, *_gone_on(state, event.at_s)]


def _begun_anew(state: State, again: Ints) -> Commands:
    """Learners that were thought to be there have nothing more of what they were at."""
    at_work = again[state.learners.work[again] == Work.GIVEN]
    attempts = state.learners.attempts[at_work]
    if not at_work.size:
        return []
    return [withdraw(at_work, state.cycle, attempts, "the learner has begun anew")]


def _forget(state: State, gone: Ints) -> None:
    """What they were at is dropped, and what they told holds no longer."""
    learners = state.learners
    learners.costs[:, :, gone] = np.nan
    learners.bounds[gone] = -1
    learners.work[gone[learners.work[gone] == Work.GIVEN]] = Work.DROPPED


def _gone_on(state: State, at_s: float) -> Commands:
    """Go on, if nobody is waited for now that somebody has come or gone."""
    if state.stage in ASKED:
        return answered(state, at_s)
    return _begun_if_all_are_there(state, at_s) or closed_if_all_in(state)


def _begun_if_all_are_there(state: State, at_s: float) -> Commands:
    if state.stage is not Stage.GATHERING or state.learners.present.sum() < state.expected:
        return []
    refused = _untold(state)
    return finish(state, "failed", refused) if refused else next_cycle(state, at_s)


def _untold(state: State) -> str:
    """Why the scheme cannot have what it needs, or nothing."""
    learners, wanted = state.learners, LETS_OUT.index(state.scheme.needs)
    silent = np.flatnonzero(learners.present & (learners.tells < wanted))
    if not silent.size:
        return ""
    name, tells = learners.names[silent[0]], LETS_OUT[learners.tells[silent[0]]]
    less = "dab" if tells == "bounds" else "equal"
    return (
        f"scheme {state.scheme.name} must know from each learner: {state.scheme.before}; "
        f"{name} tells no more than {TOLD[tells]}: scheme {less} would do"
    )


def _left(state: State, event: events.LearnersLeft) -> Commands:
    learners = state.learners
    learners.make_room(int(event.learners.max()) + 1)
    learners.present[event.learners] = False
    _forget(state, event.learners)
    if state.stage is Stage.GATHERING:
        state.expected -= event.learners.size
    gathered = state.stage is not Stage.GATHERING or state.expected <= 0
    if gathered and not learners.present.any():
        return finish(state, "failed", f"no learner is left: {event.reason}")
    return _gone_on(state, event.at_s)


def _estimates(state: State, event: events.EstimatesReported) -> Commands:
    here = state.learners.present[event.learners]
    who = event.learners[here]
    state.learners.costs[:, :, who] = event.costs[:, :, here]
    state.learners.silent[who] = False
    return answered(state, event.at_s) if state.stage is Stage.MEASURING else []


def _time(state: State, event: events.TimeReached) -> Commands:
    if event.at_s < state.limit_s:
        return []
    if state.stage in ASKED:
        return answered(state, event.at_s)
    return closed(state) if state.stage is Stage.TRAINING else []


def _aggregated(state: State, event: events.Aggregated) -> Commands:
    state.stage = Stage.EVALUATING
    return [commands.Evaluate(reason="the cycle has a model", cycle=event.cycle)]


def _evaluated(state: State, event: events.Evaluated) -> Commands:
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


def _cancelled(state: State, event: events.TaskCancelled) -> Commands:
    return [*withdrawn(state, event.reason), *finish(state, "cancelled", event.reason)]


HEARD: dict[type[events.Event], Callable[[State, Any], Commands]] = {
    events.LearnersJoined: _joined,
    events.LearnersLeft: _left,
    events.EstimatesReported: _estimates,
    events.BoundsReported: bounds,
    events.ProgressReported: progress,
    events.UpdatesReceived: updates,
    events.TimeReached: _time,
    events.Aggregated: _aggregated,
    events.Evaluated: _evaluated,
    events.TaskCancelled: _cancelled,
}
