"""Each learner bounds its own share: DAB, Eq. 3.5 of Mays' thesis.

A learner asks for the largest a >= 0 with seconds(a) < deadline, by its own benchmark; that
number is all that leaves it. Together learners may ask for less than all data, or for more: the
orchestrator then leaves shards for a later cycle, or hands one to two learners.
"""

import numpy as np
from numpy.typing import ArrayLike

from melisma.allocation.checks import (
    MAX_COUNT,
    MIN_COST_S,
    Ints,
    as_counts,
    as_floats,
    as_scalar,
    broadcast_to,
)
from melisma.allocation.costs import CycleCosts
from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.infeasible import infeasible_error, without_single_fix
from melisma.errors import InfeasibleError, SettingError


def dab_shards(
    deadline_s: float, train_s: float, ship_s: float, fixed_s: float, passes: int, held: int = 0
) -> int:
    """How many shards a learner with these costs asks for; 0 means that it takes no part."""
    return int(dab_bounds(deadline_s, train_s, ship_s, fixed_s, passes, held))


def dab_bounds(
    deadline_s: float,
    train_s: ArrayLike,
    ship_s: ArrayLike,
    fixed_s: ArrayLike,
    passes: int,
    held: ArrayLike = 0,
) -> Ints:
    """The same for many learners, each with costs of its own."""
    asked = CycleCosts(
        *np.broadcast_arrays(
            as_floats("train_s", train_s, least=MIN_COST_S),
            as_floats("ship_s", ship_s),
            as_floats("fixed_s", fixed_s),
            as_counts("held", held),
        )
    )
    deadline = as_scalar("deadline_s", as_floats("deadline_s", deadline_s, above=True))
    repeats = as_scalar("passes", as_counts("passes", passes, least=1))
    return asked.most_shards(repeats, _just_before(deadline), MAX_COUNT // 2)


def dab(problem: CycleProblem, passes: int, bounds: ArrayLike | None = None) -> CyclePlan:
    """What each learner asks for, at most `max_shards` and at most all data; no least share.

    `bounds` are what learners reported, and then their costs are not looked at; without them it is
    what each would report by the costs of the problem. `InfeasibleError` if nobody gets any.
    """
    as_counts("passes", passes, least=1)
    asked = (
        _bounds_from_costs(problem, passes) if bounds is None else _check_bounds(problem, bounds)
    )
    shards = np.minimum(asked, np.minimum(problem.max_shards, problem.shards))
    if not shards.any():
        raise _no_request_error(problem) if bounds is not None else _no_time_error(problem, passes)
    return CyclePlan.from_shards(problem, shards, passes)


def _bounds_from_costs(problem: CycleProblem, passes: int) -> Ints:
    if not problem.has_costs:
        raise SettingError("dab needs the bounds that learners report, or else their costs")
    return problem.costs.most_shards(passes, _just_before(problem.deadline_s), problem.shards)


def _check_bounds(problem: CycleProblem, bounds: ArrayLike) -> Ints:
    found: Ints = broadcast_to((problem.learners,), {"bounds": as_counts("bounds", bounds)})[
        "bounds"
    ]
    return found


def _no_request_error(problem: CycleProblem) -> InfeasibleError:
    return infeasible_error(
        f"nobody who may take a shard asks for one by {problem.deadline_s:g} s",
        constraint="shards",
        miss=1,
        nearest={} if problem.max_shards.any() else {"max_shards": 1},
    )


def _no_time_error(problem: CycleProblem, passes: int) -> InfeasibleError:
    """Each learner knows when its first shard would end, and so which deadline would do."""
    enough_s = np.nextafter(problem.seconds(1, passes), np.inf)
    may, can = problem.max_shards > 0, enough_s <= problem.deadline_s
    barred = "max_shards is 0 for all learners"
    late = f"nobody can train a shard {passes} times in less than {problem.deadline_s:g} s"
    if not may.any():
        return infeasible_error(
            barred if can.any() else without_single_fix(f"{barred}, and {late}"),
            constraint="max_shards",
            miss=1,
            nearest={"max_shards": 1} if can.any() else {},
        )
    soonest_s = float(enough_s[may].min())
    return infeasible_error(
        late if not can.any() else f"{late} of those with max_shards above 0",
        constraint="deadline_s",
        miss=soonest_s - problem.deadline_s,
        nearest={"deadline_s": soonest_s} | ({"max_shards": 1} if can.any() else {}),
    )


def _just_before(deadline_s: float) -> float:
    """The last instant before the deadline: Eq. 3.5 is strict."""
    return float(np.nextafter(deadline_s, 0.0))
