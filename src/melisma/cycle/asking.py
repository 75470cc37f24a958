"""Before work is given out: learners measure themselves, or say what they would take.

When nobody would take a shard by the deadline in the first cycle, the run asks on, with longer and
shorter deadlines, until it can say which would do. Still nothing but numbers of shards is told.
"""

from math import inf, sqrt

import numpy as np

from melisma.cycle import commands as do
from melisma.cycle import events as ev
from melisma.cycle.events import Ints
from melisma.cycle.planning import able, held_ahead
from melisma.cycle.state import Stage, State, Work
from melisma.cycle.training import Commands, dispatched, emptied, finish, wake

# After the first cycle answers are awaited for so many deadlines, longer where there is none yet.
ANSWER = 2.0
# How closely, and how far, the least deadline is looked for that somebody would take.
CLOSE, FAR = 1.01, 2.0**40


def next_cycle(state: State, at_s: float) -> Commands:
    """A cycle begins with what the scheme must know."""
    state.cycle += 1
    learners = state.learners
    learners.work[:] = Work.NONE
    learners.bounds[:] = -1
    learners.visits[:] = 0
    present = np.flatnonzero(learners.present)
    state.limit_s = at_s + ANSWER * state.task.deadline_s
    if state.scheme.needs == "bounds":
        state.stage = Stage.ASKING
        return [_ask(state, present, state.task.deadline_s), *wake(state)]
    unknown = np.setdiff1d(present, able(state))
    if unknown.size:
        state.stage = Stage.MEASURING
        return [
            do.Benchmark(
                reason=f"scheme {state.scheme.name} plans with their costs",
                learners=unknown,
                seconds=state.task.deadline_s,
            ),
            *wake(state),
        ]
    return dispatched(state, at_s)


def _ask(state: State, who: Ints, deadline_s: float) -> do.AskBound:
    why = "each learner bounds its own share"
    if state.stage is Stage.PROBING:
        why = "nobody would take a shard by the deadline: by which would somebody?"
    return do.AskBound(
        reason=why,
        learners=who,
        cycle=state.cycle,
        deadline_s=deadline_s,
        held=held_ahead(state, who),
    )


def bounds(state: State, event: ev.BoundsReported) -> Commands:
    """Answers to what was asked last; others are too late."""
    asked = {Stage.ASKING: state.task.deadline_s, Stage.PROBING: _probed_s(state)}
    if event.cycle != state.cycle or event.deadline_s != asked.get(state.stage):
        return []
    state.learners.bounds[event.learners] = event.shards
    return answered(state, event.at_s)


def answered(state: State, at_s: float) -> Commands:
    """Go on when all have answered, or when time is up and some have.

    Nobody knows how long the first benchmark takes: it is waited for.
    """
    who = able(state)
    all_have = who.size == state.learners.present.sum()
    if not who.size or not (all_have or (state.cycle > 1 and at_s >= state.limit_s)):
        return []
    if state.scheme.needs == "bounds" and not state.learners.bounds[who].any():
        return _nobody_asked(state)
    if state.stage is Stage.PROBING:
        return _probed(state, enough=True)
    return dispatched(state, at_s)


def _nobody_asked(state: State) -> Commands:
    if state.stage is Stage.PROBING:
        return _probed(state, enough=False)
    if state.cycle > 1:
        return emptied(state, "nobody asked for any shard")
    state.stage, state.probe = Stage.PROBING, (state.task.deadline_s, inf)
    return _probe(state)


def _probe(state: State) -> Commands:
    state.learners.bounds[:] = -1
    return [_ask(state, np.flatnonzero(state.learners.present), _probed_s(state))]


def _probed_s(state: State) -> float:
    short_s, long_s = state.probe
    return 2 * short_s if long_s == inf else sqrt(short_s * long_s)


def _probed(state: State, *, enough: bool) -> Commands:
    short_s, long_s = state.probe
    state.probe = (short_s, _probed_s(state)) if enough else (_probed_s(state), long_s)
    short_s, long_s = state.probe
    far_s = FAR * state.task.deadline_s
    if short_s < far_s if long_s == inf else long_s > CLOSE * short_s:
        return _probe(state)
    would = f"by {long_s:.3g} s somebody would" if long_s < inf else "nobody would by any"
    return finish(
        state,
        "failed",
        f"nobody can train a shard {state.task.passes} times by {state.task.deadline_s:g} s; "
        f"{would} (deadline_s)",
    )
