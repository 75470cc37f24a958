"""Before training: collect the costs or the bounds that the scheme plans with.

If no learner can train a shard by the deadline of the first cycle, the machine probes: it asks for
bounds at other deadlines until it can name the shortest one that works. Probing, like collecting,
discloses only numbers of shards.
"""

from collections.abc import Callable
from math import inf, sqrt

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.commands import Commands
from melisma.cycle.extensions import MIN_LEFT_FRACTION, admit
from melisma.cycle.late_work import withdraw_overdue
from melisma.cycle.learner import benchmark_s
from melisma.cycle.planning import (
    count_held_ahead,
    is_awaited,
    is_ready,
    plan_cycle,
    ready_learners,
)
from melisma.cycle.ragged import blocks
from melisma.cycle.rounds import (
    MAX_EMPTY_CYCLES,
    dispatch,
    finish,
    record_empty_cycle,
    wake,
)
from melisma.cycle.sampling import draw_if_none, draw_learners, draws_all
from melisma.cycle.sharing import request_shares
from melisma.cycle.state import COLLECTING_STAGES, CycleState, Stage, WorkStatus
from melisma.errors import InfeasibleError, SchemeError
from melisma.fleet.array_types import Bools, Ints

# Wait for answers up to this many deadlines, longer while there is no answer at all.
ANSWER_DEADLINES = 2.0
# In the first cycle wait at least this many times as long as the latest answer took, because
# the duration of a first benchmark is unknown.
ANSWER_PATIENCE = 5.0
# With extension, begin this part of the deadline after the first learner is ready, in the first
# cycle after the time that a benchmark may take. The others join when they are ready.
START_FRACTION = 0.02
# Wait at least this long for a first answer: a deadline of milliseconds says nothing about it.
FIRST_ANSWER_S = 10.0
# Give up after this many requests in a row without any answer.
MAX_REQUESTS = MAX_EMPTY_CYCLES
# Probe the shortest feasible deadline to this ratio, up to this many times the task's deadline.
PROBE_PRECISION, PROBE_LIMIT = 1.01, 2.0**40
# Recommend a deadline this much longer than the one found, because measurements vary.
PROBE_MARGIN = 1.25


def begin_cycle(state: CycleState, at_s: float) -> Commands:
    """Begin the next cycle: request what the scheme needs, or dispatch at once."""
    if state.schedule is not None and state.cycle:
        length_s = state.schedule.length_s(at_s, state.cycle)
        state.set_length(state.task.deadline_s if length_s is None else length_s)
    state.cycle += 1
    draw_learners(state)
    learners = state.learners
    learners.work[:] = WorkStatus.NONE
    learners.bounds[:] = -1
    if state.scheme.costs_in == "present":
        learners.costs[:] = np.nan
    state.clear_assignments()
    state.lost_work = ""
    return [*withdraw_overdue(state), *collect(state, at_s)]


def collect(state: CycleState, at_s: float) -> Commands:
    """Request what the scheme needs for this cycle, or dispatch at once; first await a learner."""
    if state.awaits_learners:
        return await_learners(state)
    draw_if_none(state)
    learners, state.first_ready_s = state.learners, inf
    state.asked_s, state.limit_s = at_s, at_s + ANSWER_DEADLINES * state.task.deadline_s
    drawn = np.flatnonzero(learners.present & learners.drawn)
    if state.needs == "bounds":
        state.stage = Stage.COLLECTING
        return [ask_bound(state, drawn, state.task.deadline_s), *wake(state)]
    ready = ready_learners(state)
    unknown = np.setdiff1d(drawn, ready)
    requests: Commands = [benchmark(state, unknown)] if unknown.size else []
    if learners.answer_awaited[unknown].any() or not ready.size:
        state.stage = Stage.COLLECTING
        state.first_ready_s = at_s if ready.size else inf
        shorten_wait(state)
        return [*requests, *wake(state)]
    return [*requests, *dispatch_or_lengthen(state, at_s)]


