"""How many shards each learner gets in a cycle, and which: build a problem, plan it, deal."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from melisma.allocation import (
    CyclePlan,
    CycleProblem,
    PlanInputs,
    build_cycle_problem,
    build_unmeasured_problem,
)
from melisma.allocation.infeasible import round_up, with_nearest_value
from melisma.cycle import commands
from melisma.cycle.cache_index import EMPTY_CACHE, VALUE_BITS, VALUE_MASK, CacheIndex
from melisma.cycle.commands import Commands
from melisma.cycle.events import COSTS
from melisma.cycle.ragged import NO_ROWS, RaggedArray
from melisma.cycle.state import AssignedShards, CycleState
from melisma.errors import InfeasibleError, SchemeError
from melisma.fleet.array_types import Bools, Floats, Ints
from melisma.fleet.estimates import Estimate, Estimates
from melisma.fleet.rng import generator
from melisma.fleet.task import Task

# Deadlines to try before an error names one, each longer than the one before by this factor.
MAX_DEADLINES_TRIED, LEAST_DEADLINE_STEP = 100, 1.001
# Of the learners with the most unusual costs, this many are tried as the cause of a failed plan.
MAX_SUSPECTS = 16
ALL = slice(None)


@dataclass(frozen=True, eq=False)
class PlannedCycle:
    """The plan for the learners that take part; `left_out` cannot meet the deadline.

    With the numbers that `offenders` reported no plan can be computed.
    """

    learners: Ints
    plan: CyclePlan
    predicted_s: Floats
    left_out: tuple[int, ...]
    offenders: tuple[int, ...] = ()

    @property
    def assigned(self) -> NDArray[np.bool_]:
        """Which of the learners have shards and time for at least one pass over them."""
        return (self.plan.shards > 0) & (self.plan.updates > 0)

    @property
    def no_pass(self) -> Ints:
        """The learners that have shards, but no time for one pass over them."""
        return self.learners[(self.plan.shards > 0) & ~self.assigned]


def is_ready(state: CycleState, rows: slice = ALL) -> Bools:
    """Return whether each learner is in this cycle's sample and reported what the scheme needs."""
    learners = state.learners
    ready: Bools = learners.present[rows] & learners.drawn[rows]
    if state.needs == "costs":
        ready &= ~np.isnan(learners.costs[:, :, rows]).any(axis=(0, 1))
    elif state.needs == "bounds":
        ready &= learners.bounds[rows] >= 0
    return ready


def is_awaited(state: CycleState, rows: slice = ALL) -> Bools:
    """Return whether each learner is in this cycle's sample and has yet to report."""
    learners = state.learners
    awaited = learners.present[rows] & learners.drawn[rows] & learners.answer_awaited[rows]
    return awaited & ~is_ready(state, rows)


def ready_learners(state: CycleState) -> Ints:
    """Return the learners for which `is_ready` holds."""
    return np.flatnonzero(is_ready(state))


def plan_cycle(state: CycleState) -> PlannedCycle:
    """Plan with the scheme, leaving out learners that it names infeasible.

    A learner with whose numbers the scheme fails is an offender, and the others are planned without
    it. Raises `InfeasibleError`, with learners by their numbers in the run, if no plan remains, and
    `SchemeError` if a scheme of the user fails: no learner is to blame for that.
    """
    learners, offenders = ready_learners(state), list[int]()
    while True:
        try:
            planned = _plan_feasible(state, learners)
        except (InfeasibleError, SchemeError):
            raise
        except Exception as error:
            if learners.size < 2:
                raise InfeasibleError(
                    f"no plan can be computed with the numbers that {_names(state, learners)} "
                    f"reported: {error}",
                    constraint="costs",
                    miss=1,
                    nearest={},
                ) from error
            offender = _find_offender(state, learners)
            offenders.append(offender)
            learners = learners[learners != offender]
        else:
            return replace(planned, offenders=tuple(offenders))


def _names(state: CycleState, learners: Ints) -> str:
    return ", ".join(state.learners.names[learner] for learner in learners.tolist())


