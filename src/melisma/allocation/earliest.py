"""The earliest deadline by which all data can be trained once, to the last bit."""

import numpy as np

from melisma.allocation.checks import Ints
from melisma.allocation.costs import CycleCosts

# So many shards are looked at one by one.
FEW = 2**16


def earliest_deadline_s(costs: CycleCosts, low: Ints, high: Ints, shards: int) -> float:
    """When each can have trained `low` shards once, all together `shards`, none above `high`."""
    return max(float(costs.seconds(low, 1).max()), _together(costs, high, shards))


def _together(costs: CycleCosts, high: Ints, shards: int) -> float:
    # Between two deadlines lie the ends of single shards. Once these are few, the one that is
    # missing is the answer.
    early_s, late_s = 0.0, float(costs.seconds(np.minimum(high, shards), 1).max())
    early, late = np.zeros_like(high), np.minimum(high, shards)
    few, steps = max(FEW, 2 * high.size), 0
    while (between := int(late.sum()) - int(early.sum())) > few:
        steps += 1
        # Counts grow about in a straight line; each third step halves what is left.
        share = (shards - int(early.sum())) / between if steps % 3 else 0.5
        middle_s = early_s + share * (late_s - early_s)
        if not early_s < middle_s < late_s:
            middle_s = early_s + (late_s - early_s) / 2
        if not early_s < middle_s < late_s:
            return late_s
        middle = np.minimum(costs.most_shards(1, middle_s, shards), high)
        if int(middle.sum()) >= shards:
            late_s, late = middle_s, middle
        else:
            early_s, early = middle_s, middle
    return _end_of(costs, early, late, shards - int(early.sum()))


def _end_of(costs: CycleCosts, early: Ints, late: Ints, missing: int) -> float:
    """When the last of so many shards after `early` ends, if they end in the order of time."""
    who = np.repeat(np.arange(early.size), late - early)
    first = np.repeat(np.cumsum(late - early) - (late - early), late - early)
    number = early[who] + 1 + np.arange(who.size) - first
    ends_s = costs.take(who).seconds(number, 1)
    return float(np.partition(ends_s, missing - 1)[missing - 1])
