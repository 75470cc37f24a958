"""Whole learners for the bids of MED: each where it is paid best, then moves and swaps."""

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med.learner_classes import LearnerClasses
from melisma.allocation.med.smoothed_dual import Bids

MOVES = 600
CANDIDATES = 25  # for a swap, from each of two tasks
SPARE = 0.2  # what a shard too many is worth, as a part of one that lacks


class Placing:
    """Each learner at the task that pays it best, and what lacks or is left then.

    `left` has the shards of each task, nothing for idle learners, and the money.
    """

    def __init__(self, kinds: LearnerClasses, found: Bids) -> None:
        self.kinds, self.tasks = kinds, kinds.shape[0]
        self.kind = np.repeat(np.arange(kinds.shape[1]), kinds.copies)
        idle = np.where(kinds.optional, 0.0, -np.inf)
        self.pay = np.vstack([found.pay, idle])[:, self.kind]
        self.amount = np.vstack([found.amount, 0 * kinds.price])[:, self.kind]
        self.cost = self.amount * kinds.price[self.kind]
        self.worth = np.concatenate([found.worth[:-1], [0.0], found.worth[-1:]])
        self.task_of = self.pay.argmax(axis=0)
        self.regret = self.pay.max(axis=0) - self.pay

    def settle(self) -> Ints:
        """The state after the best moves, and swaps where no move helps, until nothing lacks."""
        for _ in range(MOVES):
            left = self._left()
            if np.all(left >= 0):
                break
            gain, moves = self._move(left)
            if gain <= 1e-9:
                gain, moves = self._swap(left)
            if gain <= 1e-9:
                break
            for learner, task in moves:
                self.task_of[learner] = task
        self._relieve()
        state = np.zeros((self.tasks + 1, self.kinds.shape[1]), dtype=np.int64)
        np.add.at(state, (self.task_of, self.kind), 1)
        return state

    def _relieve(self) -> None:
        """Send learners away from tasks with fewer shards than they must get, who can do least."""
        least = self.kinds.least[self.kind]
        for task in range(self.tasks):
            mine = np.flatnonzero(self.task_of == task)
            over = int(least[mine].sum()) - int(self.kinds.need[task])
            for learner in mine[np.argsort(self.amount[task, mine], kind="stable")]:
                if over <= 0:
                    break
                done = np.bincount(self.task_of, weights=least, minlength=self.tasks + 1)
                free = np.append(self.kinds.need - done[:-1] >= least[learner], True)
                pay = np.where(free, self.pay[:, learner], -np.inf)
                pay[task] = -np.inf
                if np.isfinite(pay.max()):
                    self.task_of[learner] = int(pay.argmax())
                    over -= int(least[learner])

    def _left(self) -> Floats:
        every = np.arange(self.kind.size)
        amount = self.amount[self.task_of, every]
        done = np.bincount(self.task_of, weights=amount, minlength=self.tasks + 1)
        spent = self.cost[self.task_of, every].sum()
        money = self.kinds.budget - spent if self.worth[-1] > 0 else 0.0
        return np.concatenate([done[:-1] - self.kinds.need, [0.0, money]])

    def _value(self, which: int | Ints, left: Floats | float) -> Floats:
        value: Floats = self.worth[which] * np.where(np.asarray(left) < 0, 1.0, SPARE) * left
        return value

    def _move(self, left: Floats) -> tuple[float, list[tuple[int, int]]]:
        every, tasks, to = (
            np.arange(self.kind.size),
            self.task_of,
            np.arange(self.tasks + 1)[:, None],
        )
        amount, now = self.amount[tasks, every], self._value(np.arange(left.size), left)
        gain = self._value(tasks, left[tasks] - amount) - now[tasks]
        gain = gain + self._value(to, left[to] + self.amount) - now[to]
        gain = gain + self._value(-1, left[-1] + self.cost[tasks, every] - self.cost) - now[-1]
        gain = np.where(np.isinf(self.pay) | (to == tasks), -np.inf, gain)
        task, learner = divmod(int(gain.argmax()), every.size)
        return float(gain[task, learner]), [(learner, task)]

    def _swap(self, left: Floats) -> tuple[float, list[tuple[int, int]]]:
        best: tuple[float, list[tuple[int, int]]] = (0.0, [])
        for a in range(self.tasks + 1):
            for b in range(a):
                if min(left[a], left[b], left[-1]) < 0:
                    best = max(best, self._swap_between(left, a, b), key=lambda each: each[0])
        return best

    def _swap_between(self, left: Floats, a: int, b: int) -> tuple[float, list[tuple[int, int]]]:
        one, two = self._ready(a, b)[:, None], self._ready(b, a)
        if not one.size or not two.size:
            return 0.0, []
        gain = self._value(a, left[a] - self.amount[a, one] + self.amount[a, two])
        gain = gain + self._value(b, left[b] + self.amount[b, one] - self.amount[b, two])
        saved = self.cost[a, one] - self.cost[b, one] + self.cost[b, two] - self.cost[a, two]
        gain = gain + self._value(-1, left[-1] + saved)
        place, column = divmod(int(gain.argmax()), two.size)
        before = self._value(np.array([a, b, -1]), left[[a, b, -1]]).sum()
        moves = [(int(one[place, 0]), b), (int(two[column]), a)]
        return float(gain.max() - before), moves

    def _ready(self, task: int, other: int) -> Ints:
        """Learners of a task that lose least at another one."""
        mine = np.flatnonzero((self.task_of == task) & np.isfinite(self.regret[other]))
        return mine[np.argsort(self.regret[other, mine], kind="stable")[:CANDIDATES]]