def _find_offender(state: CycleState, learners: Ints) -> int:
    """Return the learner without which a plan can be computed; else the most unusual one."""
    costs = np.log(np.maximum(state.learners.costs[:, 0, learners], np.finfo(np.float64).tiny))
    unusual = np.abs(costs - np.median(costs, axis=1, keepdims=True)).max(axis=0)
    ordered = learners[np.argsort(-unusual, kind="stable")].tolist()
    for learner in ordered[:MAX_SUSPECTS]:
        try:
            _plan_feasible(state, learners[learners != learner])
        except InfeasibleError:
            return int(learner)
        except Exception:  # noqa: BLE001, S112 - another learner is to blame, or several are
            continue
        return int(learner)
    return int(ordered[0])


def _plan_feasible(state: CycleState, learners: Ints) -> PlannedCycle:
    """Plan for these learners, without those that the scheme names infeasible.

    If there is no plan with the task's `caution`, plan with mean costs: a learner that needs longer
    halts in time. If there is none either, the deadline that the error names is enough with
    caution.
    """
    try:
        planned = _plan(state, state.task, learners)
    except InfeasibleError:
        if state.needs != "costs":
            raise
    else:
        if state.needs != "costs" or planned.assigned.any():
            return planned
    try:
        return _plan(state, state.task, learners, mean=True)
    except InfeasibleError as error:
        raise _name_cautious_deadline(state, learners, error) from error


def _plan(state: CycleState, task: Task, learners: Ints, *, mean: bool = False) -> PlannedCycle:
    """Plan a cycle of `task` with cautious or with mean costs."""
    left_out: list[int] = []
    while True:
        problem = _problem(state, task, learners, mean=mean)
        given = PlanInputs(
            passes=task.passes,
            bounds=state.learners.bounds[learners] if state.needs == "bounds" else None,
            rng=generator(task.seed, "plan", state.cycle),
        )
        try:
            plan = state.scheme.plan(problem, given)
        except InfeasibleError as error:
            positions = list(error.learners)
            if not 0 < len(positions) < learners.size:
                raise _name_learners(state, error, learners) from error
            left_out += learners[positions].tolist()
            learners = np.delete(learners, positions)
        else:
            predicted_s = _predict_seconds(problem, plan)
            return PlannedCycle(learners, plan, predicted_s, tuple(left_out))


def _name_cautious_deadline(
    state: CycleState, learners: Ints, error: InfeasibleError
) -> InfeasibleError:
    """Return the error with a deadline that is enough with caution, if a deadline is enough.

    Margins depend on the deadline, so each deadline that a plan asks for is tried.
    """
    deadline_s = error.nearest.get("deadline_s")
    if deadline_s is None:
        return error
    for _ in range(MAX_DEADLINES_TRIED):
        deadline_s = round_up(deadline_s)
        try:
            _plan(state, msgspec.structs.replace(state.task, deadline_s=deadline_s), learners)
        except InfeasibleError as again:
            longer_s = again.nearest.get("deadline_s", 0.0)
            deadline_s = max(longer_s, deadline_s * LEAST_DEADLINE_STEP)
        else:
            return with_nearest_value(error, "deadline_s", deadline_s)
    return error


def _name_learners(state: CycleState, error: InfeasibleError, learners: Ints) -> InfeasibleError:
    # A scheme numbers the learners of its problem; translate to numbers of the run.
    names = [state.learners.names[learner] for learner in learners.tolist()]
    named = error.with_names(names, shards_setting=state.task.describe_shards_setting)
    named.learners = tuple(learners[list(error.learners)].tolist())
    return named


def dismiss(state: CycleState, offenders: Sequence[int]) -> Commands:
    """Remove learners with whose numbers no plan can be computed."""
    if not offenders:
        return []
    table, learners = state.learners, np.array(offenders)
    table.present[learners], table.costs[:, :, learners] = False, np.nan
    table.bounds[learners] = -1
    names = ", ".join(table.names[learner] for learner in offenders)
    reason = f"{names}: no plan can be computed with the costs or bounds that it reported"
    return [commands.Dismiss(reason=reason, learners=learners)]


def count_held_ahead(state: CycleState, learners: Ints) -> Ints:
    """Count the upcoming shards that each learner holds, if as many are dealt as last time."""
    if state.federated:
        return np.zeros(learners.size, np.int64)
    wanted = state.last_shards if state.needs == "bounds" else state.shard_samples.size
    stretch = state.deck.upcoming(wanted)
    shards, holders = state.deck.holders(stretch, learners, state.learners.held)
    # Each shard is dealt to its first holder; copies may go to the others.
    first = np.diff(shards, prepend=-1) > 0
    return np.bincount(holders[first], minlength=learners.size)


