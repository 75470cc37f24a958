"""Plans from columns: one column of each task, every learner in one, within slack and budget."""

from dataclasses import dataclass

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med.columns import Code, Columns
from melisma.allocation.med.learner_classes import Flags

BLOCK = 1 << 20


@dataclass(frozen=True, eq=False)
class Reach:
    """How far above the bound plans are looked for, and among how many partial ones at most."""

    slack_s: float
    limit: int


@dataclass(frozen=True, eq=False)
class Joined:
    """Columns of some tasks put together: learners used, sums, and the columns by number."""

    code: Ints
    level_s: Floats
    cost: Floats
    excess_s: Floats
    picks: Ints


def join(
    lists: list[Columns], code: Code, optional: Flags, budget: float, reach: Reach
) -> tuple[float, Ints] | None:
    """The least sum of levels and the columns that give it; infinite if there is none.

    None if more than `limit` partial plans appear on the way.
    """
    order = sorted(range(len(lists)), key=lambda i: (lists[i].code.size, i))
    if any(columns.code.size == 0 for columns in lists):
        return np.inf, np.zeros(0, dtype=np.int64)
    joined = _single(lists[order[0]])
    for i in order[1:-1]:
        grown = _pairs(joined, lists[i], code, reach)
        if grown is None:
            return None
        joined = _best_of_equals(grown)
    last = lists[order[-1]]
    if len(order) > 1:
        if optional.any():
            found = _pairs(joined, last, code, reach)
            if found is None:
                return None
            joined = found
        else:
            joined = _complete(joined, last, code, reach.slack_s)
    left = code.unpack(code.every - joined.code)
    whole = np.all((left == 0) | optional, axis=1)
    good = np.flatnonzero(whole & (joined.cost <= budget))
    if not good.size:
        return np.inf, np.zeros(0, dtype=np.int64)
    # Equal sums are told apart by cost and then by learners, never by place.
    first = np.lexsort((joined.code[good], joined.cost[good], joined.level_s[good]))[0]
    picks = np.empty(len(lists), dtype=np.int64)
    picks[order] = joined.picks[good[first]]
    return float(joined.level_s[good[first]]), picks


def _single(columns: Columns) -> Joined:
    numbers = np.arange(columns.code.size)[:, None]
    return Joined(columns.code, columns.level_s, columns.cost, columns.excess_s, numbers)


def _pairs(joined: Joined, columns: Columns, code: Code, reach: Reach) -> Joined | None:
    """All pairs without a common learner and within the slack."""
    order = np.argsort(joined.excess_s, kind="stable")
    excess_s = joined.excess_s[order]
    ahead = np.searchsorted(columns.excess_s, reach.slack_s - excess_s, side="right")
    if int(ahead.sum()) > 400 * reach.limit:
        return None
    left: list[Ints] = []
    right: list[Ints] = []
    start, size = 0, 0
    while start < order.size and ahead[start] > 0:
        end = min(order.size, start + max(1, BLOCK // int(ahead[start])))
        some, width = order[start:end], int(ahead[start])
        apart = ((joined.code[some] + code.spare)[:, None] + columns.code[:width]) & code.guard
        a, b = np.nonzero(apart == 0)
        near = b < ahead[start:end][a]
        left.append(some[a[near]])
        right.append(b[near])
        size += left[-1].size
        if size > reach.limit:
            return None
        start = end
    if not left:
        left = right = [np.zeros(0, dtype=np.int64)]
    return _put_together(joined, columns, np.concatenate(left), np.concatenate(right))


def _complete(joined: Joined, columns: Columns, code: Code, slack_s: float) -> Joined:
    """Each partial plan with the columns of exactly the learners that it leaves."""
    order = np.argsort(columns.code, kind="stable")
    rest = code.every - joined.code
    first = np.searchsorted(columns.code[order], rest, side="left")
    many = np.searchsorted(columns.code[order], rest, side="right") - first
    a = np.repeat(np.arange(rest.size), many)
    b = np.arange(a.size) - np.repeat(np.cumsum(many) - many, many) + first[a]
    b = order[b]
    near = joined.excess_s[a] + columns.excess_s[b] <= slack_s
    return _put_together(joined, columns, a[near], b[near])


def _put_together(joined: Joined, columns: Columns, a: Ints, b: Ints) -> Joined:
    return Joined(
        joined.code[a] + columns.code[b],
        joined.level_s[a] + columns.level_s[b],
        joined.cost[a] + columns.cost[b],
        joined.excess_s[a] + columns.excess_s[b],
        np.column_stack([joined.picks[a], b]),
    )


def _best_of_equals(joined: Joined) -> Joined:
    """Of partial plans with the same learners those that no other beats in sum and in cost."""
    order = np.lexsort((joined.cost, joined.level_s, joined.code))
    code, cost = joined.code[order], joined.cost[order]
    start = np.append(True, code[1:] != code[:-1])[: code.size]
    # The least cost so far within a group, in exact ranks: each group lies below all before it.
    rank = np.unique(cost, return_inverse=True)[1] - np.cumsum(start) * (cost.size + 1)
    better = start.copy()
    better[1:] |= rank[1:] < np.minimum.accumulate(rank)[:-1]
    kept = order[better]
    return Joined(
        joined.code[kept],
        joined.level_s[kept],
        joined.cost[kept],
        joined.excess_s[kept],
        joined.picks[kept],
    )
