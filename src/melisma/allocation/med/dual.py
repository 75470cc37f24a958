"""The Lagrangian dual of MED: a lower bound on every plan's sum of task seconds.

"Each learner has one task" (Eq. 4.4f) and the budget (Eq. 4.4d) are relaxed with Lagrange
multipliers: one for each learner class, of any sign (a slow learner that must work is a burden),
and one for the budget, in seconds per unit of money. The rest splits by task and level: the
cheapest way to get the task's shards from learners that end by the level. That is a fractional
knapsack, because the Lagrangian cost of d shards from one learner,

    0 for d = 0,   budget_multiplier * price * d - multiplier   for min_shards <= d <= capacity,

has a lower convex hull of one or two linear pieces. For any multipliers, the sum over tasks of the
cheapest interval, plus the multipliers of all learners, minus budget_multiplier * budget, is at
most the sum of every plan.
"""

from dataclasses import dataclass

import numpy as np

from melisma.allocation.med.learner_classes import LearnerClasses
from melisma.allocation.med.levels import LevelIntervals, LevelSet
from melisma.fleet.array_types import Bools, Floats, Ints

GUESS_ROUNDS = 100
MAX_BUDGET_MULTIPLIER = 1e6  # as a multiple of (seconds of a shard / its price)
REFINE_ROUNDS = 40
REFINE_TOGETHER = 0.01  # of the gap: intervals this near to the least are split together


@dataclass(frozen=True, eq=False)
class Multipliers:
    """Lagrange multipliers: seconds per learner of each class, and seconds per unit of money."""

    learner: Floats
    budget: float


@dataclass(frozen=True, eq=False)
class CountBounds:
    """Lower and upper bounds on the learners of a class in a task, tasks x classes."""

    low: Ints
    high: Ints


@dataclass(frozen=True, eq=False)
class DualPoint:
    """The dual function at some multipliers.

    `interval_s` is the value of each interval, `least_s` the least of each task (in interval
    `best`), `bound_s` the lower bound. `shard_multiplier` is the dual value of one more shard in
    an interval. `used` (tasks x classes) and `cost` are the fractional solution of the best
    intervals, `average_used` its average over the ascent, which is close to a plan.
    """

    multipliers: Multipliers
    interval_s: Floats
    least_s: Floats
    bound_s: float
    shard_multiplier: Floats
    best: Ints
    used: Floats
    average_used: Floats
    cost: float


@dataclass(frozen=True, eq=False)
class _Filling:
    """Intervals x pieces by rising slope: shards taken; `two_piece` are classes with two pieces."""

    interval_s: Floats
    shard_multiplier: Floats
    order: Ints
    taken: Floats
    width: Floats
    two_piece: Ints