def deal(state: CycleState, learners: Ints, counts: Ints) -> RaggedArray:
    """Give `counts` shards to each learner: the next of the deck, or of its own data."""
    attempts = state.learners.attempts[learners] + 1
    if state.federated:
        local = state.learners.local_shards
        dealt = local.deal(learners, counts)
        samples = local.samples_in(learners, dealt)
        state.add_assignments(AssignedShards(learners, attempts, dealt, NO_ROWS, samples))
        return dealt
    held = state.learners.held
    state.deck, dealt, new = state.deck.deal(learners, counts, _shards_to_prefer(state))
    if state.prefetched.pairs.size:
        new = dealt.select(~held.contains(dealt.values, learners[dealt.row_ids]))
    state.record_dealt(dealt.values)
    return give(state, learners, dealt, new)


def give(
    state: CycleState, learners: Ints, positions: RaggedArray, new: RaggedArray
) -> RaggedArray:
    """Record positions of the deck that learners are given; return the numbers of the shards."""
    shards = RaggedArray(positions.counts, state.deck.shards[positions.values])
    samples = shards.row_sums(state.shard_samples[shards.values])
    attempts = state.learners.attempts[learners] + 1
    state.add_assignments(AssignedShards(learners, attempts, positions, new, samples))
    return shards


def mark_held(
    state: CycleState, learners: Ints, shipped: Ints, released: CacheIndex = EMPTY_CACHE
) -> None:
    """Record that learners hold the shards that they were given, as far as they fetched them.

    Complete updates show that all shards up to their attempt were fetched, but for `released` ones.
    """
    table, count = state.learners, state.learners.present.size
    left, complete = np.full(count, -1), np.zeros(count, np.bool_)
    complete[learners] = table.visits[learners] >= table.planned_visits(learners)
    left[learners] = shipped
    for assigned in state.assignments:
        rows = np.flatnonzero(left[assigned.learners] >= 0)
        used = complete[assigned.learners[rows]]
        used &= assigned.attempts[rows] <= table.attempts[assigned.learners[rows]]
        # In blocks, as each shard needs a row in many temporary arrays.
        for block, positions in assigned.new.take(rows).blocks():
            holders, new = assigned.learners[rows[block]], positions
            if released.pairs.size:
                new = new.select(~released.contains(holders[new.row_ids], new.values))
            counts = np.where(used[block], new.counts, np.minimum(new.counts, left[holders]))
            left[holders] = np.maximum(left[holders] - counts, 0)
            nth = np.arange(new.values.size) - np.repeat(new.starts, new.counts)
            fetched = new.select(nth < np.repeat(counts, new.counts))
            table.hold(fetched.values, holders[fetched.row_ids])


def _shards_to_prefer(state: CycleState) -> CacheIndex:
    prefetched = state.prefetched.pairs
    return state.learners.held.union(prefetched >> VALUE_BITS, prefetched & VALUE_MASK)


def reported_costs(state: CycleState, learners: Ints) -> Estimates:
    """Return the costs that learners reported."""
    costs = np.take(state.learners.costs, learners, axis=-1)
    return Estimates(*(Estimate(*cost) for cost in costs))


def _problem(state: CycleState, task: Task, learners: Ints, *, mean: bool = False) -> CycleProblem:
    local = state.learners.local_shards.count_of(learners) if state.federated else None
    if local is not None and not local.any():
        raise InfeasibleError(
            f"none of the {learners.size} learners that take part has any data (mode = federated)",
            constraint="shards",
            miss=1,
            nearest={},
        )
    if state.needs != "costs":
        # Without costs, held shards make no difference.
        return build_unmeasured_problem(task, learners.size, 0, local)
    held = 0 if state.federated else count_held_ahead(state, learners)
    return build_cycle_problem(task, reported_costs(state, learners), held, local, mean=mean)


def _predict_seconds(problem: CycleProblem, plan: CyclePlan) -> Floats:
    return plan.seconds(problem) if problem.has_costs else np.full(plan.shards.size, np.nan)


assert COSTS == ("train_s", "ship_s", "fixed_s")  # the order in which `Estimates` takes them
