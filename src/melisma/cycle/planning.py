"""Who gets how many shards in this cycle, and which: a problem from the state, a scheme, a deal."""

from dataclasses import dataclass

import numpy as np

from melisma.allocation import (
    CyclePlan,
    CycleProblem,
    PlanInputs,
    build_cycle_problem,
    build_unmeasured_problem,
)
from melisma.cycle.events import COSTS, Floats
from melisma.cycle.ragged import Ints, Rows
from melisma.cycle.state import State
from melisma.errors import InfeasibleError
from melisma.fleet.estimates import Estimate, Estimates
from melisma.fleet.rng import generator


@dataclass(frozen=True, eq=False)
class Share:
    """What those who take part get; the others are left out because they cannot make it."""

    learners: Ints
    plan: CyclePlan
    predicted_s: Floats
    left_out: tuple[int, ...]


def able(state: State) -> Ints:
    """Those who are there and have told what the scheme needs."""
    learners = state.learners
    told = {
        "costs": ~np.isnan(learners.costs).any(axis=(0, 1)),
        "bounds": learners.bounds >= 0,
    }
    return np.flatnonzero(learners.present & told.get(state.scheme.needs, learners.present))


def share(state: State) -> Share:
    """The plan of the scheme, without those who it says cannot make it; or `InfeasibleError`."""
    who = able(state)
    left_out: list[int] = []
    while True:
        problem = _problem(state, who)
        given = PlanInputs(
            passes=state.task.passes,
            bounds=state.learners.bounds[who] if state.scheme.needs == "bounds" else None,
            rng=generator(state.task.seed, "plan", state.cycle),
        )
        try:
            plan = state.scheme.plan(problem, given)
        except InfeasibleError as error:
            # A scheme counts those it was given; from here on they are the run's own numbers.
            cannot, error.learners = list(error.learners), tuple(who[list(error.learners)].tolist())
            if not 0 < len(cannot) < who.size:
                raise
            left_out += error.learners
            who = np.delete(who, cannot)
        else:
            return Share(who, plan, _predicted(problem, plan), tuple(left_out))


def held_ahead(state: State, who: Ints) -> Ints:
    """How many of the shards that come next each one holds, if as many are dealt as last time."""
    size = state.samples.size
    wanted = state.last_total if state.scheme.needs == "bounds" else size
    if state.federated or wanted > size:
        return np.zeros(who.size, np.int64)
    shards, holders = state.deck.holders(wanted, who, state.learners.held)
    # Each shard is dealt once: the first who holds it gets it.
    first = np.diff(shards, prepend=-1) > 0
    return np.bincount(holders[first], minlength=who.size)


def deal(state: State, who: Ints, counts: Ints) -> Rows:
    """Which shards each gets, written down in the state; its decks move on."""
    learners = state.learners
    if state.federated:
        dealt = learners.own.deal(who, counts)
        learners.samples[who] = learners.own.samples_in(who, dealt)
        return dealt
    state.deck, dealt, learners.new = state.deck.deal(who, counts, learners.held)
    learners.samples[who] = dealt.sums(state.samples[dealt.flat])
    learners.busy = who
    state.last_total = int(counts.sum())
    return dealt


def _problem(state: State, who: Ints) -> CycleProblem:
    own = state.learners.own.counts[who] if state.federated else None
    if state.scheme.needs != "costs":
        # Where costs are not known, what is held makes no difference to them.
        return build_unmeasured_problem(state.task, who.size, 0, own)
    held = 0 if state.federated else held_ahead(state, who)
    known = state.learners.costs[:, :, who]
    return build_cycle_problem(
        state.task, Estimates(*(Estimate(*cost) for cost in known)), held, own
    )


def _predicted(problem: CycleProblem, plan: CyclePlan) -> Floats:
    return plan.seconds(problem) if problem.has_costs else np.full(plan.shards.size, np.nan)


assert COSTS == ("train_s", "ship_s", "fixed_s")  # the order in which `Estimates` takes them
