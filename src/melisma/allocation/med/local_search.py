"""Good associations of learners with tasks, by exchange of one learner or of two.

A state counts the learners of each kind in each task, and in a last row those that stay idle.
Task values are read from a grid of levels, with money at a rate; a task that cannot be done by
its deadline is charged for what is missing, so that the search also leads to plans that fit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med.amounts import filled
from melisma.allocation.med.learner_classes import LearnerClasses

TRIES = 6
SWEEPS = 1000
NEVER = 1e9  # shards that a learner lacks who cannot end by a level


@dataclass(frozen=True, eq=False)
class Grid:
    """Tasks x levels, in seconds, and the caps (`NEVER` below zero where even `least` is late)."""

    level_s: Floats
    cap: Floats

    @staticmethod
    def between(kinds: LearnerClasses, low_s: Floats, high_s: Floats, size: int) -> "Grid":
        """Evenly from `low_s` to `high_s`, with the deadlines at the end."""
        tasks = kinds.shape[0]
        high_s = np.minimum(high_s, kinds.deadline_s)
        low_s = np.minimum(low_s, high_s)
        level_s = np.linspace(low_s, high_s, size - 1, axis=1)
        level_s = np.column_stack([level_s, kinds.deadline_s])
        cap = kinds.caps(np.repeat(np.arange(tasks), size), level_s.ravel())
        cap = cap.reshape(tasks, size, -1).astype(np.float64)
        return Grid(level_s, np.where(cap > 0, cap, -NEVER))


class Search:
    """Exchanges learners between pairs of tasks as long as that lowers the sum of values."""

    def __init__(self, kinds: LearnerClasses, grid: Grid, rate: float, state: Ints) -> None:
        self.kinds, self.grid, self.rate, self.state = kinds, grid, rate, state
        self.tasks = kinds.shape[0]
        # More than any plan that fits, for each missing shard.
        dearest = float(kinds.need.sum() * kinds.price.max())
        self.charge_s = 2 * (float(kinds.deadline_s.sum()) + rate * dearest)
        self.value_s = np.zeros(self.tasks + 1)
        self.base: list[Floats] = [np.zeros(0)] * self.tasks
        self.gain: list[Floats] = [np.zeros(0)] * self.tasks
        for task in range(self.tasks):
            self._refresh(task)

    def descend(self, stop: Callable[[], bool]) -> None:
        """Sweep over all pairs until none improves or `stop` says so."""
        idle = self.tasks if bool(self.kinds.optional.any()) else self.tasks - 1
        pairs = [(a, b) for a in range(self.tasks) for b in range(a + 1, idle + 1)]
        fresh = dict.fromkeys(pairs, True)
        for _ in range(SWEEPS):
            if not any(fresh.values()) or stop():
                break
            for pair in pairs:
                if fresh[pair] and not stop():
                    fresh[pair] = False
                    if self._exchange(*pair):
                        for other in pairs:
                            if pair[0] in other or pair[1] in other:
                                fresh[other] = True

    def _exchange(self, a: int, b: int) -> bool:
        """The best move or swap between two tasks, if it is one."""
        from_a, from_b = self._members(a, b), self._members(b, a)
        table = self._values(a, from_a, from_b) + self._values(b, from_b, from_a).T
        before = self.value_s[a] + self.value_s[b]
        enough = before - 1e-9 * abs(before)
        # With money at a rate the table is a first-order estimate, so a few are tried.
        tries = min(TRIES if self.rate > 0 else 1, table.size)
        places = np.argpartition(table.ravel(), tries - 1)[:tries]
        for place in places[np.argsort(table.ravel()[places], kind="stable")]:
            if table.flat[place] >= enough:
                break
            row, column = divmod(int(place), table.shape[1])
            self._swap(a, b, int(from_a[row]), int(from_b[column]))
            if self.value_s[a] + self.value_s[b] < enough:
                return True
            self._swap(b, a, int(from_a[row]), int(from_b[column]))
        return False

    def _swap(self, a: int, b: int, kind: int, other: int) -> None:
        """One learner of a kind from a to b, one of another from b to a; -1 for none."""
        for source, target, moved in ((a, b, kind), (b, a, other)):
            if moved >= 0:
                self.state[source, moved] -= 1
                self.state[target, moved] += 1
        self._refresh(a)
        self._refresh(b)

    def _members(self, task: int, other: int) -> Ints:
        """Kinds that can leave a task for another one, and -1 for nobody."""
        mine = self.state[task] > 0
        if other == self.tasks:
            mine = mine & self.kinds.optional
        return np.append(np.flatnonzero(mine), -1)

    def _values(self, task: int, leave: Ints, enter: Ints) -> Floats:
        """Leave x enter: the value of a task after one learner left and one came."""
        if task == self.tasks:
            return np.zeros((leave.size, enter.size))
        kinds, grid = self.kinds, self.grid
        none = np.zeros((grid.level_s.shape[1], 1))
        cap = np.hstack([grid.cap[task], none])
        sums = self.sums(task)
        after = sums[:, None, None] - cap[:, leave, None] + cap[:, None, enter]
        fits = after >= kinds.need[task]
        least = np.append(kinds.least, 0)
        given = int(kinds.least @ self.state[task])
        late = given - least[leave][:, None] + least[enter] - kinds.need[task]
        if self.rate > 0:
            gain = np.hstack([self.gain[task], none])
            level_s = self.base[task][:, None, None] - gain[:, leave, None] + gain[:, None, enter]
            value_s = np.where(fits, level_s, np.inf).min(axis=0)
        else:
            first = fits.argmax(axis=0)
            value_s = np.where(fits.any(axis=0), grid.level_s[task][first], np.inf)
        missing = np.where(fits[-1], 0.0, kinds.need[task] - after[-1]) + np.maximum(late, 0)
        charged_s = self.charge_s * (1 + missing)
        values: Floats = np.where(np.isfinite(value_s) & (late <= 0), value_s, charged_s)
        return values

    def level_s(self) -> Floats:
        """For each task the level at which its value is reached; the deadline if it is not."""
        found = self.kinds.deadline_s.copy()
        for task in range(self.tasks):
            fits = self.sums(task) >= self.kinds.need[task]
            value_s = self.base[task] if self.rate > 0 else self.grid.level_s[task]
            if fits.any():
                found[task] = self.grid.level_s[task][np.where(fits, value_s, np.inf).argmin()]
        return found

    def sums(self, task: int) -> Floats:
        """What the learners of a task can do by each level."""
        mine = np.flatnonzero(self.state[task])
        sums: Floats = self.grid.cap[task][:, mine] @ self.state[task][mine]
        return sums

    def _refresh(self, task: int) -> None:
        """Value of a task as it is, and what its table of exchanges needs."""
        if task == self.tasks:
            return
        if self.rate > 0:
            self._price(task)
        nobody = np.array([-1])
        self.value_s[task] = self._values(task, nobody, nobody)[0, 0]

    def _price(self, task: int) -> None:
        """Cost at each level, and how it changes with one learner, by the price at the margin."""
        kinds = self.kinds
        cap = np.maximum(self.grid.cap[task], 0).astype(np.int64)
        counts, need = self.state[task][None], kinds.need[[task]]
        given = filled(kinds, need, counts, np.maximum(cap, kinds.least * counts))
        full = (given > counts * kinds.least) * (counts > 0)
        last = full.shape[1] - 1 - full[:, ::-1].argmax(axis=1)
        margin = np.where(full.any(axis=1), kinds.price[last], 0.0)[:, None]
        amount = np.where(kinds.price < margin, cap, kinds.least)
        self.gain[task] = self.rate * (kinds.price - margin) * amount
        self.base[task] = self.grid.level_s[task] + self.rate * (given @ kinds.price)
