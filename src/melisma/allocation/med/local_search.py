"""Local search over assignments: exchange one learner, or two, between two tasks.

An assignment counts the learners of each class in each task; its last row are idle learners. The
value of a task is read from a grid of levels, with the cost weighted by the budget multiplier. A
task that cannot end by its deadline is penalized for its missing shards, so that the search also
leads to feasible plans.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from melisma.allocation.med.amounts import fill_cheapest
from melisma.allocation.med.dual import DualPoint, Knapsacks
from melisma.allocation.med.learner_classes import LearnerClasses
from melisma.fleet.array_types import Floats, Ints

EXCHANGE_TRIES = 6
MAX_SWEEPS = 1000
UNREACHABLE = 1e9  # shards that a learner lacks if it cannot end by a level
GRID_LEVELS = 32
NO_CLASS = -1


def assign_by_payoff(knapsacks: Knapsacks, point: DualPoint) -> Ints:
    """Assign each class to the task of its best payoff at the best intervals."""
    classes, best = knapsacks.classes, point.best
    capacity = knapsacks.intervals.capacity[best]
    margin = point.shard_multiplier[best][:, None] - point.multipliers.budget * classes.price
    payoff = np.maximum(margin * capacity, margin * classes.min_shards)
    payoff = np.where(capacity > 0, payoff, -np.inf)
    first_s = classes.fixed_s + classes.shard_s * classes.min_shards
    late_s = first_s - knapsacks.intervals.high_s[best][:, None]
    possible = np.isfinite(payoff).any(axis=0)
    choice = np.where(possible, payoff.argmax(axis=0), late_s.argmin(axis=0))
    idle = classes.optional & (payoff.max(axis=0) <= 0)
    return assign_whole_classes(classes, np.where(idle, classes.shape[0], choice))


def assign_by_average(classes: LearnerClasses, point: DualPoint) -> Ints:
    """Assign each class to the task that used it most during the subgradient ascent."""
    idle = np.where(classes.optional, 0.5, -1.0) * classes.members
    share = np.vstack([point.average_used, idle])
    return assign_whole_classes(classes, share.argmax(axis=0))


def assign_whole_classes(classes: LearnerClasses, choice: Ints) -> Ints:
    """Return the assignment in which all members of class k are in task `choice[k]`."""
    assignment = np.zeros((classes.shape[0] + 1, choice.size), dtype=np.int64)
    assignment[choice, np.arange(choice.size)] = classes.members
    return assignment


def improve_sum(
    classes: LearnerClasses,
    assignment: Ints,
    level_s: Floats,
    budget_multiplier: float,
    stop: Callable[[], bool],
) -> Ints:
    """Lower the sum of levels by exchanges on a grid around `level_s`, then on a finer one."""
    for width in (0.3, 0.03):
        low_s, high_s = level_s * (1 - width), level_s * (1 + width)
        grid = LevelGrid.between(classes, low_s, high_s, GRID_LEVELS)
        search = LocalSearch(classes, grid, budget_multiplier, assignment.copy())
        search.descend(stop)
        assignment, level_s = search.assignment, search.level_s()
    return assignment


def improve_cost(classes: LearnerClasses, assignment: Ints, stop: Callable[[], bool]) -> Ints:
    """Lower the cost of an assignment at the deadlines by exchanges."""
    grid = LevelGrid.between(classes, classes.deadline_s, classes.deadline_s, 2)
    search = LocalSearch(classes, grid, 1.0, assignment.copy())
    search.descend(stop)
    return search.assignment


@dataclass(frozen=True, eq=False)
class LevelGrid:
    """Levels in seconds (tasks x levels) and capacities; `-UNREACHABLE` if `min_shards` is late."""

    level_s: Floats
    capacity: Floats

    @staticmethod
    def between(classes: LearnerClasses, low_s: Floats, high_s: Floats, size: int) -> "LevelGrid":
        """Return levels evenly spaced from `low_s` to `high_s`, and then the deadlines."""
        tasks = classes.shape[0]
        high_s = np.minimum(high_s, classes.deadline_s)
        low_s = np.minimum(low_s, high_s)
        level_s = np.linspace(low_s, high_s, size - 1, axis=1)
        level_s = np.column_stack([level_s, classes.deadline_s])
        capacity = classes.capacity(np.repeat(np.arange(tasks), size), level_s.ravel())
        capacity = capacity.reshape(tasks, size, -1).astype(np.float64)
        return LevelGrid(level_s, np.where(capacity > 0, capacity, -UNREACHABLE))


class LocalSearch:
    """Exchanges learners between pairs of tasks while that lowers the sum of their values."""

    def __init__(
        self,
        classes: LearnerClasses,
        grid: LevelGrid,
        budget_multiplier: float,
        assignment: Ints,
    ) -> None:
        self.classes, self.grid, self.assignment = classes, grid, assignment
        self.budget_multiplier, self.tasks = budget_multiplier, classes.shape[0]
        # More than any feasible plan, for each missing shard.
        max_cost = float(classes.demand.sum() * classes.price.max())
        self.penalty_s = 2 * (float(classes.deadline_s.sum()) + budget_multiplier * max_cost)
        self.value_s = np.zeros(self.tasks + 1)
        self.base: list[Floats] = [np.zeros(0)] * self.tasks
        self.gain: list[Floats] = [np.zeros(0)] * self.tasks
        for task in range(self.tasks):
            self._refresh(task)

    def descend(self, stop: Callable[[], bool]) -> None:
        """Sweep over all pairs of tasks until none improves or `stop()` is true."""
        last = self.tasks if bool(self.classes.optional.any()) else self.tasks - 1
        pairs = [(a, b) for a in range(self.tasks) for b in range(a + 1, last + 1)]
        pending = dict.fromkeys(pairs, True)
        for _ in range(MAX_SWEEPS):
            if not any(pending.values()) or stop():
                break
            for pair in pairs:
                if pending[pair] and not stop():
                    pending[pair] = False
                    if self._exchange(*pair):
                        for other in pairs:
                            if pair[0] in other or pair[1] in other:
                                pending[other] = True

    def _exchange(self, a: int, b: int) -> bool:
        """Make the best improving move or swap between two tasks, if there is one."""
        from_a, from_b = self._movable(a, b), self._movable(b, a)
        table = self._values(a, from_a, from_b) + self._values(b, from_b, from_a).T
        before = self.value_s[a] + self.value_s[b]
        target = before - 1e-9 * abs(before)
        # With a budget multiplier the table is a first-order estimate, so several are tried.
        tries = min(EXCHANGE_TRIES if self.budget_multiplier > 0 else 1, table.size)
        best = np.argpartition(table.ravel(), tries - 1)[:tries]
        for index in best[np.argsort(table.ravel()[best], kind="stable")]:
            if table.flat[index] >= target:
                break
            row, column = divmod(int(index), table.shape[1])
            self._swap(a, b, int(from_a[row]), int(from_b[column]))
            if self.value_s[a] + self.value_s[b] < target:
                return True
            self._swap(b, a, int(from_a[row]), int(from_b[column]))
        return False

    def _swap(self, a: int, b: int, class_a: int, class_b: int) -> None:
        """Move a learner of one class from a to b, and one of another from b to a."""
        for source, target, moved in ((a, b, class_a), (b, a, class_b)):
            if moved != NO_CLASS:
                self.assignment[source, moved] -= 1
                self.assignment[target, moved] += 1
        self._refresh(a)
        self._refresh(b)

    def _movable(self, task: int, other: int) -> Ints:
        """Return the classes that can leave a task for another one, and `NO_CLASS`."""
        present = self.assignment[task] > 0
        if other == self.tasks:
            present = present & self.classes.optional
        return np.append(np.flatnonzero(present), NO_CLASS)

    def _values(self, task: int, leaving: Ints, entering: Ints) -> Floats:
        """Return the value of a task after one learner left and one entered, leaving x entering."""
        if task == self.tasks:
            return np.zeros((leaving.size, entering.size))
        classes, grid = self.classes, self.grid
        no_class = np.zeros((grid.level_s.shape[1], 1))
        capacity = np.hstack([grid.capacity[task], no_class])
        total = self._total_capacity(task)
        after = total[:, None, None] - capacity[:, leaving, None] + capacity[:, None, entering]
        fits = after >= classes.demand[task]
        min_shards = np.append(classes.min_shards, 0)
        minimum = int(classes.min_shards @ self.assignment[task])
        minimum_after = minimum - min_shards[leaving][:, None] + min_shards[entering]
        excess = minimum_after - classes.demand[task]
        if self.budget_multiplier > 0:
            gain = np.hstack([self.gain[task], no_class])
            base = self.base[task][:, None, None]
            estimate_s = base - gain[:, leaving, None] + gain[:, None, entering]
            value_s = np.where(fits, estimate_s, np.inf).min(axis=0)
        else:
            first = fits.argmax(axis=0)
            value_s = np.where(fits.any(axis=0), grid.level_s[task][first], np.inf)
        missing = np.where(fits[-1], 0.0, classes.demand[task] - after[-1]) + np.maximum(excess, 0)
        penalized_s = self.penalty_s * (1 + missing)
        values: Floats = np.where(np.isfinite(value_s) & (excess <= 0), value_s, penalized_s)
        return values

    def level_s(self) -> Floats:
        """Return the level of each task at its value; the deadline if it is infeasible."""
        levels_s: Floats = self.classes.deadline_s.copy()
        for task in range(self.tasks):
            fits = self._total_capacity(task) >= self.classes.demand[task]
            value_s = self.base[task] if self.budget_multiplier > 0 else self.grid.level_s[task]
            if fits.any():
                best = np.where(fits, value_s, np.inf).argmin()
                levels_s[task] = self.grid.level_s[task][best]
        return levels_s

    def _total_capacity(self, task: int) -> Floats:
        """Return the capacity of all learners of a task at each level."""
        used = np.flatnonzero(self.assignment[task])
        total: Floats = self.grid.capacity[task][:, used] @ self.assignment[task][used]
        return total

    def _refresh(self, task: int) -> None:
        """Recompute the value of a task and what its table of exchanges needs."""
        if task == self.tasks:
            return
        if self.budget_multiplier > 0:
            self._refresh_costs(task)
        no_class = np.array([NO_CLASS])
        self.value_s[task] = self._values(task, no_class, no_class)[0, 0]

    def _refresh_costs(self, task: int) -> None:
        """Recompute the cost at each level, and its change by one learner at the marginal price."""
        classes = self.classes
        capacity = np.maximum(self.grid.capacity[task], 0).astype(np.int64)
        assignment, demand = self.assignment[task][None], classes.demand[[task]]
        at_least = np.maximum(capacity, classes.min_shards * assignment)
        amounts = fill_cheapest(classes, demand, assignment, at_least)
        above_minimum = (amounts > assignment * classes.min_shards) * (assignment > 0)
        last = above_minimum.shape[1] - 1 - above_minimum[:, ::-1].argmax(axis=1)
        marginal = np.where(above_minimum.any(axis=1), classes.price[last], 0.0)[:, None]
        amount = np.where(classes.price < marginal, capacity, classes.min_shards)
        self.gain[task] = self.budget_multiplier * (classes.price - marginal) * amount
        cost = amounts @ classes.price
        self.base[task] = self.grid.level_s[task] + self.budget_multiplier * cost
