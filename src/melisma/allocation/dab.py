"""Each learner bounds its own share: DAB, Eq. 3.5 of Mays' thesis.

A learner asks for the largest a >= 0 with seconds(a) < deadline, by its own benchmark; that
number is all that leaves it. Together learners may ask for less than all data, or for more: the
orchestrator then leaves shards for a later cycle, or hands one to two learners.
"""

import numpy as np

from melisma.allocation.checks import MOST, SHORTEST_S, counts, numbers, single
from melisma.allocation.costs import Costs
from melisma.allocation.one_task import CyclePlan, CycleProblem
from melisma.errors import InfeasibleError


def dab_shards(
    deadline_s: float, train_s: float, ship_s: float, fixed_s: float, passes: int, held: int = 0
) -> int:
    """How many shards a learner with these costs asks for; 0 means that it takes no part."""
    costs = Costs(
        numbers("train_s", train_s, least=SHORTEST_S),
        numbers("ship_s", ship_s),
        numbers("fixed_s", fixed_s),
        counts("held", held),
    )
    deadline = single("deadline_s", numbers("deadline_s", deadline_s, above=True))
    repeats = single("passes", counts("passes", passes, least=1))
    return int(costs.most_shards(repeats, _before(deadline), MOST // 2))


def dab(problem: CycleProblem, passes: int) -> CyclePlan:
    """What each learner asks for, at most `max_shards` and at most all data; no least share.

    `InfeasibleError` if nobody asks for any.
    """
    counts("passes", passes, least=1)
    asked = problem.costs.most_shards(passes, _before(problem.deadline_s), problem.shards)
    if not asked.any():
        soonest_s = float(problem.seconds(1, passes).min())
        enough_s = float(np.nextafter(soonest_s, np.inf))
        raise InfeasibleError(
            f"nobody can train a shard {passes} times in less than {problem.deadline_s:g} s; "
            f"a deadline_s of more than {soonest_s:g} would do",
            constraint="deadline_s",
            miss=enough_s - problem.deadline_s,
            nearest={"deadline_s": enough_s},
        )
    return CyclePlan.of(problem, np.minimum(asked, problem.max_shards), passes)


def _before(deadline_s: float) -> float:
    """The last instant before the deadline: Eq. 3.5 is strict."""
    return float(np.nextafter(deadline_s, 0.0))
