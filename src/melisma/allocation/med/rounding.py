"""Assignments from the fixed-level dual: levels that just cover all shards, rounded and repaired.

Levels are lowered and raised, one or two at a time, to the least sum at which the fixed-level dual
says that the shards fit. Then each learner goes to the task of its best payoff: all but about as
many as there are tasks are certain. Moves and swaps repair the rest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from melisma.allocation.med.learner_classes import LearnerClasses
from melisma.allocation.med.smoothed_dual import FixedLevelDual, solve_fixed_levels
from melisma.fleet.array_types import Floats, Ints

COVERAGES = (1.002, 1.001, 1.0004)  # above 1, to allow for the loss of rounding
LEVEL_ROUNDS = 100  # for each of these
WIDTHS = (0.06, 0.002)  # relative change of a level: at first, and in the end
MAX_LACK = 0.02  # of coverage during the descent
LEVEL_CHOICES = 31
PAIR_TRIES = 3
REPAIR_MOVES = 600
SWAP_CANDIDATES = 25  # from each of two tasks
SURPLUS_VALUE = 0.2  # value of a surplus shard relative to a missing one

Moves = list[tuple[int, int]]
"""Learners and the tasks they move to."""


def round_assignments(
    classes: LearnerClasses, level_s: Floats, stop: Callable[[], bool]
) -> Iterator[tuple[FixedLevelDual, Ints]]:
    """Yield dual solutions near these levels, and their assignments (tasks + 1 x classes)."""
    level_s = _raise_for_all(classes, level_s)
    dual = solve_fixed_levels(classes, level_s)
    for coverage in COVERAGES:
        if dual is None or stop():
            return
        level_s, dual = _LevelDescent(classes, coverage, level_s, dual).run(stop)
        if stop():
            return
        yield dual, AssignmentRepair(classes, dual).run()


def _raise_for_all(classes: LearnerClasses, level_s: Floats) -> Floats:
    """Raise one level if necessary, so that every learner can end by one of them."""
    first_s = classes.fixed_s + classes.shard_s * classes.min_shards
    stranded = (first_s > level_s[:, None]).all(axis=0) & ~classes.optional
    if not stranded.any():
        return level_s
    wanted_s = np.maximum(first_s[:, stranded].max(axis=1), level_s)
    rise_s = np.where(wanted_s <= classes.deadline_s, wanted_s - level_s, np.inf)
    task = rise_s.argmin()
    raised: Floats = level_s.copy()
    raised[task] = min(wanted_s[task], classes.deadline_s[task])
    return raised


@dataclass(eq=False)
class _LevelDescent:
    """Descent of the levels to the least sum with enough coverage."""

    classes: LearnerClasses
    coverage: float
    level_s: Floats
    dual: FixedLevelDual
    penalty: float = 1.5

    def run(self, stop: Callable[[], bool]) -> tuple[Floats, FixedLevelDual]:
        """Change one or two levels at a time while that helps, by decreasing amounts."""
        width, last = WIDTHS
        for _ in range(LEVEL_ROUNDS):
            if stop():
                break
            if not self._improve(width):
                width /= 2
            if width < last and self.dual.coverage < self.coverage - 1e-4:
                self.penalty, width = self.penalty * 3, WIDTHS[0]
            if width < last:
                break
        return self.level_s, self.dual

    def _improve(self, width: float) -> bool:
        """Change the levels of one or two tasks if the dual confirms the improvement."""
        unit_s = 1 / max(float(self.dual.coverage_slopes(self.classes).mean()), 1e-12)
        best_s = float(self._merit_s(self.level_s.sum(), self.dual.coverage, unit_s))
        for merit_s, level_s in self._candidates(width, unit_s)[:PAIR_TRIES]:
            if merit_s >= best_s - 1e-5 * abs(best_s):
                break
            dual = solve_fixed_levels(self.classes, level_s, self.dual.values)
            if dual is None:
                continue
            if self._merit_s(level_s.sum(), dual.coverage, unit_s) < best_s * (1 - 1e-6):
                self.level_s, self.dual = level_s, dual
                return True
        return False

    def _candidates(self, width: float, unit_s: float) -> list[tuple[float, Floats]]:
        """Return the best new levels of each pair of tasks at unchanged dual values, best first."""
        tasks, sum_s = self.classes.shape[0], self.level_s.sum()
        curves = [self._coverage_curve(task, width) for task in range(tasks)]
        candidates = []
        for a, (a_s, a_coverage) in enumerate(curves):
            for b, (b_s, b_coverage) in enumerate(curves[: max(a, 1)]):
                if a == b and tasks > 1:
                    continue
                both = 0.0 if a == b else 1.0
                sums_s = sum_s + (a_s - self.level_s[a])[:, None] + both * (b_s - self.level_s[b])
                coverage = self.dual.coverage + a_coverage[:, None] + both * b_coverage
                merits_s = self._merit_s(sums_s, coverage, unit_s)
                row, column = divmod(int(merits_s.argmin()), LEVEL_CHOICES)
                level_s = self.level_s.copy()
                level_s[b], level_s[a] = b_s[column], a_s[row]
                candidates.append((float(merits_s[row, column]), level_s))
        return sorted(candidates, key=lambda candidate: candidate[0])

    def _coverage_curve(self, task: int, width: float) -> tuple[Floats, Floats]:
        """Return other levels of a task, and the change of coverage at unchanged dual values."""
        classes, values, payoff = self.classes, self.dual.values, self.dual.payoff
        to_s = self.level_s[task] * (1 + width * np.linspace(-1, 1, LEVEL_CHOICES))
        to_s = np.minimum(to_s, classes.deadline_s[task])
        capacity = classes.capacity(np.full(LEVEL_CHOICES, task), to_s)
        margin = values[task] - values[-1] * classes.price
        best_here = np.maximum(margin * capacity, margin * classes.min_shards)
        here = np.where(capacity > 0, best_here, -np.inf)
        elsewhere = np.where(classes.optional, 0.0, -np.inf)
        others = np.delete(payoff, task, axis=0).max(axis=0, initial=-np.inf)
        elsewhere = np.maximum(others, elsewhere)
        before = classes.members @ np.maximum(payoff[task], elsewhere)
        after = np.maximum(here, elsewhere) @ classes.members
        return to_s, (after - before) / classes.demand.sum()

    def _merit_s(self, sum_s: Floats, coverage: Floats | float, unit_s: float) -> Floats:
        spare = np.asarray(coverage) - self.coverage
        merit_s: Floats = sum_s - unit_s * np.where(spare < 0, self.penalty, SURPLUS_VALUE) * spare
        # The value of a second holds only nearby: with whole shards, coverage is a step function.
        lacking = spare < min(self.dual.coverage - self.coverage, -MAX_LACK)
        return np.where(lacking, np.inf, merit_s)


class AssignmentRepair:
    """Each learner in the task of its best payoff, then moves and swaps until nothing lacks.

    A balance has the surplus shards of each task, 0 for idle learners, and the money left.
    """

    def __init__(self, classes: LearnerClasses, dual: FixedLevelDual) -> None:
        self.classes, self.tasks = classes, classes.shape[0]
        self.class_of = np.repeat(np.arange(classes.shape[1]), classes.members)
        idle = np.where(classes.optional, 0.0, -np.inf)
        self.payoff = np.vstack([dual.payoff, idle])[:, self.class_of]
        self.amount = np.vstack([dual.amount, 0 * classes.price])[:, self.class_of]
        self.cost = self.amount * classes.price[self.class_of]
        self.values = np.concatenate([dual.values[:-1], [0.0], dual.values[-1:]])
        self.task_of = self.payoff.argmax(axis=0)
        self.regret = self.payoff.max(axis=0) - self.payoff

    def run(self) -> Ints:
        """Make the best moves, and swaps where no move helps, and return the assignment."""
        for _ in range(REPAIR_MOVES):
            balance = self._balance()
            if np.all(balance >= 0):
                break
            gain, moves = self._best_move(balance)
            if gain <= 1e-9:
                gain, moves = self._best_swap(balance)
            if gain <= 1e-9:
                break
            for learner, task in moves:
                self.task_of[learner] = task
        self._remove_excess_learners()
        assignment = np.zeros((self.tasks + 1, self.classes.shape[1]), dtype=np.int64)
        np.add.at(assignment, (self.task_of, self.class_of), 1)
        return assignment

    def _balance(self) -> Floats:
        learners = np.arange(self.class_of.size)
        amount = self.amount[self.task_of, learners]
        supplied = np.bincount(self.task_of, weights=amount, minlength=self.tasks + 1)
        spent = self.cost[self.task_of, learners].sum()
        money = self.classes.budget - spent if self.values[-1] > 0 else 0.0
        return np.concatenate([supplied[:-1] - self.classes.demand, [0.0, money]])

    def _value(self, which: int | Ints, balance: Floats | float) -> Floats:
        weight = np.where(np.asarray(balance) < 0, 1.0, SURPLUS_VALUE)
        value: Floats = self.values[which] * weight * balance
        return value

    def _best_move(self, balance: Floats) -> tuple[float, Moves]:
        learners, task_of = np.arange(self.class_of.size), self.task_of
        to = np.arange(self.tasks + 1)[:, None]
        amount = self.amount[task_of, learners]
        now = self._value(np.arange(balance.size), balance)
        spent = self.cost[task_of, learners]
        gain = self._value(task_of, balance[task_of] - amount) - now[task_of]
        gain = gain + self._value(to, balance[to] + self.amount) - now[to]
        gain = gain + self._value(-1, balance[-1] + spent - self.cost) - now[-1]
        gain = np.where(np.isinf(self.payoff) | (to == task_of), -np.inf, gain)
        task, learner = divmod(int(gain.argmax()), learners.size)
        return float(gain[task, learner]), [(learner, task)]

    def _best_swap(self, balance: Floats) -> tuple[float, Moves]:
        best: tuple[float, Moves] = (0.0, [])
        for a in range(self.tasks + 1):
            for b in range(a):
                if min(balance[a], balance[b], balance[-1]) < 0:
                    best = max(best, self._swap_between(balance, a, b), key=lambda swap: swap[0])
        return best

    def _swap_between(self, balance: Floats, a: int, b: int) -> tuple[float, Moves]:
        from_a, from_b = self._candidates(a, b)[:, None], self._candidates(b, a)
        if not from_a.size or not from_b.size:
            return 0.0, []
        amount, cost = self.amount, self.cost
        gain = self._value(a, balance[a] - amount[a, from_a] + amount[a, from_b])
        gain = gain + self._value(b, balance[b] + amount[b, from_a] - amount[b, from_b])
        saved = cost[a, from_a] - cost[b, from_a] + cost[b, from_b] - cost[a, from_b]
        gain = gain + self._value(-1, balance[-1] + saved)
        row, column = divmod(int(gain.argmax()), from_b.size)
        before = self._value(np.array([a, b, -1]), balance[[a, b, -1]]).sum()
        moves = [(int(from_a[row, 0]), b), (int(from_b[column]), a)]
        return float(gain.max() - before), moves

    def _candidates(self, task: int, other: int) -> Ints:
        """Return the learners of a task that lose least in another one."""
        members = np.flatnonzero((self.task_of == task) & np.isfinite(self.regret[other]))
        order = np.argsort(self.regret[other, members], kind="stable")
        return members[order[:SWAP_CANDIDATES]]

    def _remove_excess_learners(self) -> None:
        """Move learners out of tasks whose `min_shards` exceed the demand, smallest first."""
        min_shards = self.classes.min_shards[self.class_of]
        for task in range(self.tasks):
            members = np.flatnonzero(self.task_of == task)
            over = int(min_shards[members].sum()) - int(self.classes.demand[task])
            for learner in members[np.argsort(self.amount[task, members], kind="stable")]:
                if over <= 0:
                    break
                taken = np.bincount(self.task_of, weights=min_shards, minlength=self.tasks + 1)
                free = np.append(self.classes.demand - taken[:-1] >= min_shards[learner], True)
                payoff = np.where(free, self.payoff[:, learner], -np.inf)
                payoff[task] = -np.inf
                if np.isfinite(payoff.max()):
                    self.task_of[learner] = int(payoff.argmax())
                    over -= int(min_shards[learner])
