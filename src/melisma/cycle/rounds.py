"""Work is given out, updates come in, and the cycle closes."""

import numpy as np

from melisma.cycle import commands, events
from melisma.cycle.planning import deal, share
from melisma.cycle.ragged import Ints
from melisma.cycle.state import Stage, State, Work
from melisma.errors import InfeasibleError

Commands = list[commands.Command]

# Learners stop in time to be in by the deadline. What still comes later was mispredicted: by less
# than this part of the deadline, or twice what was seen in the last cycles, but not without end.
TAIL, MOST_TAIL = 0.1, 0.5
# So many cycles in a row without an update end a run.
EMPTY = 3
# So many learners are named in a refusal.
NAMED = 5


def dispatched(state: State, at_s: float) -> Commands:
    """The work of this cycle, by the scheme; a plan that cannot be found ends the run."""
    try:
        shared = share(state)
    except InfeasibleError as error:
        return _no_plan(state, f"{error}{_names(state, error)}")
    learners = state.learners
    busy = (shared.plan.shards > 0) & (shared.plan.updates > 0)
    who, counts = shared.learners[busy], shared.plan.shards[busy]
    if not who.size:
        return emptied(state, "the plan gives nobody a shard and a pass")
    shards = deal(state, who, counts)
    learners.work[who], learners.attempts[who] = Work.GIVEN, 1
    learners.shards[who], learners.passes[who] = counts, shared.plan.updates[busy]
    state.stage, state.began_s = Stage.TRAINING, at_s
    tail_s = _tail_s(state)
    state.limit_s = state.deadline_s + tail_s
    state.late_s /= 2
    names = ", ".join(learners.names[learner] for learner in shared.left_out)
    return [
        *_measured_anew(state, shared.left_out),
        commands.Dispatch(
            reason=f"scheme {state.scheme.name}" + (f"; {names} cannot make it" if names else ""),
            learners=who,
            cycle=state.cycle,
            attempts=learners.attempts[who].copy(),
            shards=shards,
            passes=learners.passes[who].copy(),
            seconds_left=state.task.deadline_s,
            tail_s=tail_s,
            predicted_s=shared.predicted_s[busy],
        ),
        *wake(state),
    ]


def _tail_s(state: State) -> float:
    deadline_s = state.task.deadline_s
    return min(max(TAIL * deadline_s, 2 * state.late_s), MOST_TAIL * deadline_s)


def _no_plan(state: State, why: str) -> Commands:
    """Before training the run is refused; later it may go on, with what is measured anew."""
    if state.cycle == 1:
        return finish(state, "failed", why)
    state.learners.costs[:] = np.nan
    return emptied(state, why)


def _names(state: State, error: InfeasibleError) -> str:
    """Schemes know learners by number only."""
    named = ", ".join(state.learners.names[learner] for learner in error.learners[:NAMED])
    more = ", ..." * (len(error.learners) > NAMED)
    return f" ({named}{more})" if named else ""


def _measured_anew(state: State, learners: tuple[int, ...]) -> Commands:
    """Who is left out has no cycle that would tell when it can do more."""
    if not learners:
        return []
    return [
        commands.Benchmark(
            reason="there is no work for them, and they may be able to do more by the next cycle",
            learners=np.array(learners),
            seconds=state.task.deadline_s,
        )
    ]


def progress(state: State, event: events.ProgressReported) -> Commands:
    """Visits so far of those at work."""
    if event.cycle == state.cycle:
        at_work = state.learners.work[event.learners] == Work.GIVEN
        state.learners.visits[event.learners[at_work]] = event.visits[at_work]
    return []


def updates(state: State, event: events.UpdatesReceived) -> Commands:
    """Each assignment counts once, while its cycle is open."""
    learners, who = state.learners, event.learners
    awaited = state.expects(who, event.cycle, event.attempts)
    taken = who[awaited]
    learners.work[taken] = Work.DROPPED if event.refused else Work.TAKEN
    learners.visits[taken] = 0 if event.refused else event.visits[awaited]
    state.refused = event.refused or state.refused
    if not state.federated:
        learners.hold(taken[learners.visits[taken] > 0])
    said: Commands = []
    if not awaited.all():
        why = "it was counted before, or its cycle is closed"
        said.append(withdraw(who[~awaited], event.cycle, event.attempts[~awaited], why))
    if event.refused:
        said.append(withdraw(taken, event.cycle, event.attempts[awaited], event.refused))
    if taken.size:
        state.late_s = max(state.late_s, event.at_s - state.deadline_s)
        said += closed_if_all_in(state)
    return said


def closed_if_all_in(state: State) -> Commands:
    """Nobody is waited for."""
    if state.stage is Stage.TRAINING and not state.learners.of(Work.GIVEN).size:
        return closed(state)
    return []


def closed(state: State) -> Commands:
    """What came is averaged."""
    late = withdrawn(state, "the deadline has passed, and the predicted tail")
    taken = state.learners.of(Work.TAKEN)
    if not state.learners.weights(taken).any():
        return [*late, *emptied(state, state.refused or "nobody handed in anything")]
    state.empty = 0
    why = "the deadline has passed" if late else "all are in"
    return [*late, aggregate(state, taken, why)]


def emptied(state: State, why: str) -> Commands:
    """The parameters stay as they are."""
    state.empty, state.why = state.empty + 1, why
    if state.empty >= EMPTY:
        said = f"{EMPTY} cycles in a row were empty; cycle {state.cycle}: {why}"
        return finish(state, "failed", said)
    return [aggregate(state, np.empty(0, np.int64), f"empty: {why}")]


def aggregate(state: State, taken: Ints, why: str) -> commands.Aggregate:
    """The mean of updates that weigh something."""
    state.stage = Stage.AGGREGATING
    weights = state.learners.weights(taken)
    counted = weights > 0
    return commands.Aggregate(
        reason=why,
        cycle=state.cycle,
        learners=taken[counted],
        attempts=state.learners.attempts[taken][counted],
        weights=weights[counted],
    )


def withdrawn(state: State, reason: str) -> Commands:
    """All work that is still under way, taken back."""
    late = state.learners.of(Work.GIVEN)
    state.learners.work[late] = Work.DROPPED
    attempts = state.learners.attempts[late]
    return [withdraw(late, state.cycle, attempts, reason)] if late.size else []


def withdraw(who: Ints, cycle: int, attempts: Ints, reason: str) -> commands.Withdraw:
    """Work taken back, for a reason."""
    return commands.Withdraw(reason=reason, learners=who, cycle=cycle, attempts=attempts)


def wake(state: State) -> Commands:
    """The stage is over by its limit."""
    return [commands.Wake(reason=f"{state.stage} goes on no longer", at_s=state.limit_s)]


def finish(state: State, outcome: commands.Outcome, reason: str) -> Commands:
    """It is over."""
    state.stage = Stage.FINISHED
    return [commands.Finish(reason=reason, outcome=outcome)]