def dispatch_or_lengthen(state: CycleState, at_s: float) -> Commands:
    """Dispatch work, or request shares.

    A cycle that chooses its length is longer if no learner can train a shard.
    """
    if state.shared:
        return [request_shares(state)]
    if state.schedule is None or can_plan(state):
        return dispatch(state, at_s)
    length_s = state.schedule.lengthen(state.task.deadline_s, at_s)
    if length_s is not None:
        state.set_length(length_s)
        state.learners.bounds[:] = -1
        return collect(state, at_s)
    problem = "no learner can train a shard in the time that is left"
    if state.cycle > 1:
        return finish(state, "finished", problem)
    fix = "use a longer one, or smaller shard_samples"
    return finish(
        state, "failed", f"total_s = {state.task.total_s:g} is too short: {problem}; {fix}"
    )


def repeat_request(state: CycleState, at_s: float) -> Commands:
    """Request shares anew, as the learners have changed; collect costs if none is ready."""
    if not ready_learners(state).size:
        return collect(state, at_s)
    return [request_shares(state)]


def await_learners(state: CycleState) -> Commands:
    """Wait for a learner that joins, for `absence_s` since the last one left."""
    state.stage, state.unanswered_requests = Stage.WAITING, 0
    state.limit_s = state.left_s + state.absence_s
    reason = f"no learner is left: {state.departure}; wait {state.absence_s:g} s for one"
    return [commands.Wake(reason=reason, at_s=min(state.limit_s, state.stop_s))]


def ask_late(state: CycleState, learners: Ints, at_s: float) -> Commands:
    """Ask learners that joined after others were asked, so that they take part in this cycle."""
    left_s, learners = state.deadline_at_s - at_s, learners[state.learners.drawn[learners]]
    training = state.stage is Stage.TRAINING
    if learners.size and state.shared and state.stage in (Stage.SHARING, Stage.TRAINING):
        # It has nothing else to do, and may work for this task in the next round.
        return [benchmark(state, np.sort(learners))]
    if (
        not learners.size
        or not state.task.extension
        or not (training or state.stage is Stage.COLLECTING)
    ):
        return []
    if training and left_s < MIN_LEFT_FRACTION * state.task.deadline_s:
        return []
    if state.needs == "bounds":
        return [ask_bound(state, np.sort(learners), state.task.deadline_s)]
    return [benchmark(state, np.sort(learners))] if state.needs == "costs" else []


def benchmark(state: CycleState, learners: Ints) -> commands.Benchmark:
    """Ask learners to measure their costs."""
    return commands.Benchmark(
        reason=f"scheme {state.scheme.name} plans with measured costs",
        learners=learners,
        seconds=benchmark_s(state.task),
    )


def ask_bound(state: CycleState, learners: Ints, deadline_s: float) -> commands.AskBound:
    """Ask learners how many shards they can train by a deadline."""
    reason = "each learner computes its own bound"
    if state.stage is Stage.PROBING:
        reason = "no learner can train a shard by the deadline; search for one that works"
    return commands.AskBound(
        reason=reason,
        learners=learners,
        cycle=state.cycle,
        deadline_s=deadline_s,
        held=count_held_ahead(state, learners),
    )


def on_costs(state: CycleState, event: events.CostsReported) -> Commands:
    """Store reported costs, in any stage."""
    present = state.learners.present[event.learners]
    learners = event.learners[present]
    state.learners.costs[:, :, learners] = event.costs[:, :, present]
    state.learners.answer_awaited[learners] = True
    if state.stage is Stage.TRAINING:
        return admit(state, learners, event.at_s)
    if state.stage is Stage.SHARING:
        return repeat_request(state, event.at_s)
    waiting = state.stage is Stage.COLLECTING and state.needs != "bounds"
    return continue_if_ready(state, event.at_s) if waiting else []