class Knapsacks:
    """The fractional knapsacks of all intervals under count bounds, for any multipliers."""

    def __init__(
        self,
        classes: LearnerClasses,
        intervals: LevelIntervals,
        bounds: CountBounds,
        *,
        budget_multiplier_fixed: bool = False,
    ) -> None:
        low, high = bounds.low[intervals.task], bounds.high[intervals.task]
        fits = ~np.any((low > 0) & (intervals.capacity == 0), axis=1)
        self.classes, self.bounds = classes, bounds
        self.budget_multiplier_fixed = budget_multiplier_fixed
        self._select(intervals, low, high, fits)
        capacity = self.intervals.capacity * (self.low + self.free)
        enough = capacity.sum(axis=1) >= classes.demand[self.intervals.task]
        enough = enough & (self.demand >= 0)
        if not enough.all():
            self._select(self.intervals, self.low, self.low + self.free, enough)

    def _select(self, intervals: LevelIntervals, low: Ints, high: Ints, chosen: Bools) -> None:
        """Keep the chosen intervals and precompute the pieces of their knapsacks."""
        min_shards = self.classes.min_shards
        self.intervals, self.low = intervals.take(chosen), low[chosen]
        self.free = np.where(self.intervals.capacity > 0, high[chosen] - low[chosen], 0)
        self.demand = self.classes.demand[self.intervals.task] - self.low @ min_shards
        self.max_width = (self.intervals.capacity * self.free).astype(np.float64)
        self.min_width = (min_shards * self.free).astype(np.float64)
        self.forced_rest = self.low * (self.intervals.capacity - min_shards)
        self.forced = self.low.any(axis=0)
        self.unit = np.maximum(self.intervals.capacity, 1).astype(np.float64)
        counts = np.bincount(self.intervals.task, minlength=self.classes.shape[0])
        self.starts = np.cumsum(counts) - counts
        self.feasible = bool(np.all(counts > 0))

    def interval_values(self, multipliers: Multipliers) -> Floats:
        """Return the value of each interval."""
        return self._fill(multipliers).interval_s

    def evaluate(self, multipliers: Multipliers) -> DualPoint:
        """Return the dual function, and its fractional solution at each task's best interval."""
        classes, filling = self.classes, self._fill(multipliers)
        least_s = np.minimum.reduceat(filling.interval_s, self.starts)
        best = self._first_best(filling.interval_s, least_s)
        used, cost = self._solution(filling, best)
        spent_s = multipliers.budget * classes.budget if multipliers.budget > 0 else 0.0
        return DualPoint(
            multipliers,
            filling.interval_s,
            least_s,
            float(least_s.sum() + classes.members @ multipliers.learner - spent_s),
            filling.shard_multiplier,
            best,
            used,
            used,
            cost,
        )

    def _fill(self, multipliers: Multipliers) -> _Filling:
        """Fill every interval's knapsack in the order of Lagrangian cost per shard."""
        classes, multiplier = self.classes, multipliers.learner
        price_s = multipliers.budget * classes.price
        burden = multiplier >= 0
        slope = price_s - multiplier / np.where(burden, classes.min_shards, self.unit)
        width = np.where(burden, self.min_width, self.max_width)
        # Only learners that are a burden or forced to work have a second piece.
        two_piece = np.flatnonzero(burden | self.forced)
        rest = self.max_width[:, two_piece] - width[:, two_piece] + self.forced_rest[:, two_piece]
        slopes = np.concatenate([slope, np.broadcast_to(price_s[two_piece], rest.shape)], axis=1)
        widths = np.concatenate([width, rest], axis=1)
        order = np.argsort(slopes, axis=1)
        slopes = np.take_along_axis(slopes, order, axis=1)
        widths = np.take_along_axis(widths, order, axis=1)
        ends, demand = np.cumsum(widths, axis=1), self.demand[:, None]
        taken = np.clip(demand - (ends - widths), 0, widths)
        interval_s = self.intervals.low_s + np.einsum("rk,rk->r", taken, slopes)
        interval_s += self.low @ (price_s * classes.min_shards - multiplier)
        last = np.minimum((ends < demand - 1e-9).sum(axis=1), slopes.shape[1] - 1)
        critical = slopes[np.arange(last.size), last]
        return _Filling(interval_s, critical, order, taken, width, two_piece)

    def _solution(self, filling: _Filling, best: Ints) -> tuple[Floats, float]:
        """Return the learners that the best intervals take, in fractions, and their cost."""
        price, size = self.classes.price, self.classes.price.size
        amount = np.zeros((best.size, size + filling.two_piece.size))
        np.put_along_axis(amount, filling.order[best], filling.taken[best], axis=1)
        first, second = amount[:, :size], amount[:, size:]
        share = first / np.maximum(filling.width[best], 1.0)
        used: Floats = share * self.free[best] + self.low[best]
        forced = self.low[best].sum(axis=0) * self.classes.min_shards
        cost = (first.sum(axis=0) + forced) @ price
        cost = cost + second.sum(axis=0) @ price[filling.two_piece]
        return used, float(cost)

    def _first_best(self, interval_s: Floats, least_s: Floats) -> Ints:
        best = np.flatnonzero(interval_s == least_s[self.intervals.task])
        return best[np.unique(self.intervals.task[best], return_index=True)[1]]


def refine_bound(knapsacks: Knapsacks, levels: LevelSet, point: DualPoint, gap_s: float) -> float:
    """Return the bound at the same multipliers after splitting the intervals that limit it.

    Multipliers are found on intervals because there are too many levels; this recovers what the
    intervals lose.
    """
    intervals, value_s = knapsacks.intervals, point.interval_s
    task, first, last = intervals.task, intervals.first, intervals.last
    least_s = point.least_s
    for _ in range(REFINE_ROUNDS):
        limiting = value_s <= least_s[task] + REFINE_TOGETHER * max(gap_s, 0.0)
        split = limiting & (first < last)
        if not split.any():
            break
        finer = Knapsacks(
            knapsacks.classes,
            levels.split(task[split], first[split], last[split], 4),
            knapsacks.bounds,
        )
        value_s = np.concatenate([value_s[~split], finer.interval_values(point.multipliers)])
        task = np.concatenate([task[~split], finer.intervals.task])
        first = np.concatenate([first[~split], finer.intervals.first])
        last = np.concatenate([last[~split], finer.intervals.last])
        least_s = np.full(least_s.size, np.inf)
        np.minimum.at(least_s, task, value_s)
    return point.bound_s + float((least_s - point.least_s).sum())


