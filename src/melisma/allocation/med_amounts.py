"""Amounts when it is fixed who works for which task: exact, task by task.

With level h each learner of the task takes `least` shards, and the rest goes to the cheapest with
room: no other way costs less. So each task has a curve of cost over its levels, and one level is
chosen from each curve: the least sum of levels within the budget.
"""

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med_kinds import Flags, Kinds

CHUNK = 1 << 21


def fill(kinds: Kinds, need: Ints, counts: Ints, cap: Ints) -> Ints:
    """Rows x kinds: the cheapest shards for so many learners of each kind and their caps."""
    given = counts * kinds.least
    room = counts * cap - given
    ends = np.cumsum(room, axis=1)  # kinds are in the order of price
    rest = need - given.sum(axis=1)
    filled: Ints = given + np.clip(rest[:, None] - (ends - room), 0, room)
    return filled


def fill_cost(kinds: Kinds, need: Ints, counts: Ints, cap: Ints) -> Floats:
    """What `fill` costs; infinite where the shards do not go into the caps."""
    given = counts * kinds.least
    full = counts * cap
    least, most = given.sum(axis=1), full.sum(axis=1)
    wrong = (least > need) | (most < need) | np.any(full < given, axis=1)
    return np.where(wrong, np.inf, fill(kinds, need, counts, cap) @ kinds.price)


def lowest_levels(kinds: Kinds, counts: Ints) -> Floats:
    """For each task the first level at which its learners can do it; infinite if not in time."""
    every = np.arange(kinds.shape[0])
    low_s, high_s = np.zeros(every.size), kinds.deadline_s.copy()
    possible = _enough(kinds, counts, kinds.caps(every, high_s))
    for _ in range(52):
        middle_s = (low_s + high_s) / 2
        enough = _enough(kinds, counts, kinds.caps(every, middle_s))
        low_s, high_s = np.where(enough, low_s, middle_s), np.where(enough, middle_s, high_s)
    cap = kinds.caps(every, high_s)
    ends_s = np.where(counts * cap > 0, kinds.fixed_s + kinds.shard_s * cap, 0.0)
    return np.where(possible, ends_s.max(axis=1), np.inf)


def _enough(kinds: Kinds, counts: Ints, cap: Ints) -> Flags:
    full, given = counts * cap, counts * kinds.least
    fits = np.all(full >= given, axis=1) & (given.sum(axis=1) <= kinds.need)
    enough: Flags = fits & (full.sum(axis=1) >= kinds.need)
    return enough


def best_levels(kinds: Kinds, counts: Ints) -> Floats | None:
    """The levels with the least sum that keep deadlines and budget, or None."""
    low_s = lowest_levels(kinds, counts)
    if np.isinf(low_s).any():
        return None
    every = np.arange(kinds.shape[0])
    cost = fill_cost(kinds, kinds.need, counts, kinds.caps(every, low_s))
    if cost.sum() <= kinds.budget:
        return low_s
    cost = fill_cost(kinds, kinds.need, counts, kinds.caps(every, kinds.deadline_s))
    if cost.sum() > kinds.budget:
        return None
    return _choose([curve(kinds, i, counts[i], low_s[i]) for i in range(every.size)], kinds.budget)


