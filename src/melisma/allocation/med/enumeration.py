"""The best plan near the bound, by joining one column of each task.

The slack above the bound grows until a plan is found: the best plan within the slack is the
optimum, because all plans within the slack are enumerated. If there is none, bound + slack is a
new bound.
"""

from dataclasses import dataclass

import numpy as np

from melisma.allocation.med.columns import ColumnEnumeration, Columns, CountCode, Criterion
from melisma.allocation.med.dual import DualPoint, Knapsacks
from melisma.fleet.array_types import Bools, Floats, Ints

FIRST_SLACK, MIN_SLACK, SLACK_GROWTH = 0.004, 0.001, 1.6
SUM_TOLERANCE = 1e-9  # relative; sums that differ by less are equal
JOIN_BLOCK = 1 << 20


@dataclass(frozen=True, eq=False)
class EnumerationResult:
    """The bound that an enumeration proved, and the best assignment below the cutoff, if any.

    It is `complete` unless it met its limit of columns.
    """

    bound_s: float
    assignment: Ints | None
    complete: bool
    work: float = 0.0


def enumerate_plans(
    knapsacks: Knapsacks, point: DualPoint, criterion: Criterion, cutoff_s: float, limit: int
) -> EnumerationResult:
    """Find the best plan with a sum of at most `cutoff_s`, using up to `limit` columns."""
    classes, bound_s = knapsacks.classes, point.bound_s
    code = CountCode.for_members(classes.members - knapsacks.bounds.low.sum(axis=0))
    if code is None:
        return EnumerationResult(bound_s, None, complete=False)
    enumeration = ColumnEnumeration(knapsacks, point, code, criterion)
    budget = classes.budget if criterion is Criterion.BUDGET else np.inf
    # The slack covers the rounding of sums, so that no plan is lost to it.
    max_slack_s = cutoff_s - bound_s + SUM_TOLERANCE * abs(cutoff_s)
    # A bound near zero gives no scale; the distance to the cutoff does.
    step_s = max(FIRST_SLACK * abs(bound_s), MIN_SLACK * max_slack_s)
    slack_s, proven_s = min(step_s, max_slack_s), bound_s
    least_excess_s = np.zeros(classes.shape[0])
    while True:
        lists = enumeration.all_tasks(least_excess_s, slack_s, limit)
        # The excess of even the best columns is proven too.
        proven_s = max(proven_s, bound_s + min(float(least_excess_s.sum()), slack_s))
        limits = JoinLimits(slack_s, 4 * limit)
        joined = lists and join_columns(lists, code, classes.optional, budget, limits)
        if not lists or not joined:
            return EnumerationResult(proven_s, None, complete=False, work=enumeration.work)
        total_s, picks = joined
        if np.isfinite(total_s) and total_s <= bound_s + slack_s:
            codes = np.array([columns.code[k] for columns, k in zip(lists, picks, strict=True)])
            assignment = code.unpack(codes) + knapsacks.bounds.low
            return EnumerationResult(total_s, assignment, complete=True, work=enumeration.work)
        if slack_s >= max_slack_s:
            proven_s = max(proven_s, cutoff_s)
            return EnumerationResult(proven_s, None, complete=True, work=enumeration.work)
        proven_s = max(proven_s, bound_s + slack_s)
        beyond_s = max(slack_s - float(least_excess_s.sum()), step_s)
        slack_s = min(float(least_excess_s.sum()) + beyond_s * SLACK_GROWTH, max_slack_s)
        # Where the least excesses use up the slack, the least step grows, so that the loop ends.
        step_s *= SLACK_GROWTH if beyond_s == step_s else 1.0


@dataclass(frozen=True, eq=False)
class JoinLimits:
    """The largest total excess of a plan, and the most partial plans to hold."""

    slack_s: float
    partial_plans: int


@dataclass(frozen=True, eq=False)
class PartialPlans:
    """Joined columns of some tasks: learners used, sums, and the columns by number."""

    code: Ints
    level_s: Floats
    cost: Floats
    excess_s: Floats
    picks: Ints

    def take(self, chosen: Ints) -> "PartialPlans":
        """Return the chosen partial plans."""
        return PartialPlans(
            self.code[chosen],
            self.level_s[chosen],
            self.cost[chosen],
            self.excess_s[chosen],
            self.picks[chosen],
        )

    def extend(self, columns: Columns, plan: Ints, column: Ints) -> "PartialPlans":
        """Return partial plans `plan[i]` joined with columns `column[i]`."""
        return PartialPlans(
            self.code[plan] + columns.code[column],
            self.level_s[plan] + columns.level_s[column],
            self.cost[plan] + columns.cost[column],
            self.excess_s[plan] + columns.excess_s[column],
            np.column_stack([self.picks[plan], column]),
        )


