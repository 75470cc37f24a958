"""DAB: each learner bounds its own share (Eq. 3.5 of Mays' thesis).

A learner requests the largest a >= 0 with seconds(a) < deadline, by its own benchmark; that number
is all that it discloses. The requests may sum to less than all data, or to more: then the
orchestrator leaves shards for a later cycle, or gives a shard to two learners.
"""

import numpy as np
from numpy.typing import ArrayLike

from melisma.allocation.checks import (
    MAX_COUNT,
    MIN_COST_S,
    as_counts,
    as_floats,
    as_scalar,
    broadcast_to,
)
from melisma.allocation.costs import CycleCosts
from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.infeasible import infeasible_error, without_single_fix
from melisma.errors import InfeasibleError, SettingError
from melisma.fleet.array_types import Ints


def dab_shards(
    deadline_s: float, train_s: float, ship_s: float, fixed_s: float, passes: int, held: int = 0
) -> int:
    """Return the shards that a learner with these costs requests; 0 means it takes no part."""
    return int(dab_bounds(deadline_s, train_s, ship_s, fixed_s, passes, held))


def dab_bounds(  # noqa: PLR0913 - the parameters of the cost model
    deadline_s: float,
    train_s: ArrayLike,
    ship_s: ArrayLike,
    fixed_s: ArrayLike,
    passes: int,
    held: ArrayLike = 0,
    *,
    overlap: bool = False,
) -> Ints:
    """Return the shards that each of many learners requests."""
    train, ship, fixed, holds = np.broadcast_arrays(
        as_floats("train_s", train_s, least=MIN_COST_S),
        as_floats("ship_s", ship_s),
        as_floats("fixed_s", fixed_s),
        as_counts("held", held),
    )
    costs = CycleCosts(train, ship, fixed, holds, overlap)
    deadline = as_scalar("deadline_s", as_floats("deadline_s", deadline_s, above=True))
    repeats = as_scalar("passes", as_counts("passes", passes, least=1))
    return costs.most_shards(repeats, _just_before(deadline), MAX_COUNT // 2)


def dab(problem: CycleProblem, passes: int, bounds: ArrayLike | None = None) -> CyclePlan:
    """Give each learner the shards it requests, up to `max_shards` and all data.

    `bounds` are the numbers that learners reported; their costs are then not used. Without them,
    they are computed from the costs of the problem. `min_shards` is ignored. Raises
    `InfeasibleError` if no learner gets a shard.
    """
    as_counts("passes", passes, least=1)
    if bounds is None:
        requested = _bounds_from_costs(problem, passes)
    else:
        reported = {"bounds": as_counts("bounds", bounds)}
        requested = broadcast_to((problem.learners,), reported)["bounds"]
    shards = np.minimum(requested, np.minimum(problem.max_shards, problem.shards))
    if not shards.any():
        raise _no_request_error(problem) if bounds is not None else _no_time_error(problem, passes)
    return CyclePlan.from_shards(problem, shards, passes)


def _bounds_from_costs(problem: CycleProblem, passes: int) -> Ints:
    if not problem.has_costs:
        raise SettingError("dab has neither bounds nor costs of the learners; pass bounds")
    return problem.costs.most_shards(passes, _just_before(problem.deadline_s), problem.shards)


def _no_request_error(problem: CycleProblem) -> InfeasibleError:
    return infeasible_error(
        f"no learner that may take a shard requests one by {problem.deadline_s:g} s",
        constraint="shards",
        miss=1,
        nearest={} if problem.max_shards.any() else {"max_shards": 1},
    )


def _no_time_error(problem: CycleProblem, passes: int) -> InfeasibleError:
    """Explain with the earliest deadline at which a learner can train one shard."""
    enough_s = np.nextafter(problem.seconds(1, passes), np.inf)
    may, can = problem.max_shards > 0, enough_s <= problem.deadline_s
    barred = "max_shards is 0 for all learners"
    late = f"no learner can train a shard {passes} times in less than {problem.deadline_s:g} s"
    if not may.any():
        return infeasible_error(
            barred if can.any() else without_single_fix(f"{barred}, and {late}"),
            constraint="max_shards",
            miss=1,
            nearest={"max_shards": 1} if can.any() else {},
        )
    earliest_s = float(enough_s[may].min())
    return infeasible_error(
        late if not can.any() else f"{late} of those with max_shards above 0",
        constraint="deadline_s",
        miss=earliest_s - problem.deadline_s,
        nearest={"deadline_s": earliest_s} | ({"max_shards": 1} if can.any() else {}),
    )


def _just_before(deadline_s: float) -> float:
    """Return the largest float below the deadline, because Eq. 3.5 is strict."""
    return float(np.nextafter(deadline_s, 0.0))
