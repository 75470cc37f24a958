"""The bound of MED at given prices with single levels, where rows are intervals.

Prices are found on intervals, because there are too many levels for that. What the intervals lose
comes back here: those that hold the bound down are cut again and again.
"""

import numpy as np

from melisma.allocation.med.bound import Knapsacks, Relaxed
from melisma.allocation.med.levels import Ladder

ROUNDS = 40
NEAR = 0.01  # of the gap: rows so near to the least are cut together


def certified(sacks: Knapsacks, ladder: Ladder, relaxed: Relaxed, room_s: float) -> float:
    """The bound after cutting rows; at least that of `relaxed`, and as true."""
    rows, value_s = sacks.rows, relaxed.row_s
    task, first, last = rows.task, rows.first, rows.last
    least_s = relaxed.least_s
    for _ in range(ROUNDS):
        low = value_s <= least_s[task] + NEAR * max(room_s, 0.0)
        cut = low & (first < last)
        if not cut.any():
            break
        finer = Knapsacks(
            sacks.kinds, ladder.split(task[cut], first[cut], last[cut], 4), sacks.limits
        )
        value_s = np.concatenate([value_s[~cut], finer.values(relaxed.prices)])
        task = np.concatenate([task[~cut], finer.rows.task])
        first = np.concatenate([first[~cut], finer.rows.first])
        last = np.concatenate([last[~cut], finer.rows.last])
        least_s = np.full(least_s.size, np.inf)
        np.minimum.at(least_s, task, value_s)
    return relaxed.bound_s + float((least_s - relaxed.least_s).sum())
