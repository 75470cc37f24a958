"""Plans of MED for many learners: levels that just place all shards, then whole learners.

Levels are lowered and raised, one or two at a time, to where the bids of `bids` say that the
shards fit with the least sum. Each learner then goes where it is paid best, all but about as many
as there are tasks without doubt; `placing` settles these.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from melisma.allocation.checks import Floats, Ints
from melisma.allocation.med.learner_classes import LearnerClasses
from melisma.allocation.med.repair import SPARE, Placing
from melisma.allocation.med.smoothed_dual import Bids, bids

ROOMS = (1.002, 1.001, 1.0004)  # more than enough, for what whole learners lose
ROUNDS = 100  # of levels, for each of these
WIDTHS = (0.06, 0.002)  # of a change of a level, as a part: at first, and in the end
LACK = 0.02  # of the room, at the most, on the way
CHOICES = 31  # of a level
TRIES = 3  # of pairs of levels


def placed(
    kinds: LearnerClasses, level_s: Floats, stop: Callable[[], bool]
) -> Iterator[tuple[Bids, Ints]]:
    """Bids, and associations by them (tasks + 1 x kinds, the last row idle), near these levels."""
    level_s = _opened(kinds, level_s)
    found = bids(kinds, level_s)
    for room in ROOMS:
        if found is None or stop():
            return
        level_s, found = _Levels(kinds, room, level_s, found).descend()
        yield found, Placing(kinds, found).settle()


def _opened(kinds: LearnerClasses, level_s: Floats) -> Floats:
    """Levels, one of them raised so that every learner can end by one of them."""
    first_s = kinds.fixed_s + kinds.shard_s * kinds.least
    lonely = (first_s > level_s[:, None]).all(axis=0) & ~kinds.optional
    if not lonely.any():
        return level_s
    wanted_s = np.maximum(first_s[:, lonely].max(axis=1), level_s)
    rise_s = np.where(wanted_s <= kinds.deadline_s, wanted_s - level_s, np.inf)
    raised = level_s.copy()
    raised[rise_s.argmin()] = min(wanted_s[rise_s.argmin()], kinds.deadline_s[rise_s.argmin()])
    return raised


@dataclass(eq=False)
class _Levels:
    """Levels and their bids, on the way to the least sum with enough room."""

    kinds: LearnerClasses
    room: float
    level_s: Floats
    found: Bids
    strict: float = 1.5

    def descend(self) -> tuple[Floats, Bids]:
        """Change one level or two at a time as long as that helps, by ever smaller parts of it."""
        width, last = WIDTHS
        for _ in range(ROUNDS):
            if not self._change(width):
                width /= 2
            if width < last and self.found.room < self.room - 1e-4:
                self.strict, width = self.strict * 3, WIDTHS[0]
            if width < last:
                break
        return self.level_s, self.found

    def _change(self, width: float) -> bool:
        """Change the levels of one task or two, if that is better by new bids as well."""
        unit_s = 1 / max(float(self.found.gains(self.kinds).mean()), 1e-12)
        best_s = float(self._merit_s(self.level_s.sum(), self.found.room, unit_s))
        for merit_s, level_s in self._choices(width, unit_s)[:TRIES]:
            if merit_s >= best_s - 1e-5 * abs(best_s):
                break
            found = bids(self.kinds, level_s, self.found.worth)
            if found and self._merit_s(level_s.sum(), found.room, unit_s) < best_s * (1 - 1e-6):
                self.level_s, self.found = level_s, found
                return True
        return False

    def _choices(self, width: float, unit_s: float) -> list[tuple[float, Floats]]:
        """For each two tasks their best other levels were the bids to stay, best pair first."""
        tasks, sum_s = self.kinds.shape[0], self.level_s.sum()
        curves = [self._curve(task, width) for task in range(tasks)]
        found = []
        for a, (a_s, a_room) in enumerate(curves):
            for b, (b_s, b_room) in enumerate(curves[: max(a, 1)]):
                if a == b and tasks > 1:
                    continue
                both = 0.0 if a == b else 1.0
                sums_s = sum_s + (a_s - self.level_s[a])[:, None] + both * (b_s - self.level_s[b])
                room = self.found.room + a_room[:, None] + both * b_room
                merits_s = self._merit_s(sums_s, room, unit_s)
                row, column = divmod(int(merits_s.argmin()), CHOICES)
                level_s = self.level_s.copy()
                level_s[b], level_s[a] = b_s[column], a_s[row]
                found.append((float(merits_s[row, column]), level_s))
        return sorted(found, key=lambda each: each[0])

    def _curve(self, task: int, width: float) -> tuple[Floats, Floats]:
        """Other levels of a task, and the change of room by each were the bids to stay."""
        kinds, worth, pay = self.kinds, self.found.worth, self.found.pay
        to_s = self.level_s[task] * (1 + width * np.linspace(-1, 1, CHOICES))
        to_s = np.minimum(to_s, kinds.deadline_s[task])
        cap = kinds.caps(np.full(CHOICES, task), to_s)
        margin = worth[task] - worth[-1] * kinds.price
        mine = np.where(cap > 0, np.maximum(margin * cap, margin * kinds.least), -np.inf)
        others = np.where(kinds.optional, 0.0, -np.inf)
        others = np.maximum(np.delete(pay, task, axis=0).max(axis=0, initial=-np.inf), others)
        before = kinds.copies @ np.maximum(pay[task], others)
        return to_s, (np.maximum(mine, others) @ kinds.copies - before) / kinds.need.sum()

    def _merit_s(self, sum_s: Floats, room: Floats | float, unit_s: float) -> Floats:
        spare = np.asarray(room) - self.room
        merit_s: Floats = sum_s - unit_s * np.where(spare < 0, self.strict, SPARE) * spare
        # What a second is worth holds nearby only: with whole shards, levels are steps.
        return np.where(spare < min(self.found.room - self.room, -LACK), np.inf, merit_s)
