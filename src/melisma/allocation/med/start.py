"""Plans from prices: every learner to the task that pays it best, then exchanges."""

from collections.abc import Callable

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med.bound import Knapsacks, Relaxed
from melisma.allocation.med.learner_classes import LearnerClasses
from melisma.allocation.med.local_search import Grid, Search

GRID = 32  # levels


def rounded(sacks: Knapsacks, relaxed: Relaxed) -> Ints:
    """Tasks + 1 x kinds: each learner where its shards are worth most at the cheapest rows."""
    kinds, best = sacks.kinds, relaxed.best
    cap, shard_worth = sacks.rows.cap[best], relaxed.critical[best][:, None]
    margin = shard_worth - relaxed.prices.rate * kinds.price
    pay = np.where(cap > 0, np.maximum(margin * cap, margin * kinds.least), -np.inf)
    late = kinds.fixed_s + kinds.shard_s * kinds.least - sacks.rows.high_s[best][:, None]
    choice = np.where(np.isfinite(pay).any(axis=0), pay.argmax(axis=0), late.argmin(axis=0))
    idle = kinds.optional & (pay.max(axis=0) <= 0)
    choice = np.where(idle, kinds.shape[0], choice)
    state = np.zeros((kinds.shape[0] + 1, choice.size), dtype=np.int64)
    state[choice, np.arange(choice.size)] = kinds.copies
    return state


def usual(kinds: LearnerClasses, relaxed: Relaxed) -> Ints:
    """Tasks + 1 x kinds: each learner where it was used most on the way to the prices."""
    share = np.vstack([relaxed.usual, np.where(kinds.optional, 0.5, -1.0) * kinds.copies])
    choice = share.argmax(axis=0)
    state = np.zeros((kinds.shape[0] + 1, choice.size), dtype=np.int64)
    state[choice, np.arange(choice.size)] = kinds.copies
    return state


def improved(
    kinds: LearnerClasses, state: Ints, level_s: Floats, rate: float, stop: Callable[[], bool]
) -> Ints:
    """Exchanges on a grid around given levels, then on a finer one around what came out."""
    for width in (0.3, 0.03):
        grid = Grid.between(kinds, level_s * (1 - width), level_s * (1 + width), GRID)
        search = Search(kinds, grid, rate, state.copy())
        search.descend(stop)
        state, level_s = search.state, search.level_s()
    return state


def thrifty_state(kinds: LearnerClasses, state: Ints, stop: Callable[[], bool]) -> Ints:
    """Exchanges that lower the cost by the deadlines."""
    grid = Grid.between(kinds, kinds.deadline_s, kinds.deadline_s, 2)
    search = Search(kinds, grid, 1.0, state.copy())
    search.descend(stop)
    return search.state