def join_columns(
    lists: list[Columns], code: CountCode, optional: Bools, budget: float, limits: JoinLimits
) -> tuple[float, Ints] | None:
    """Return the least sum of levels and its columns; infinite if no plan is within the slack.

    None if there are more partial plans than allowed.
    """
    order = sorted(range(len(lists)), key=lambda i: (lists[i].code.size, i))
    if any(columns.code.size == 0 for columns in lists):
        return np.inf, np.zeros(0, dtype=np.int64)
    first = lists[order[0]]
    numbers = np.arange(first.code.size)[:, None]
    plans = PartialPlans(first.code, first.level_s, first.cost, first.excess_s, numbers)
    for i in order[1:-1]:
        joined = _join_disjoint(plans, lists[i], code, limits)
        if joined is None:
            return None
        plans = _drop_dominated_plans(joined)
    if len(order) > 1:
        last = lists[order[-1]]
        if optional.any():
            joined = _join_disjoint(plans, last, code, limits)
        else:
            joined = _join_complement(plans, last, code, limits.slack_s)
        if joined is None:
            return None
        plans = joined
    unused = code.unpack(code.everyone - plans.code)
    complete = np.all((unused == 0) | optional, axis=1)
    feasible = np.flatnonzero(complete & (plans.cost <= budget))
    if not feasible.size:
        return np.inf, np.zeros(0, dtype=np.int64)
    # Ties are broken by cost and then by learners, never by position.
    sort_keys = (plans.code[feasible], plans.cost[feasible], plans.level_s[feasible])
    best = feasible[np.lexsort(sort_keys)[0]]
    picks = np.empty(len(lists), dtype=np.int64)
    picks[order] = plans.picks[best]
    return float(plans.level_s[best]), picks


def _join_disjoint(
    plans: PartialPlans, columns: Columns, code: CountCode, limits: JoinLimits
) -> PartialPlans | None:
    """Join all pairs without a common learner and within the slack."""
    order = np.argsort(plans.excess_s, kind="stable")
    excess_s = plans.excess_s[order]
    reach = np.searchsorted(columns.excess_s, limits.slack_s - excess_s, side="right")
    if int(reach.sum()) > 400 * limits.partial_plans:
        return None
    left: list[Ints] = []
    right: list[Ints] = []
    start, size = 0, 0
    while start < order.size and reach[start] > 0:
        end = min(order.size, start + max(1, JOIN_BLOCK // int(reach[start])))
        block, width = order[start:end], int(reach[start])
        overlap = ((plans.code[block] + code.spare)[:, None] + columns.code[:width]) & code.guard
        a, b = np.nonzero(overlap == 0)
        near = b < reach[start:end][a]
        left.append(block[a[near]])
        right.append(b[near])
        size += left[-1].size
        if size > limits.partial_plans:
            return None
        start = end
    if not left:
        left = right = [np.zeros(0, dtype=np.int64)]
    return plans.extend(columns, np.concatenate(left), np.concatenate(right))


def _join_complement(
    plans: PartialPlans, columns: Columns, code: CountCode, slack_s: float
) -> PartialPlans:
    """Join each partial plan with the columns of exactly the learners that it leaves."""
    order = np.argsort(columns.code, kind="stable")
    rest = code.everyone - plans.code
    first = np.searchsorted(columns.code[order], rest, side="left")
    matches = np.searchsorted(columns.code[order], rest, side="right") - first
    a = np.repeat(np.arange(rest.size), matches)
    b = np.arange(a.size) - np.repeat(np.cumsum(matches) - matches, matches) + first[a]
    b = order[b]
    near = plans.excess_s[a] + columns.excess_s[b] <= slack_s
    return plans.extend(columns, a[near], b[near])


def _drop_dominated_plans(plans: PartialPlans) -> PartialPlans:
    """Keep, for each set of learners, the plans that no other beats in sum and in cost."""
    order = np.lexsort((plans.cost, plans.level_s, plans.code))
    code, cost = plans.code[order], plans.cost[order]
    start = np.append(True, code[1:] != code[:-1])[: code.size]
    # The least cost so far within a group, in exact ranks: each group lies below all before it.
    rank = np.unique(cost, return_inverse=True)[1] - np.cumsum(start) * (cost.size + 1)
    better = start.copy()
    better[1:] |= rank[1:] < np.minimum.accumulate(rank)[:-1]
    return plans.take(order[better])