def curve(kinds: Kinds, task: int, counts: Ints, low_s: float) -> tuple[Floats, Floats]:
    """Levels from `low_s` and what the task costs at each, only those cheaper than all before."""
    mine = np.flatnonzero(counts)
    edges = np.array([low_s, kinds.deadline_s[task]])
    first, last = kinds.caps(np.array([task, task]), edges)[:, mine]
    many = last - first + 1
    owner = np.repeat(np.arange(mine.size), many)
    amount = np.arange(owner.size) - np.repeat(np.cumsum(many) - many, many) + first[owner]
    level_s = kinds.fixed_s[task, mine[owner]] + kinds.shard_s[task, mine[owner]] * amount
    level_s = np.unique(np.maximum(level_s, low_s))
    cost = np.concatenate(
        [
            fill_cost(
                kinds,
                kinds.need[[task]],
                counts[None],
                kinds.caps(np.full(part.size, task), part),
            )
            for part in np.array_split(level_s, level_s.size * counts.size // CHUNK + 1)
        ]
    )
    cheaper = np.ones(cost.size, dtype=bool)
    cheaper[1:] = cost[1:] < np.minimum.accumulate(cost)[:-1]
    return level_s[cheaper], cost[cheaper]


def _choose(curves: list[tuple[Floats, Floats]], budget: float) -> Floats:
    """One point of each curve: the least sum of levels with a cost within the budget.

    A rate for money bounds the sum; points whose excess over the bound is more than what a
    feasible choice has cannot be part of a better one. The rest is joined, curve by curve.
    """
    rate, bound_s = _rate(curves, budget)
    known = _feasible(curves, budget, rate)
    gap_s = sum(levels[k] for (levels, _), k in zip(curves, known, strict=True)) - bound_s
    slack_s = gap_s + 1e-9 * abs(bound_s)
    sum_s, cost, excess_s = np.zeros(1), np.zeros(1), np.zeros(1)
    picks = np.zeros((1, 0), dtype=np.int64)
    least_cost = [float(costs.min()) for _, costs in curves]
    for number, (levels, costs) in enumerate(curves):
        over_s = levels + rate * costs
        over_s = over_s - over_s.min()
        near = np.flatnonzero(over_s <= slack_s)
        left = budget - sum(least_cost[number + 1 :])
        total = cost[:, None] + costs[near]
        excess = excess_s[:, None] + over_s[near]
        a, b = np.nonzero((excess <= slack_s) & (total <= left))
        sum_s, cost, excess_s = sum_s[a] + levels[near[b]], total[a, b], excess[a, b]
        picks = np.column_stack([picks[a], near[b]])
        front = _front(sum_s, cost)
        sum_s, cost, excess_s, picks = sum_s[front], cost[front], excess_s[front], picks[front]
    if not cost.size:
        picks = np.array([known])
    return np.array([levels[k] for (levels, _), k in zip(curves, picks[0], strict=True)])


def _front(sum_s: Floats, cost: Floats) -> Ints:
    """Those that no other beats in both, by rising sum."""
    order = np.lexsort((cost, sum_s))
    ordered = cost[order]
    better = np.ones(order.size, dtype=bool)
    better[1:] = ordered[1:] < np.minimum.accumulate(ordered)[:-1]
    return order[better]


def _rate(curves: list[tuple[Floats, Floats]], budget: float) -> tuple[float, float]:
    """The rate for money with the best bound (a concave function of one number)."""

    def at(rate: float) -> tuple[float, float]:
        picks = [int((levels + rate * costs).argmin()) for levels, costs in curves]
        cost = sum(costs[k] for (_, costs), k in zip(curves, picks, strict=True))
        total_s = sum(levels[k] for (levels, _), k in zip(curves, picks, strict=True))
        return float(total_s + rate * (cost - budget)), float(cost)

    low, high = 0.0, 1.0
    while at(high)[1] > budget and high < 1e12:
        low, high = high, high * 4
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle)[1] > budget else (low, middle)
    return max(((rate, at(rate)[0]) for rate in (low, high)), key=lambda found: found[1])


def _feasible(curves: list[tuple[Floats, Floats]], budget: float, rate: float) -> list[int]:
    """A choice within the budget: the cheapest, then each level as low as money allows."""
    picks = [int(costs.argmin()) for _, costs in curves]
    start = [int((levels + rate * 1.000001 * costs).argmin()) for levels, costs in curves]
    if sum(costs[k] for (_, costs), k in zip(curves, start, strict=True)) <= budget:
        picks = start
    spent = sum(costs[k] for (_, costs), k in zip(curves, picks, strict=True))
    for i, (_, costs) in enumerate(curves):
        fitting = int(np.flatnonzero(costs <= budget - (spent - costs[picks[i]]))[0])
        if fitting < picks[i]:
            spent += costs[fitting] - costs[picks[i]]
            picks[i] = fitting
    return picks