def on_bounds(state: CycleState, event: events.BoundsReported) -> Commands:
    """Store bounds that answer the latest request; others are ignored."""
    if event.cycle != state.cycle or state.needs != "bounds":
        return []
    present = state.learners.present[event.learners]
    learners, shards = event.learners[present], event.shards[present]
    # A learner with a bound of 0 measures itself again; do not wait for it until it has more.
    state.learners.answer_awaited[learners] = shards != 0
    deadline_s = probe_deadline_s(state) if state.stage is Stage.PROBING else state.task.deadline_s
    if event.deadline_s != deadline_s:
        return []
    if state.schedule is not None and (shards == 0).any():
        state.schedule.record_idle(deadline_s)
    state.learners.bounds[learners] = shards
    if state.stage is Stage.TRAINING:
        return admit(state, learners, event.at_s)
    if state.stage not in COLLECTING_STAGES:
        return []
    return continue_if_ready(state, event.at_s)


def continue_if_ready(state: CycleState, at_s: float) -> Commands:
    """Go on when all awaited learners have answered, or when time is up and some have."""
    learners = state.learners
    if not (learners.present & learners.drawn).any():
        return collect(state, at_s)
    if not _holds_for_any(is_ready, state):
        return ask_again(state, at_s) if at_s >= state.limit_s else []
    state.unanswered_requests = 0
    waiting = _holds_for_any(is_awaited, state)
    if waiting and at_s < state.limit_s:
        if not state.task.extension or state.stage is Stage.PROBING:
            return extend_wait(state, at_s)
        if state.first_ready_s == inf:
            state.first_ready_s = at_s
            shorten_wait(state)
            return wake(state)
        if at_s < begin_limit_s(state) or not can_begin(state):
            return []
    elif waiting and at_s < answer_limit_s(state) and not can_begin(state):
        state.limit_s = answer_limit_s(state)
        return wake(state)
    learners.answer_awaited &= ~is_awaited(state)
    feasible = state.needs != "bounds" or bool(learners.bounds[is_ready(state)].any())
    if state.stage is Stage.PROBING:
        return narrow_probe(state, at_s, feasible=feasible)
    if feasible or state.schedule is not None:
        return dispatch_or_lengthen(state, at_s)
    return begin_probing(state, at_s)


def _holds_for_any(condition: Callable[[CycleState, slice], Bools], state: CycleState) -> bool:
    """Return whether a condition holds for any learner, looking no further than its block.

    This is asked for each group of answers, in a run of a million learners thousands of times.
    """
    return any(condition(state, rows).any() for rows in blocks(state.learners.present.size))


def ask_again(state: CycleState, at_s: float) -> Commands:
    """Repeat the request, because it or all answers may be lost; give up after `MAX_REQUESTS`."""
    earliest_s = state.asked_s + FIRST_ANSWER_S
    if at_s < earliest_s:
        state.limit_s = earliest_s
        return wake(state)
    state.unanswered_requests += 1
    if state.unanswered_requests >= MAX_REQUESTS:
        return finish(state, "failed", f"no learner answered {MAX_REQUESTS} requests in a row")
    state.asked_s = at_s
    backoff = 2.0**state.unanswered_requests
    state.limit_s = at_s + backoff * ANSWER_DEADLINES * state.task.deadline_s
    drawn = np.flatnonzero(state.learners.present & state.learners.drawn)
    if state.needs != "bounds":
        return [benchmark(state, drawn), *wake(state)]
    probing = state.stage is Stage.PROBING
    deadline_s = probe_deadline_s(state) if probing else state.task.deadline_s
    return [ask_bound(state, drawn, deadline_s), *wake(state)]


def shorten_wait(state: CycleState) -> None:
    """With extension, wait only a little for the others once the first learner is ready."""
    if state.task.extension:
        state.limit_s = min(state.limit_s, begin_limit_s(state))


