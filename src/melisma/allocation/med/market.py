"""A first guess of levels and prices for MED: tasks bid for learners until all shards are placed.

Every learner goes where its shards are worth most. A task with too few shards placed raises its
level, one with too many lowers it; a shard is worth the seconds that one more would save; money
becomes dearer while it is overspent. Nothing is proven here: it only saves steps later.
"""

from dataclasses import dataclass

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med.bound import Prices
from melisma.allocation.med.learner_classes import LearnerClasses

ROUNDS = 100
DEAREST = 1e6  # rate of money, as a multiple of a shard's worth by its price


@dataclass(frozen=True, eq=False)
class Market:
    """Levels, prices, and where each kind would go (tasks + 1 x kinds, the last row idle)."""

    level_s: Floats
    prices: Prices
    state: Ints


def market(kinds: LearnerClasses, soonest_s: Floats) -> Market:
    """Bids in rounds with ever smaller steps; prices are averages over the second half."""
    tasks, every = kinds.shape[0], np.arange(kinds.shape[1])
    level_s = np.minimum(soonest_s * (1 + tasks) / 2, kinds.deadline_s)
    shard_s = tasks / (kinds.copies / kinds.shard_s).sum(axis=1)
    rate, rates = 0.0, 0.0
    # A budget that no plan keeps would drive the rate, and with it all worths, beyond all numbers.
    most = DEAREST * float(shard_s.mean()) / max(float(kinds.price.mean()), 1e-12)
    worths = np.zeros(every.size)
    choice = np.zeros(every.size, dtype=np.int64)
    for number in range(ROUNDS):
        step = 0.3 / (1 + number / 20)
        pay, amount = _pay(kinds, kinds.caps(np.arange(tasks), level_s), shard_s, rate)
        choice, earned = pay.argmax(axis=0), pay.max(axis=0)
        works = np.isfinite(earned) & ~(kinds.optional & (earned <= 0))
        taken = np.where(works, amount[choice, every], 0) * kinds.copies
        placed = np.bincount(choice, weights=taken, minlength=tasks)
        change = np.clip((kinds.need - placed) / kinds.need, -0.5, 0.5)
        level_s = np.clip(level_s * (1 + step * change), soonest_s, kinds.deadline_s)
        shard_s = shard_s + step * (_saved(kinds, choice, rate, shard_s) - shard_s)
        unit = float(shard_s.mean() / max(kinds.price.mean(), 1e-12))
        rate = min(max(0.0, rate + step * 2 * unit * _overspent(kinds, taken)), most)
        if number >= ROUNDS // 2:
            worths -= np.where(np.isfinite(earned), earned, 0.0) / (ROUNDS - ROUNDS // 2)
            rates += rate / (ROUNDS - ROUNDS // 2)
    worths = np.where(kinds.optional, np.minimum(worths, 0.0), worths)
    state = np.zeros((tasks + 1, every.size), dtype=np.int64)
    state[choice, every] = kinds.copies
    return Market(level_s, Prices(worths, rates), state)


def _pay(kinds: LearnerClasses, cap: Ints, shard_s: Floats, rate: float) -> tuple[Floats, Ints]:
    """Tasks x kinds: what a learner earns at most, and with how many shards."""
    margin = shard_s[:, None] - rate * kinds.price
    amount = np.where(margin > 0, cap, kinds.least)
    return np.where(cap > 0, margin * amount, -np.inf), amount


def _saved(kinds: LearnerClasses, choice: Ints, rate: float, shard_s: Floats) -> Floats:
    """Seconds that one more shard placed saves each task: longer levels get shards, at a price."""
    speed_of = kinds.copies / kinds.shard_s[choice, np.arange(choice.size)]
    speed = np.bincount(choice, weights=speed_of, minlength=shard_s.size)
    paid = rate * np.bincount(choice, weights=kinds.price * speed_of, minlength=shard_s.size)
    return np.where(speed > 0, (1 + paid) / np.maximum(speed, 1e-12), shard_s)


def _overspent(kinds: LearnerClasses, taken: Ints) -> float:
    """How far the cost would be over the budget, as a part of it, were all shards placed."""
    if not np.isfinite(kinds.budget):
        return 0.0
    whole = float(kinds.need.sum()) / max(float(taken.sum()), 1.0)
    return float(np.clip(taken @ kinds.price * whole / max(kinds.budget, 1e-12) - 1, -1, 1))