@dataclass(frozen=True, eq=False)
class DualGuess:
    """First levels and multipliers, and an assignment (tasks + 1 x classes, the last row idle)."""

    level_s: Floats
    multipliers: Multipliers
    assignment: Ints


def guess_multipliers(classes: LearnerClasses, earliest_s: Floats) -> DualGuess:
    """Guess levels and multipliers by rounds of price adjustment with decreasing steps.

    Every learner goes to the task where its shards are worth most. A task with too few shards
    raises its level, one with too many lowers it; a shard is worth the seconds that one more saves;
    the budget multiplier rises while the budget is exceeded. The multipliers are averages over the
    second half. The guess proves nothing: it saves steps of the subgradient ascent.
    """
    tasks, every = classes.shape[0], np.arange(classes.shape[1])
    level_s = np.minimum(earliest_s * (1 + tasks) / 2, classes.deadline_s)
    shard_s = tasks / (classes.members / classes.shard_s).sum(axis=1)
    budget_multiplier, budget_average = 0.0, 0.0
    # A budget that no plan keeps would drive the multipliers beyond the range of floats.
    limit = MAX_BUDGET_MULTIPLIER * float(shard_s.mean()) / max(float(classes.price.mean()), 1e-12)
    average = np.zeros(every.size)
    choice = np.zeros(every.size, dtype=np.int64)
    for number in range(GUESS_ROUNDS):
        step = 0.3 / (1 + number / 20)
        capacity = classes.capacity(np.arange(tasks), level_s)
        payoff, amount = _payoffs(classes, capacity, shard_s, budget_multiplier)
        choice, earned = payoff.argmax(axis=0), payoff.max(axis=0)
        works = np.isfinite(earned) & ~(classes.optional & (earned <= 0))
        taken = np.where(works, amount[choice, every], 0) * classes.members
        supplied = np.bincount(choice, weights=taken, minlength=tasks)
        change = np.clip((classes.demand - supplied) / classes.demand, -0.5, 0.5)
        level_s = np.clip(level_s * (1 + step * change), earliest_s, classes.deadline_s)
        saved_s = _savings_s(classes, choice, budget_multiplier, shard_s)
        shard_s = shard_s + step * (saved_s - shard_s)
        unit = float(shard_s.mean() / max(classes.price.mean(), 1e-12))
        raised = budget_multiplier + step * 2 * unit * _overspending(classes, taken)
        budget_multiplier = min(max(0.0, raised), limit)
        if number >= GUESS_ROUNDS // 2:
            rounds = GUESS_ROUNDS - GUESS_ROUNDS // 2
            average -= np.where(np.isfinite(earned), earned, 0.0) / rounds
            budget_average += budget_multiplier / rounds
    average = np.where(classes.optional, np.minimum(average, 0.0), average)
    assignment = np.zeros((tasks + 1, every.size), dtype=np.int64)
    assignment[choice, every] = classes.members
    return DualGuess(level_s, Multipliers(average, budget_average), assignment)


def _payoffs(
    classes: LearnerClasses, capacity: Ints, shard_s: Floats, budget_multiplier: float
) -> tuple[Floats, Ints]:
    """Return the best payoff of a learner in each task and its shards there, tasks x classes."""
    margin = shard_s[:, None] - budget_multiplier * classes.price
    amount = np.where(margin > 0, capacity, classes.min_shards)
    return np.where(capacity > 0, margin * amount, -np.inf), amount


def _savings_s(
    classes: LearnerClasses, choice: Ints, budget_multiplier: float, shard_s: Floats
) -> Floats:
    """Return the seconds that one more shard saves each task, its price included."""
    class_speed = classes.members / classes.shard_s[choice, np.arange(choice.size)]
    speed = np.bincount(choice, weights=class_speed, minlength=shard_s.size)
    paid = budget_multiplier * np.bincount(
        choice, weights=classes.price * class_speed, minlength=shard_s.size
    )
    return np.where(speed > 0, (1 + paid) / np.maximum(speed, 1e-12), shard_s)


def _overspending(classes: LearnerClasses, taken: Ints) -> float:
    """Return the relative excess over the budget if all shards were taken at the same prices."""
    if not np.isfinite(classes.budget):
        return 0.0
    scale = float(classes.demand.sum()) / max(float(taken.sum()), 1.0)
    cost = taken @ classes.price * scale
    return float(np.clip(cost / max(classes.budget, 1e-12) - 1, -1, 1))