def begin_limit_s(state: CycleState) -> float:
    """Return when a cycle with extension begins, even if some learners are not ready.

    In the first cycle all learners run their first benchmark, which takes a slow device all the
    time that it may take; the plan includes it.
    """
    begin_s = state.first_ready_s
    if state.cycle == 1:
        begin_s = max(begin_s, state.asked_s + benchmark_s(state.task))
    return begin_s + START_FRACTION * state.task.deadline_s


def answer_limit_s(state: CycleState) -> float:
    """Return how long answers are awaited while the ready learners cannot begin by themselves."""
    return state.asked_s + max(ANSWER_DEADLINES * state.task.deadline_s, FIRST_ANSWER_S)


def can_begin(state: CycleState) -> bool:
    """Return whether the ready learners can begin without the others; a later cycle always does."""
    if state.cycle > 1 or state.stage is Stage.PROBING:
        return True
    if state.needs == "bounds":
        return bool(state.learners.bounds[is_ready(state)].any())
    return can_plan(state)


def can_plan(state: CycleState) -> bool:
    """Return whether the scheme finds a plan with work for some learner.

    A shared task is planned later, with others.
    """
    if state.shared:
        return bool(is_ready(state).any())
    try:
        return bool(plan_cycle(state).assigned.any())
    except InfeasibleError:
        return False
    except SchemeError:
        return True  # to dispatch, which ends the run with that error


def extend_wait(state: CycleState, at_s: float) -> Commands:
    """Wait longer in the first cycle, in proportion to the latest answer."""
    later_s = state.asked_s + ANSWER_PATIENCE * (at_s - state.asked_s)
    if state.cycle > 1 or later_s <= state.limit_s:
        return []
    state.limit_s = later_s
    return wake(state)


def begin_probing(state: CycleState, at_s: float) -> Commands:
    """Search for a feasible deadline in the first cycle; a later cycle is empty."""
    if state.cycle > 1 or not draws_all(state):
        return record_empty_cycle(state, "no learner asked for a shard")
    state.stage, state.probe_range_s = Stage.PROBING, (state.task.deadline_s, inf)
    return probe(state, at_s)


def probe(state: CycleState, at_s: float) -> Commands:
    """Ask all learners for bounds at the next deadline of the search."""
    state.learners.bounds[:] = -1
    state.learners.answer_awaited[:] = True
    state.asked_s, state.limit_s = at_s, at_s + ANSWER_DEADLINES * state.task.deadline_s
    present = np.flatnonzero(state.learners.present)
    return [ask_bound(state, present, probe_deadline_s(state)), *wake(state)]


def probe_deadline_s(state: CycleState) -> float:
    """Return the deadline to ask for next: twice the longest infeasible one, then bisect."""
    infeasible_s, feasible_s = state.probe_range_s
    return 2 * infeasible_s if feasible_s == inf else sqrt(infeasible_s * feasible_s)


def narrow_probe(state: CycleState, at_s: float, *, feasible: bool) -> Commands:
    """Narrow the search by an answer; finish the run once the range is small or too far."""
    infeasible_s, feasible_s = state.probe_range_s
    probed_s = probe_deadline_s(state)
    infeasible_s, feasible_s = (infeasible_s, probed_s) if feasible else (probed_s, feasible_s)
    state.probe_range_s = infeasible_s, feasible_s
    limit_s = PROBE_LIMIT * state.task.deadline_s
    if infeasible_s < limit_s if feasible_s == inf else feasible_s > PROBE_PRECISION * infeasible_s:
        return probe(state, at_s)
    passes = state.task.passes or 1
    shard = "one shard" if passes == 1 else f"one shard {passes} times"
    fix = "no deadline is long enough"
    if feasible_s < inf:
        fix = f"use deadline_s >= {PROBE_MARGIN * feasible_s:.3g}"
    problem = f"deadline_s = {state.task.deadline_s:g} is too short: no learner can train {shard}"
    return finish(state, "failed", f"{problem} in time; {fix}")
