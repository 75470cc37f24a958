"""The search of MED: bound and plans at the root, then branches until the gap is closed.

A branch limits how many learners of one kind work for one task. Each node gets its own prices;
it ends when its bound reaches the best plan, when enumeration settles it, or when nothing is left
to decide. So the search is complete, and its bound true, whenever it is stopped.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med.bound import CountBounds, Knapsacks, Prices, Relaxed
from melisma.allocation.med.certificate import certified
from melisma.allocation.med.enumeration import TELLING, best_below
from melisma.allocation.med.levels import LevelIntervals
from melisma.allocation.med.objective import Objective, everybody
from melisma.allocation.med.subgradient import ascend

ROWS = 1 << 18  # rows x kinds that a node may hold
FINE = 1 << 13  # rows, for few kinds
HELD = 1 << 22  # of them at the most, however many kinds there are
CHEAP = 1 << 10  # of them cost no less to look at
FEW = 1 << 13  # of them need not be found out step by step
MOST_ROWS = 1000  # for many kinds
STEPS = 1.5  # of prices between two looks at rows, for each kind, from 60 to 180
FIRST_CUT = 0.3  # of the gap: rows that near to the bound are cut before all others
SHARPER = 5  # times that rows are cut before prices move
LIMIT = 200_000  # columns of an enumeration, before it is left to branches

StopCheck = Callable[["Tree"], bool]


@dataclass(frozen=True, eq=False)
class SearchNode:
    """A part of all associations, with the rows and prices to start from."""

    bound_s: float
    limits: CountBounds
    rows: LevelIntervals
    prices: Prices


@dataclass(eq=False)
class Tree:
    """The state of a search: best plan so far, open nodes, and what is proven."""

    goal: Objective
    best_s: float = np.inf
    counts: Ints | None = None
    open: list[tuple[float, int, SearchNode]] = field(default_factory=list)
    settled_s: float = np.inf
    guess_s: float = np.inf
    busy_s: float = np.inf  # bound of the node at work, which is not among the open ones
    gap: float = 0.0
    searched: int = 0
    work: float = 0.0  # entries of rows looked at, about 10^7 in a second
    number: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def bound_s(self) -> float:
        """No plan has a lower sum; infinite if there is no plan at all."""
        least_s = min(self.open[0][0] if self.open else np.inf, self.settled_s, self.busy_s)
        # Rows and nodes at or above the cut were left out.
        least_s = min(least_s, self._cut(self.gap))
        # Sums of prices and seconds are not told apart below their rounding.
        return self.best_s if least_s >= self.best_s * (1 - 2 * TELLING) else least_s

    def offer(self, counts: Ints) -> bool:
        """Keep an association if its best amounts are better than all before; if it has any."""
        value_s, _ = self.goal.value(counts)
        if value_s < self.best_s:
            self.best_s, self.counts = value_s, counts.copy()
        return bool(np.isfinite(value_s))

    def run(self, stop: StopCheck, gap: float = 0.0) -> None:
        """Search until nothing is open, the gap is reached, or `stop` says so."""
        self.gap = max(self.gap, gap)
        while self.open and not stop(self):
            cut_s = self._cut(gap)
            bound_s, _, node = heapq.heappop(self.open)
            if bound_s >= cut_s:
                self.settled_s = min(self.settled_s, bound_s)
                continue
            self.busy_s = bound_s
            self._expand(node, gap, stop)
            self.busy_s = np.inf
            self.searched += 1

    def decided(self, limit: float) -> bool:
        """Whether it is known that there is a plan within the limit, or that there is none."""
        fits = self.counts is not None and self.best_s <= limit
        return fits or self.bound_s > limit * (1 + TELLING)

    def _cut(self, gap: float) -> float:
        """Plans at or above this are not worth looking for."""
        if np.isinf(self.best_s):
            return self.goal.most_s
        return self.best_s - max(gap * (1 - TELLING), TELLING) * abs(self.best_s)

    def push(self, node: SearchNode) -> None:
        heapq.heappush(self.open, (node.bound_s, next(self.number), node))

    def _expand(self, node: SearchNode, gap: float, stop: StopCheck) -> None:
        tight = self._tighten(node, gap, stop)
        if tight is None:
            return
        sacks, relaxed, bound_s = tight
        cut_s = self._cut(gap)
        if bound_s >= cut_s:
            self.settled_s = min(self.settled_s, bound_s)
            return
        for aim in self.goal.aims(relaxed) if sacks.rows.exact else ():
            found = best_below(sacks, relaxed, aim, cut_s, LIMIT)
            self.work += found.work
            bound_s = max(bound_s, found.bound_s)
            if found.counts is not None:
                self.offer(found.counts)
            # Without a look at money, the best may be too dear: then only its bound counts.
            if found.complete and (found.counts is None or self.best_s <= bound_s * (1 + TELLING)):
                self.settled_s = min(self.settled_s, bound_s)
                return
        if stop(self):
            self.push(SearchNode(bound_s, node.limits, sacks.rows, relaxed.prices))
            return
        for limits in _branches(sacks, relaxed):
            self._child(limits, SearchNode(bound_s, limits, sacks.rows, relaxed.prices))

    def _child(self, limits: CountBounds, node: SearchNode) -> None:
        if np.any(limits.low < limits.high):
            self.push(node)
        elif self.offer(limits.low):
            self.settled_s = min(self.settled_s, self.goal.value(limits.low)[1])

    def _tighten(
        self, node: SearchNode, gap: float, stop: StopCheck
    ) -> tuple[Knapsacks, Relaxed, float] | None:
        """Prices, plans and finer rows, in turn, until rows are exact or nothing improves.

        None if the node holds no plan; otherwise with the best bound on the way.
        """
        rows, prices, bound_s = node.rows, node.prices, node.bound_s
        idle, last_s = 0, np.inf
        number = -1
        while True:
            number += 1
            sacks = Knapsacks(self.goal.kinds, rows, node.limits, rate_fixed=self.goal.rate_fixed)
            if not sacks.possible:
                return None
            if number < SHARPER and not sacks.rows.exact:
                rows = self._near(sacks, sacks.relax(prices), gap)
                continue
            steps = int(np.clip(STEPS * prices.worth.size, 60, 180))
            goal_s = min(self.best_s, max(self.guess_s, bound_s + 0.02 * abs(bound_s)))
            relaxed = ascend(sacks, prices, goal_s, steps, lambda: stop(self))
            self.work += steps * max(sacks.rows.cap.size, CHEAP)
            self.goal.search(self, sacks, relaxed, number, lambda: stop(self))
            room_s = self._cut(gap) - relaxed.bound_s
            bound_s = max(bound_s, certified(sacks, self.goal.ladder, relaxed, room_s))
            if bound_s >= self._cut(gap) or stop(self):
                return sacks, relaxed, bound_s
            idle = idle + 1 if room_s > 0.9 * last_s else 0
            last_s, prices = min(last_s, room_s), relaxed.prices
            if idle >= (1 if sacks.rows.exact else 4):
                return sacks, relaxed, bound_s
            rows = self._near(sacks, relaxed, gap)

    def _near(self, sacks: Knapsacks, relaxed: Relaxed, gap: float) -> LevelIntervals:
        """Only rows that a plan below the cut can have, in finer ones."""
        excess_s = relaxed.row_s - relaxed.least_s[sacks.rows.task]
        room_s = max(0.0, self._cut(gap) - relaxed.bound_s)
        near = excess_s <= room_s
        return self._finer(sacks.rows.keep(near), excess_s[near], FIRST_CUT * room_s)

    def _finer(self, rows: LevelIntervals, excess_s: Floats, first_s: float) -> LevelIntervals:
        """Rows cut into four, those nearest to the bound first, as many as a node may hold."""
        wide = np.flatnonzero(rows.first < rows.last)
        many = rows.cap.shape[1]
        most = max(min(ROWS // many, FINE), min(MOST_ROWS, HELD // many))
        places = max(0, most - rows.task.size) // 3
        if not wide.size or not places:
            return rows
        if int((rows.last - rows.first + 1).sum()) * rows.cap.shape[1] <= FEW:
            return self.goal.ladder.refine(rows, rows.last - rows.first + 1)
        if np.any(excess_s[wide] <= first_s):
            wide = wide[excess_s[wide] <= first_s]
        cut = np.zeros(rows.task.size, dtype=bool)
        cut[wide[np.argsort(excess_s[wide], kind="stable")[:places]]] = True
        return self.goal.ladder.refine(rows, np.where(cut, 4, 1))


def _never(_: Tree) -> bool:
    return False


def root_tree(goal: Objective, stop: StopCheck = _never) -> Tree:
    """A tree with nothing but its root."""
    tree = Tree(goal)
    start = goal.start(tree, lambda: stop(tree))
    tree.guess_s = start.guess_s
    tree.push(SearchNode(goal.least_s, everybody(goal.kinds), start.rows, start.prices))
    return tree


def _branches(sacks: Knapsacks, relaxed: Relaxed) -> list[CountBounds]:
    """Two parts: fewer and more learners of the most disputed kind in the task that wants it."""
    limits, kinds = sacks.limits, sacks.kinds
    free = limits.high > limits.low
    dispute = np.abs(relaxed.used.sum(axis=0) - kinds.copies) + 1e-3
    dispute = dispute * (np.abs(relaxed.prices.worth) + 1e-9)
    kind = int(np.where(free.any(axis=0), dispute, -1.0).argmax())
    task = int(np.where(free[:, kind], relaxed.used[:, kind], -1.0).argmax())
    low, high = int(limits.low[task, kind]), int(limits.high[task, kind])
    split = int(np.clip(np.ceil(relaxed.used[task, kind]) - 1, low, high - 1))
    fewer, more = limits.high.copy(), limits.low.copy()
    fewer[task, kind], more[task, kind] = split, split + 1
    parts = [CountBounds(more, limits.high), CountBounds(limits.low, fewer)]
    return [part for part in (_propagate(sacks, part, kind) for part in parts) if part]


def _propagate(sacks: Knapsacks, limits: CountBounds, kind: int) -> CountBounds | None:
    """What limits on one kind say about its other tasks; None if they cannot be kept."""
    low, high, copies = limits.low.copy(), limits.high.copy(), int(sacks.kinds.copies[kind])
    others = low[:, kind].sum() - low[:, kind]
    high[:, kind] = np.minimum(high[:, kind], copies - others)
    if not sacks.kinds.optional[kind]:
        others = high[:, kind].sum() - high[:, kind]
        low[:, kind] = np.maximum(low[:, kind], copies - others)
    possible = np.all(low[:, kind] <= high[:, kind]) and low[:, kind].sum() <= copies
    return CountBounds(low, high) if possible else None
