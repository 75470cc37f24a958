"""What tasks of MED bid for learners at given levels: the dual of placing the shards in fractions.

With the levels fixed, who works where is a linear problem: place `room` times all shards, as much
as it goes, each learner between its least and its cap at one task, within the budget. Its dual
has one worth of a shard for each task and one rate of money, and pays each learner its best
option. It is minimised in smoothed form by Newton's steps, with ever less smoothing.
"""

from dataclasses import dataclass

import numpy as np

from melisma.allocation.checks import Floats
from melisma.allocation.med.bound import Prices
from melisma.allocation.med.learner_classes import Flags, LearnerClasses

SMOOTHING = (0.3, 0.1, 0.03, 0.01, 0.003)  # of what a learner is paid on average
NEWTON = 12  # steps with the same smoothing


@dataclass(frozen=True, eq=False)
class Bids:
    """Worth of a shard of each task, then of money; all shards are worth as many as they are.

    `pay` (tasks x kinds) is what a learner gets at most, for `amount` shards; minus infinity
    where it cannot end in time. With a `room` of 1 the levels are just enough.
    """

    worth: Floats
    room: float
    pay: Floats
    amount: Floats

    def gains(self, kinds: LearnerClasses) -> Floats:
        """By how much one more second of each level would raise the room."""
        margin = np.maximum(self.worth[:-1, None] - self.worth[-1] * kinds.price, 0.0)
        mine = self.pay.argmax(axis=0) == np.arange(kinds.shape[0])[:, None]
        each: Floats = (mine * margin / kinds.shard_s) @ kinds.copies / kinds.need.sum()
        return each

    def prices(self, kinds: LearnerClasses, shard_s: float) -> Prices:
        """The same as prices in seconds, where a shard is worth `shard_s` on average."""
        earned = np.maximum(self.pay.max(axis=0), np.where(kinds.optional, 0.0, -np.inf))
        return Prices(-earned * shard_s, float(self.worth[-1]) * shard_s)


def bids(kinds: LearnerClasses, level_s: Floats, start: Floats | None = None) -> Bids | None:
    """The bids under which the levels place least; None if a learner can end by none of them."""
    options = _Options(kinds, level_s)
    if options.barred.all(axis=0).any():
        return None
    if start is None:
        start = np.append(np.ones(kinds.shape[0]), 0.01 * options.priced)
    worth = start
    worth = worth * (kinds.need.sum() / float(worth[:-1] @ kinds.need))
    for part in SMOOTHING:
        worth = options.minimise(worth, part * options.paid(worth))
    worth = min([worth, *options.corners()], key=options.value)
    margin = worth[:-1, None] - worth[-1] * kinds.price
    cap, least, _ = np.split(options.amount, [kinds.shape[0], 2 * kinds.shape[0]])
    amount = np.where(margin > 0, cap, least)
    pay = np.where(cap > 0, margin * amount, -np.inf)
    best = np.maximum(pay.max(axis=0), np.where(kinds.optional, 0.0, -np.inf))
    room = float(kinds.copies @ best + worth[-1] * options.budget) / float(kinds.need.sum())
    return Bids(worth, room, pay, amount)


