"""Better prices for the bound of MED, by subgradient steps.

A kind that several tasks use must ask for more, one that nobody uses for less, and money becomes
dear when it is overspent. The step is Polyak's: towards a goal that no plan need exceed.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from melisma.allocation.checks import Floats
from melisma.allocation.med.bound import Knapsacks, Prices, Relaxed

MOMENTUM = 0.8
SHRINKING = 0.5
AVERAGING = 0.08
POWER = 1.5
STRETCH = 5.0
LARGE = 200  # kinds, from which a step seldom helps by itself


def ascend(
    sacks: Knapsacks, prices: Prices, goal_s: float, steps: int, stop: Callable[[], bool]
) -> Relaxed:
    """The best bound found in so many steps; it ends early when the steps become too small."""
    kinds = sacks.kinds
    scale = 1.0 / max(float(kinds.price @ kinds.copies) / kinds.copies.sum() * 4, 1e-12)
    now = best = sacks.relax(prices)
    usual = now.used
    patience = 20 if prices.worth.size > LARGE else 10
    length, since = 1.0, 0
    drift = np.zeros(prices.worth.size + 1)
    ways = _ways(sacks, now, scale)
    size = np.abs(prices.worth) / max(np.abs(prices.worth).mean(), 1e-12)
    size = np.append((0.3 + size) / 1.3, 1.0) ** POWER
    for _ in range(steps):
        gap_s = goal_s - now.bound_s
        if gap_s <= 0 or length < 0.02 or stop():
            break
        drift = MOMENTUM * drift + _gradient(sacks, now, scale)
        moved = drift * size + STRETCH * (ways.T @ (ways @ drift))
        square = float(drift @ moved)
        if square < 1e-18:
            break
        now = sacks.relax(_step(sacks, now.prices, moved * (length * gap_s / square), scale))
        usual = usual + AVERAGING * (now.used - usual)
        since += 1
        if now.bound_s > best.bound_s:
            since = 0 if now.bound_s > best.bound_s + 1e-4 * gap_s else since
            best = now
        if since >= patience:
            now, length, since = best, length * SHRINKING, 0
            drift = np.zeros(drift.size)
            ways = _ways(sacks, now, scale)
    return replace(best, usual=usual)


def _ways(sacks: Knapsacks, now: Relaxed, scale: float) -> Floats:
    """Directions in which many prices move together: a shard of a task, or money, at another price.

    What a learner earns is (worth of a shard - rate * price) * shards.
    """
    kinds, root = sacks.kinds, np.sqrt(sacks.kinds.copies)
    amount = sacks.rows.cap[now.best] * now.used / np.maximum(kinds.copies, 1) * root
    ways = np.column_stack([-amount, np.zeros(kinds.shape[0])])
    if not sacks.rate_fixed and np.isfinite(kinds.budget):
        ways = np.vstack([ways, np.append(kinds.price * amount.sum(axis=0), 1 / scale)])
    length: Floats = np.linalg.norm(ways, axis=1, keepdims=True)
    return ways / np.maximum(length, 1e-12)


def _gradient(sacks: Knapsacks, now: Relaxed, scale: float) -> Floats:
    kinds, worth = sacks.kinds, now.prices.worth
    unused = (kinds.copies - now.used.sum(axis=0)) / np.sqrt(kinds.copies)
    unused = np.where(kinds.optional & (worth >= 0), np.minimum(unused, 0.0), unused)
    over = 0.0 if sacks.rate_fixed else (now.cost - kinds.budget) * scale
    if not np.isfinite(over) or (now.prices.rate <= 0 and over < 0):
        over = 0.0
    return np.append(unused, over)


def _step(sacks: Knapsacks, prices: Prices, step: Floats, scale: float) -> Prices:
    kinds = sacks.kinds
    worth = prices.worth + step[:-1] / np.sqrt(kinds.copies)
    worth = np.where(kinds.optional, np.minimum(worth, 0.0), worth)
    rate = prices.rate if sacks.rate_fixed else max(0.0, prices.rate + float(step[-1]) * scale)
    return Prices(worth, rate)
