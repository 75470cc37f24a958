"""The best plan near the bound, by enumeration with a slack that grows.

If plans within the slack exist, the best of them is the optimum, because all plans within the
slack are among those enumerated; if there is none, bound + slack is a new bound.
"""

from dataclasses import dataclass

import numpy as np

from melisma.allocation.checks import Ints
from melisma.allocation.med.bound import Knapsacks, Relaxed
from melisma.allocation.med.columns import Aim, Code, Columns, Enumeration
from melisma.allocation.med.join import Reach, join

FIRST, LEAST, GROWTH = 0.004, 0.001, 1.6
TELLING = 1e-9  # sums are not told apart below this, as a part


@dataclass(frozen=True, eq=False)
class EnumerationResult:
    """What an enumeration has shown: a bound, and the best association below the cut, if any."""

    bound_s: float
    counts: Ints | None
    complete: bool
    work: float = 0.0


def best_below(
    sacks: Knapsacks, relaxed: Relaxed, aim: Aim, cut_s: float, limit: int
) -> EnumerationResult:
    """The best plan with a sum of at most `cut_s`, as far as `limit` columns allow."""
    kinds, bound_s = sacks.kinds, relaxed.bound_s
    code = Code.of(kinds.copies - sacks.limits.low.sum(axis=0))
    if code is None:
        return EnumerationResult(bound_s, None, complete=False)
    enumeration = Enumeration(sacks, relaxed, code, aim)
    budget = kinds.budget if aim is Aim.BUDGET else np.inf
    # The slack covers the rounding of sums, so that no plan is lost to it.
    most_s = cut_s - bound_s + TELLING * abs(cut_s)
    # A bound near zero says nothing about the scale; what is to be bridged does.
    step_s = max(FIRST * abs(bound_s), LEAST * most_s)
    slack_s, proven_s = min(step_s, most_s), bound_s
    floors_s = np.zeros(kinds.shape[0])
    while True:
        lists = enumeration.lists(floors_s, slack_s, limit)
        # What even the best columns exceed the bound by is proven too.
        proven_s = max(proven_s, bound_s + min(float(floors_s.sum()), slack_s))
        joined = lists and join(lists, code, kinds.optional, budget, Reach(slack_s, 4 * limit))
        if not lists or not joined:
            return EnumerationResult(proven_s, None, complete=False, work=enumeration.work)
        total_s, picks = joined
        if np.isfinite(total_s) and total_s <= bound_s + slack_s:
            counts = _counts(sacks, code, lists, picks)
            return EnumerationResult(total_s, counts, complete=True, work=enumeration.work)
        if slack_s >= most_s:
            return EnumerationResult(
                max(proven_s, cut_s), None, complete=True, work=enumeration.work
            )
        proven_s = max(proven_s, bound_s + slack_s)
        beyond_s = max(slack_s - float(floors_s.sum()), step_s)
        slack_s = min(float(floors_s.sum()) + beyond_s * GROWTH, most_s)
        # Where floors eat up the slack, the least step grows, so that an end is reached.
        step_s *= GROWTH if beyond_s == step_s else 1.0


def _counts(sacks: Knapsacks, code: Code, lists: list[Columns], picks: Ints) -> Ints:
    codes = np.array([columns.code[k] for columns, k in zip(lists, picks, strict=True)])
    return code.unpack(codes) + sacks.limits.low