class _Options:
    """Options x kinds: the cap of each task, its least, and to stay idle."""

    def __init__(self, kinds: LearnerClasses, level_s: Floats) -> None:
        self.kinds, self.tasks = kinds, kinds.shape[0]
        cap = kinds.caps(np.arange(self.tasks), level_s)
        least = np.where(cap > 0, kinds.least, 0)
        self.amount = np.vstack([cap, least, 0 * kinds.least]).astype(np.float64)
        self.barred = np.vstack([cap == 0, cap == 0, ~kinds.optional])
        self.money = self.amount * kinds.price
        self.priced = bool(np.isfinite(kinds.budget))
        self.budget = kinds.budget if self.priced else 0.0

    def value(self, worth: Floats) -> float:
        """Of the dual without smoothing."""
        return float(self.kinds.copies @ self._pay(worth).max(axis=0)) + float(
            worth[-1] * self.budget
        )

    def paid(self, worth: Floats) -> float:
        """What a learner gets on average, at least what its part of the shards is worth."""
        top = np.abs(self._pay(worth).max(axis=0))
        fair = float(self.kinds.need.sum())
        return max(float(self.kinds.copies @ top), fair) / float(self.kinds.copies.sum())

    def corners(self) -> list[Floats]:
        """All worth on one task: no more is placed than of the one that fits worst."""
        total = float(self.kinds.need.sum())
        return [np.append(row, 0.0) for row in np.diag(total / self.kinds.need)]

    def _pay(self, worth: Floats) -> Floats:
        by_option = np.concatenate([worth[:-1], worth[:-1], [0.0]])[:, None]
        pay = by_option * self.amount - worth[-1] * self.money
        return np.where(self.barred, -np.inf, pay)

    def minimise(self, worth: Floats, soft: float) -> Floats:
        """Newton's steps with some smoothing, each as long as it helps."""
        value, share = self._look(worth, soft)
        for _ in range(NEWTON):
            gradient, second = self._slopes(share, soft)
            free = np.ones(worth.size, dtype=bool)
            free[-1] = self.priced and (worth[-1] > 1e-9 or gradient[-1] < 0)
            step = self._step(second, gradient, free)
            slide = float(gradient @ step)
            if slide > -1e-7 * abs(value):
                break
            falls = np.flatnonzero(step[:-1] < 0)
            length = min(1.0, 0.9 * float((worth[falls] / -step[falls]).min(initial=np.inf)))
            while length > 1e-4:
                trial = np.maximum(worth + length * step, 0.0)
                lower, shares = self._look(trial, soft)
                if lower < value:
                    break
                length /= 3
            else:
                break
            worth, value, share = trial, lower, shares
        return worth

    def _look(self, worth: Floats, soft: float) -> tuple[float, Floats]:
        """Value of the smoothed dual, and with which share each option is taken."""
        pay = self._pay(worth)
        top = pay.max(axis=0)
        part = np.exp((pay - top) / soft)
        total = part.sum(axis=0)
        paid = float(self.kinds.copies @ (top + soft * np.log(total)))
        return paid + float(worth[-1]) * self.budget, part / total

    def _slopes(self, share: Floats, soft: float) -> tuple[Floats, Floats]:
        """First and second derivative: shards and money on average, and how they vary."""
        copies, tasks = self.kinds.copies.astype(np.float64), self.tasks
        placed = share * self.amount
        each = np.vstack([self._by_task(placed), -(share * self.money).sum(axis=0)])
        gradient: Floats = each @ copies + np.append(np.zeros(tasks), self.budget)
        second = np.diag(np.append(self._by_task((placed * self.amount) @ copies), 0.0))
        second[:tasks, tasks] = second[tasks, :tasks] = -self._by_task(
            (placed * self.money) @ copies
        )
        second[tasks, tasks] = (share * self.money**2).sum(axis=0) @ copies
        return gradient, (second - (each * copies) @ each.T) / soft

    def _by_task(self, options: Floats) -> Floats:
        total: Floats = options[: self.tasks] + options[self.tasks : -1]
        return total

    def _step(self, second: Floats, gradient: Floats, free: Flags) -> Floats:
        """Newton's step that keeps what all shards are worth."""
        size = int(free.sum())
        matrix = np.zeros((size + 1, size + 1))
        matrix[:size, :size] = second[np.ix_(free, free)]
        matrix[:size, :size] += 1e-9 * np.trace(second) * np.eye(size)
        matrix[:size, size] = matrix[size, :size] = np.append(self.kinds.need, 0.0)[free]
        step = np.zeros(free.size)
        aim = np.append(-gradient[free], 0.0)
        step[free] = np.linalg.lstsq(matrix, aim, rcond=None)[0][:size]
        return step
