"""Before work is given out: learners measure themselves, or say what they would take.

When nobody would take a shard by the deadline in the first cycle, the run asks on, with longer and
shorter deadlines, until it can say which would do. Still nothing but numbers of shards is told.
"""

from math import inf, sqrt

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.planning import able, held_ahead
from melisma.cycle.ragged import Ints
from melisma.cycle.rounds import EMPTY, Commands, dispatched, emptied, finish, wake
from melisma.cycle.state import Stage, State, Work

# Answers are awaited for so many deadlines, and longer where there is none yet. Nobody knows how
# long the first benchmark takes: for that, at least so many times as long as the last who answered.
ANSWER, PATIENCE = 2.0, 5.0
# As long as nobody has answered, a deadline of milliseconds says nothing of how long that takes.
ANYBODY_S = 10.0
# How closely, and how far, the least deadline is looked for that somebody would take.
CLOSE, FAR = 1.01, 2.0**40
# The next benchmark will not say quite the same.
MARGIN = 1.25


def next_cycle(state: State, at_s: float) -> Commands:
    """A cycle begins with what the scheme must know."""
    state.cycle += 1
    learners = state.learners
    learners.work[:] = Work.NONE
    learners.bounds[:] = -1
    learners.visits[:] = 0
    state.refused = ""
    present = np.flatnonzero(learners.present)
    state.asked_s, state.limit_s = at_s, at_s + ANSWER * state.task.deadline_s
    if state.scheme.needs == "bounds":
        state.stage = Stage.ASKING
        return [_ask(state, present, state.task.deadline_s), *wake(state)]
    known = able(state)
    unknown = np.setdiff1d(present, known)
    asked = [_benchmark(state, unknown)] if unknown.size else []
    if not learners.silent[unknown].all() or not known.size:
        state.stage = Stage.MEASURING
        return [*asked, *wake(state)]
    return [*asked, *dispatched(state, at_s)]


def _benchmark(state: State, who: Ints) -> commands.Benchmark:
    return commands.Benchmark(
        reason=f"scheme {state.scheme.name} plans with their costs",
        learners=who,
        seconds=state.task.deadline_s,
    )


def _ask(state: State, who: Ints, deadline_s: float) -> commands.AskBound:
    why = "each learner bounds its own share"
    if state.stage is Stage.PROBING:
        why = "nobody would take a shard by the deadline: by which would somebody?"
    return commands.AskBound(
        reason=why,
        learners=who,
        cycle=state.cycle,
        deadline_s=deadline_s,
        held=held_ahead(state, who),
    )


def bounds(state: State, event: events.BoundsReported) -> Commands:
    """Answers to what was asked last; others are too late."""
    asked = {Stage.ASKING: state.task.deadline_s, Stage.PROBING: _probed_s(state)}
    if event.cycle != state.cycle:
        return []
    here = state.learners.present[event.learners]
    who, shards = event.learners[here], event.shards[here]
    # Who asks for nothing measures itself again, and is not waited for until it asks for more.
    state.learners.silent[who] = shards == 0
    if event.deadline_s != asked.get(state.stage):
        return []
    state.learners.bounds[who] = shards
    return answered(state, event.at_s)


def answered(state: State, at_s: float) -> Commands:
    """Go on when all who are waited for have answered, or when time is up and some have."""
    who, learners = able(state), state.learners
    missing = learners.present & ~learners.silent
    missing[who] = False
    if not who.size:
        return _asked_again(state, at_s) if at_s >= state.limit_s else []
    state.unanswered = 0
    if missing.any() and at_s < state.limit_s:
        return _more_time(state, at_s)
    learners.silent |= missing
    if state.scheme.needs == "bounds" and not state.learners.bounds[who].any():
        return _nobody_asked(state, at_s)
    if state.stage is Stage.PROBING:
        return _probed(state, at_s, enough=True)
    return dispatched(state, at_s)


def _asked_again(state: State, at_s: float) -> Commands:
    """Nobody has answered: what was asked may be lost, or so may the answers."""
    soon_s = state.asked_s + ANYBODY_S
    if at_s < soon_s:
        state.limit_s = soon_s
        return wake(state)
    state.unanswered += 1
    if state.unanswered >= EMPTY:
        return finish(state, "failed", f"nobody answered, though asked {EMPTY} times")
    state.asked_s = at_s
    state.limit_s = at_s + 2.0**state.unanswered * ANSWER * state.task.deadline_s
    present = np.flatnonzero(state.learners.present)
    if state.stage is Stage.MEASURING:
        return [_benchmark(state, present), *wake(state)]
    probing = state.stage is Stage.PROBING
    asked_s = _probed_s(state) if probing else state.task.deadline_s
    return [_ask(state, present, asked_s), *wake(state)]


def _more_time(state: State, at_s: float) -> Commands:
    later_s = state.asked_s + PATIENCE * (at_s - state.asked_s)
    if state.cycle > 1 or later_s <= state.limit_s:
        return []
    state.limit_s = later_s
    return wake(state)


def _nobody_asked(state: State, at_s: float) -> Commands:
    if state.stage is Stage.PROBING:
        return _probed(state, at_s, enough=False)
    if state.cycle > 1:
        return emptied(state, "nobody asked for any shard")
    state.stage, state.probe = Stage.PROBING, (state.task.deadline_s, inf)
    return _probe(state, at_s)


def _probe(state: State, at_s: float) -> Commands:
    state.learners.bounds[:] = -1
    state.asked_s, state.limit_s = at_s, at_s + ANSWER * state.task.deadline_s
    state.learners.silent[:] = False
    present = np.flatnonzero(state.learners.present)
    return [_ask(state, present, _probed_s(state)), *wake(state)]


def _probed_s(state: State) -> float:
    short_s, long_s = state.probe
    return 2 * short_s if long_s == inf else sqrt(short_s * long_s)


def _probed(state: State, at_s: float, *, enough: bool) -> Commands:
    short_s, long_s = state.probe
    state.probe = (short_s, _probed_s(state)) if enough else (_probed_s(state), long_s)
    short_s, long_s = state.probe
    far_s = FAR * state.task.deadline_s
    if short_s < far_s if long_s == inf else long_s > CLOSE * short_s:
        return _probe(state, at_s)
    would = f"by {MARGIN * long_s:.3g} s somebody would" if long_s < inf else "nobody would by any"
    passes = "once" if state.task.passes == 1 else f"{state.task.passes} times"
    return finish(
        state,
        "failed",
        f"nobody can train a shard {passes} by {state.task.deadline_s:g} s; {would} (deadline_s)",
    )
