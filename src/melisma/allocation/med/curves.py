"""The best levels when it is fixed who works for which task.

Each task has a curve of cost over its levels, and one level is chosen from each: the least sum
within the budget. A rate for money bounds the sum from below; what exceeds the bound by more than
a choice that is known to fit cannot be part of a better one. Where a task has too many levels to
look at each, a part of its curve stands for several: it charges the lowest level and the cost at
the highest, so that the bound stays true, and is cut again where it matters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med.amounts import fill_cost, lowest_levels
from melisma.allocation.med.learner_classes import Flags, LearnerClasses

LEVELS = 1 << 12  # of a task, up to which each is looked at
STEPS = 256  # in their place, at first
CUT = 8  # parts of a part
PARTS = 1 << 13  # in all, at the most
PAIRS = 1 << 21  # of choices for some tasks and levels of the next


@dataclass(frozen=True, eq=False)
class Chosen:
    """A level for each task, and what no other choice falls below."""

    level_s: Floats
    bound_s: float


@dataclass(frozen=True, eq=False)
class Curve:
    """Parts of a curve by rising level: the lowest and the highest level, and the cost there."""

    floor_s: Floats
    level_s: Floats
    cost: Floats

    def pick(self, some: Flags) -> "Curve":
        """Only these parts."""
        return Curve(self.floor_s[some], self.level_s[some], self.cost[some])


class Team:
    """The learners of one task, and what it costs at any level that they can do it by."""

    def __init__(self, kinds: LearnerClasses, task: int, counts: Ints) -> None:
        mine = np.flatnonzero(counts)
        self.counts, self.kinds = counts[None, mine], kinds.only(task, mine)

    def curve(self, low_s: float) -> Curve:
        """All levels from `low_s` to the deadline, or steps in their place."""
        kinds, edges = self.kinds, np.array([low_s, self.kinds.deadline_s[0]])
        first, last = self._caps(edges)
        many = last - first + 1
        if many.sum() > LEVELS:
            edges = np.linspace(edges[0], edges[1], STEPS + 1)
            return _cheaper(self._parts(np.append(edges[0], edges[:-1]), edges))
        owner = np.repeat(np.arange(many.size), many)
        amount = np.arange(owner.size) - np.repeat(np.cumsum(many) - many, many) + first[owner]
        level_s = kinds.fixed_s[0, owner] + kinds.shard_s[0, owner] * amount
        level_s = np.unique(np.maximum(level_s, low_s))
        return _cheaper(Curve(level_s, level_s, self._cost(self._caps(level_s))))

    def refine(self, curve: Curve) -> Curve:
        """Each part that has several levels cut into smaller ones."""
        wide = curve.floor_s < curve.level_s
        width_s = (curve.level_s - curve.floor_s)[wide, None]
        edges = curve.floor_s[wide, None] + width_s * np.linspace(0.0, 1.0, CUT + 1)
        edges[:, 0] = np.nextafter(curve.floor_s[wide], -np.inf)
        edges[:, -1] = curve.level_s[wide]
        finer, rest = self._parts(edges[:, :-1].ravel(), edges[:, 1:].ravel()), curve.pick(~wide)
        both = [(rest.floor_s, finer.floor_s), (rest.level_s, finer.level_s)]
        floor_s, level_s, cost = map(np.concatenate, [*both, (rest.cost, finer.cost)])
        order = np.argsort(level_s, kind="stable")
        return Curve(floor_s[order], level_s[order], cost[order])

    def _parts(self, above_s: Floats, upto_s: Floats) -> Curve:
        """From the first level above one edge to the last one up to another."""
        fixed_s, shard_s, cap = self.kinds.fixed_s, self.kinds.shard_s, self._caps(upto_s)
        level_s = np.where(cap > 0, fixed_s + shard_s * cap, 0.0).max(axis=1)
        more = self._caps(above_s) + 1
        next_s = np.where(more <= self.kinds.need[0], fixed_s + shard_s * more, np.inf)
        floor_s = np.where(above_s < upto_s, next_s.min(axis=1), level_s)
        some = floor_s <= level_s
        return Curve(floor_s[some], level_s[some], self._cost(cap[some]))

    def _caps(self, level_s: Floats) -> Ints:
        return self.kinds.caps(np.zeros(level_s.size, dtype=np.int64), level_s)

    def _cost(self, cap: Ints) -> Floats:
        return fill_cost(self.kinds, self.kinds.need, self.counts, cap)


def best_levels(kinds: LearnerClasses, counts: Ints) -> Chosen | None:
    """The levels with the least sum that keep deadlines and budget, or None."""
    low_s = lowest_levels(kinds, counts)
    if np.isinf(low_s).any():
        return None
    every = np.arange(kinds.shape[0])
    cost = fill_cost(kinds, kinds.need, counts, kinds.caps(every, low_s))
    if cost.sum() <= kinds.budget:
        return Chosen(low_s, float(low_s.sum()))
    cost = fill_cost(kinds, kinds.need, counts, kinds.caps(every, kinds.deadline_s))
    if cost.sum() > kinds.budget:
        return None
    teams = [Team(kinds, int(i), counts[i]) for i in every]
    return _chosen(
        teams, [team.curve(low) for team, low in zip(teams, low_s, strict=True)], kinds.budget
    )


def _chosen(teams: Sequence[Team], curves: list[Curve], budget: float) -> Chosen:
    """Bound and choice, in turn with a closer look at the parts that may matter."""
    while True:
        rate, bound_s = _rate(curves, budget)
        known_s = _fitting(curves, budget, rate)
        slack_s = float(known_s.sum()) - bound_s + 1e-9 * abs(bound_s)
        curves = [curve.pick(_over_s(curve, rate) <= slack_s) for curve in curves]
        wide = sum(int((curve.floor_s < curve.level_s).sum()) for curve in curves)
        if not wide:
            found_s = _joined(curves, budget, rate, slack_s)
            return Chosen(known_s, bound_s) if found_s is None else _exact(found_s, known_s)
        if wide * CUT > PARTS:
            return Chosen(known_s, bound_s)
        curves = [team.refine(curve) for team, curve in zip(teams, curves, strict=True)]


def _exact(found_s: Floats, known_s: Floats) -> Chosen:
    best_s = min(found_s, known_s, key=lambda levels: float(levels.sum()))
    return Chosen(best_s, float(best_s.sum()))


def _joined(curves: list[Curve], budget: float, rate: float, slack_s: float) -> Floats | None:
    """The best choice of single levels within the slack; None if there are too many."""
    picks, cost, excess_s = np.zeros((1, 0)), np.zeros(1), np.zeros(1)
    least_cost = [float(curve.cost.min()) for curve in curves]
    for number, curve in enumerate(curves):
        if cost.size * curve.cost.size > PAIRS:
            return None
        total = cost[:, None] + curve.cost
        excess = excess_s[:, None] + _over_s(curve, rate)
        a, b = np.nonzero((excess <= slack_s) & (total <= budget - sum(least_cost[number + 1 :])))
        picks, cost, excess_s = (
            np.column_stack([picks[a], curve.level_s[b]]),
            total[a, b],
            excess[a, b],
        )
        front = _front(picks.sum(axis=1), cost)
        picks, cost, excess_s = picks[front], cost[front], excess_s[front]
    return picks[0] if cost.size else np.full(len(curves), np.inf)


def _over_s(curve: Curve, rate: float) -> Floats:
    """By how much each part exceeds the best of its task, with money at the rate."""
    value_s = curve.floor_s + rate * curve.cost
    over_s: Floats = value_s - value_s.min()
    return over_s


def _cheaper(curve: Curve) -> Curve:
    """Without the parts that are later than another and no cheaper."""
    cheaper = np.ones(curve.cost.size, dtype=bool)
    cheaper[1:] = curve.cost[1:] < np.minimum.accumulate(curve.cost)[:-1]
    return curve.pick(cheaper)


def _front(sum_s: Floats, cost: Floats) -> Ints:
    """Those that no other beats in both, by rising sum."""
    order = np.lexsort((cost, sum_s))
    ordered = cost[order]
    better = np.ones(order.size, dtype=bool)
    better[1:] = ordered[1:] < np.minimum.accumulate(ordered)[:-1]
    return order[better]


def _rate(curves: list[Curve], budget: float) -> tuple[float, float]:
    """The rate for money with the best bound (a concave function of one number)."""

    def at(rate: float) -> tuple[float, float]:
        picks = [int((curve.floor_s + rate * curve.cost).argmin()) for curve in curves]
        cost = sum(curve.cost[k] for curve, k in zip(curves, picks, strict=True))
        total_s = sum(curve.floor_s[k] for curve, k in zip(curves, picks, strict=True))
        return float(total_s + rate * (cost - budget)), float(cost)

    low, high = 0.0, 1.0
    while at(high)[1] > budget and high < 1e12:
        low, high = high, high * 4
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle)[1] > budget else (low, middle)
    return max(((rate, at(rate)[0]) for rate in (low, high)), key=lambda found: found[1])


def _fitting(curves: list[Curve], budget: float, rate: float) -> Floats:
    """A choice within the budget: the cheapest, then each level as low as money allows."""
    picks = [int(curve.cost.argmin()) for curve in curves]
    start = [int((curve.level_s + rate * 1.000001 * curve.cost).argmin()) for curve in curves]
    if sum(curve.cost[k] for curve, k in zip(curves, start, strict=True)) <= budget:
        picks = start
    spent = sum(curve.cost[k] for curve, k in zip(curves, picks, strict=True))
    for i, curve in enumerate(curves):
        left = budget - (spent - curve.cost[picks[i]])
        first = int(np.flatnonzero(curve.cost <= max(left, curve.cost[picks[i]]))[0])
        if first < picks[i]:
            spent += curve.cost[first] - curve.cost[picks[i]]
            picks[i] = first
    return np.array([curve.level_s[k] for curve, k in zip(curves, picks, strict=True)])
