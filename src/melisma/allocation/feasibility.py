"""Why a `CycleProblem` has no plan, and the least change of one setting that makes one possible.

Three numbers of each learner decide: the least shards that it takes (low), the most that it may
take (high), and the most that it can train once by the deadline (fit). A plan exists exactly if
::

    sum low <= shards <= sum min(high, fit)    and    low <= min(high, fit) for each learner

Each side is monotone in each setting, so bisection finds the least change, and every change that
an error reports was tried.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from melisma.allocation.costs import CycleCosts
from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.infeasible import infeasible_error, learner_list, without_single_fix
from melisma.errors import InfeasibleError
from melisma.fleet.array_types import Ints

# Up to this number, the ends of single shards are sorted.
SORTED_SHARDS = 2**16


def require_room(problem: CycleProblem) -> None:
    """Raise `InfeasibleError` if the bounds do not admit exactly the problem's shards."""
    most = int(np.minimum(problem.max_shards, problem.shards).sum())
    if not _exact_sum(problem.min_shards) <= problem.shards <= most:
        raise _explain(_Bounds.from_problem(problem, timed=False))


def require_one_update(problem: CycleProblem, least: int = 0) -> CycleProblem:
    """Return the problem with bounds from `least` to what each learner can train once.

    Raises `InfeasibleError` if these do not admit all shards.
    """
    problem.require_costs()
    low = np.maximum(problem.min_shards, least)
    high = problem.most_shards(1)
    if _exact_sum(low) <= problem.shards <= int(high.sum()) and np.all(low <= high):
        return problem.with_bounds(low, high)
    raise _explain(_Bounds.from_problem(problem, least))


@dataclass(frozen=True, eq=False)
class _Bounds:
    problem: CycleProblem
    least: int
    shards: int
    low: Ints
    high: Ints
    fit: Ints

    @classmethod
    def from_problem(
        cls, problem: CycleProblem, least: int = 0, *, timed: bool = True
    ) -> "_Bounds":
        """Return the bounds of a problem; without `timed`, ignore the deadline."""
        low = np.maximum(problem.min_shards, least)
        most = max(problem.shards, int(low.max()))
        high = np.minimum(problem.max_shards, most)
        fit = np.full(problem.learners, most)
        if timed:
            fit = problem.costs.most_shards(1, problem.deadline_s, most)
        return cls(problem, least, problem.shards, low, high, fit)

    def feasible(self) -> bool:
        top = np.minimum(self.high, self.fit)
        admits = _exact_sum(self.low) <= self.shards <= _exact_sum(top)
        return admits and bool(np.all(self.low <= top))

    def without(self, learners: Ints) -> "_Bounds":
        low, high, fit = (np.delete(bound, learners) for bound in (self.low, self.high, self.fit))
        return replace(self, low=low, high=high, fit=fit)

    def nearest(self) -> dict[str, float]:
        """Return the least change of each setting that is enough alone, if there is one."""
        changes = {
            "deadline_s": self._deadline_s(),
            "shards": self._shards(),
            "min_shards": self._min_shards(),
            "max_shards": self._max_shards(),
        }
        return {name: value for name, value in changes.items() if value is not None}

    def _deadline_s(self) -> float | None:
        if not replace(self, fit=np.maximum(self.fit, self.high)).feasible():
            return None
        return earliest_deadline_s(self.problem.costs, self.low, self.high, self.shards)

    @property
    def _federated(self) -> bool:
        """Whether learners take only their own data: then data and bounds cannot be changed."""
        return np.array_equal(self.problem.held, self.problem.max_shards)

    def _shards(self) -> int | None:
        if self._federated:
            return None
        most = _exact_sum(np.minimum(self.high, self.fit))
        changed = replace(self, shards=max(1, min(max(self.shards, _exact_sum(self.low)), most)))
        return changed.shards if changed.feasible() else None

    def _min_shards(self) -> int | None:
        """Return the largest limit on all learners' `min_shards` that is enough."""
        min_shards = self.problem.min_shards
        top = int(min_shards.max())

        def enough(reduction: int) -> bool:
            limit = max(top - reduction, self.least)
            return replace(self, low=np.clip(min_shards, self.least, limit)).feasible()

        reduction = _first_true(enough, top)
        return None if reduction is None else top - reduction

    def _max_shards(self) -> int | None:
        """Return the smallest `max_shards` that is enough if all learners have at least that."""
        if self._federated:
            return None
        most = max(self.shards, int(self.low.max()))
        return _first_true(lambda x: replace(self, high=np.maximum(self.high, x)).feasible(), most)


def _exact_sum(bounds: Ints) -> int:
    """Return the sum, which may exceed 64 bits."""
    fits = bounds.size * int(bounds.max(initial=0)) < 2**63
    return int(bounds.sum()) if fits else sum(bounds.tolist())


def _first_true(enough: Callable[[int], bool], last: int) -> int | None:
    """Return the first number from 0 to `last` that is enough, if all after it are too."""
    if not enough(last):
        return None
    low, high = -1, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def earliest_deadline_s(costs: CycleCosts, low: Ints, high: Ints, shards: int) -> float:
    """Return when `shards` can be trained once, by each learner between `low` and `high`."""
    return max(float(costs.seconds(low, 1).max()), _earliest_for_all(costs, high, shards))


def _earliest_for_all(costs: CycleCosts, high: Ints, shards: int) -> float:
    # Between two deadlines lie the ends of single shards. Once these are few, sorting them gives
    # the answer.
    early_s, late_s = 0.0, float(costs.seconds(np.minimum(high, shards), 1).max())
    early, late = np.zeros_like(high), np.minimum(high, shards)
    few, steps = max(SORTED_SHARDS, 2 * high.size), 0
    while (between := int(late.sum()) - int(early.sum())) > few:
        steps += 1
        # Counts grow nearly linearly; each third step bisects.
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
    return _nth_end_s(costs, early, late, shards - int(early.sum()))


def _nth_end_s(costs: CycleCosts, early: Ints, late: Ints, n: int) -> float:
    """Return the n-th smallest end of the shards after `early` up to `late`."""
    learner = np.repeat(np.arange(early.size), late - early)
    first = np.repeat(np.cumsum(late - early) - (late - early), late - early)
    number = early[learner] + 1 + np.arange(learner.size) - first
    ends_s = costs.take(learner).seconds(number, 1)
    return float(np.partition(ends_s, n - 1)[n - 1])


class _Violation(NamedTuple):
    """A violated constraint, by how much, as text, and the learners that violate it."""

    constraint: str
    miss: float
    text: str
    learners: Ints = np.empty(0, dtype=np.int64)


def _explain(bounds: _Bounds) -> InfeasibleError:
    violations = [*_bound_violations(bounds), *_deadline_violations(bounds)]
    learners = np.unique(np.concatenate([violation.learners for violation in violations]))
    removable = bool(learners.size) and bounds.without(learners).feasible()
    nearest, cause = bounds.nearest(), ", and ".join(violation.text for violation in violations)
    return infeasible_error(
        cause if nearest or removable else without_single_fix(cause),
        constraint=violations[0].constraint,
        miss=violations[0].miss,
        nearest=nearest,
        learners=learners.tolist(),
        also=["leave them out"] if removable else (),
    )


def _bound_violations(bounds: _Bounds) -> Iterator[_Violation]:
    """Yield violations that do not depend on the deadline."""
    shards = bounds.shards
    over = _exact_sum(bounds.low) - shards
    if over > 0:
        by_bounds = _exact_sum(bounds.problem.min_shards) > shards
        what = "min_shards of all learners sum" if by_bounds else "one shard for each learner sums"
        text = f"{what} to {shards + over}, {over} more than the {shards} shards"
        yield _Violation("min_shards" if by_bounds else "shards", over, text)
    under = shards - _exact_sum(bounds.high)
    if under > 0:
        total = f"max_shards of all learners sum to {shards - under}"
        text = f"{total}, {under} fewer than the {shards} shards"
        yield _Violation("max_shards", under, text)
    barred = np.flatnonzero(bounds.low > bounds.high)
    if barred.size:
        text = f"{_learners_text(bounds, barred)} may take none (max_shards)"
        yield _Violation("max_shards", 1, text, barred)


def _deadline_violations(bounds: _Bounds) -> Iterator[_Violation]:
    """Yield violations of the deadline that remain if the bounds are repaired."""
    problem = bounds.problem
    late = np.flatnonzero(bounds.low > bounds.fit)
    if late.size:
        end_s = float(problem.costs.take(late).seconds(bounds.low[late], 1).max())
        amount = "one shard" if bounds.low[late].max() == 1 else "their min_shards"
        learners = _learners_text(bounds, late)
        text = f"{learners} cannot train {amount} once by {problem.deadline_s:g} s"
        yield _Violation("deadline_s", end_s - problem.deadline_s, text, late)
    enough = _exact_sum(bounds.high) >= bounds.shards
    high = bounds.high if enough else np.maximum(bounds.high, bounds.shards)
    trained = _exact_sum(np.minimum(high, bounds.fit))
    if trained < bounds.shards:
        missing = bounds.shards - trained
        text = f"by {problem.deadline_s:g} s all learners together can train {trained} shards once"
        yield _Violation(
            "shards", missing, f"{text}, {missing} fewer than the {bounds.shards} shards"
        )


def _learners_text(bounds: _Bounds, learners: Ints) -> str:
    return f"{learners.size} of {bounds.low.size} learners ({learner_list(learners)})"
