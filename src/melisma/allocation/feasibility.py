"""Why there is no plan, and the least change of one setting that would make one possible.

Three numbers of each learner decide: the least that it takes (low), the most that it may take
(high), and the most that it can train once by the deadline (fit). There is a plan exactly if
::

    sum low <= shards <= sum min(high, fit)    and    low <= min(high, fit) for each

Each side of this moves one way with each setting, so the least change is found by halving, and
what is said to be enough has been tried.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from melisma.allocation.checks import Ints
from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.earliest import earliest_deadline_s
from melisma.allocation.infeasible import infeasible_error, learner_list, without_single_fix
from melisma.errors import InfeasibleError


def require_room(problem: CycleProblem) -> None:
    """`InfeasibleError` if the bounds do not let learners take all the data, and no more."""
    most = int(np.minimum(problem.max_shards, problem.shards).sum())
    if not _exact_sum(problem.min_shards) <= problem.shards <= most:
        raise _explain(_Bounds.of(problem, timed=False))


def require_one_update(problem: CycleProblem, least: int = 0) -> CycleProblem:
    """The problem with bounds of what each learner can train once, `least` shards or more.

    `InfeasibleError` if these leave no room for all the data.
    """
    problem.require_costs()
    low = np.maximum(problem.min_shards, least)
    high = problem.most_shards(1)
    if _exact_sum(low) <= problem.shards <= int(high.sum()) and np.all(low <= high):
        return problem.with_bounds(low, high)
    raise _explain(_Bounds.of(problem, least))


@dataclass(frozen=True, eq=False)
class _Bounds:
    problem: CycleProblem
    least: int
    shards: int
    low: Ints
    high: Ints
    fit: Ints

    @classmethod
    def of(cls, problem: CycleProblem, least: int = 0, *, timed: bool = True) -> "_Bounds":
        """Without `timed`, as if the deadline did not matter."""
        low = np.maximum(problem.min_shards, least)
        most = max(problem.shards, int(low.max()))
        high = np.minimum(problem.max_shards, most)
        fit = np.full(problem.learners, most)
        if timed:
            fit = problem.costs.most_shards(1, problem.deadline_s, most)
        return cls(problem, least, problem.shards, low, high, fit)

    def holds(self) -> bool:
        top = np.minimum(self.high, self.fit)
        room = _exact_sum(self.low) <= self.shards <= _exact_sum(top)
        return room and bool(np.all(self.low <= top))

    def without(self, learners: Ints) -> "_Bounds":
        low, high, fit = (np.delete(each, learners) for each in (self.low, self.high, self.fit))
        return replace(self, low=low, high=high, fit=fit)

    def nearest(self) -> dict[str, float]:
        """The least change of each setting that is enough by itself, where there is one."""
        found = {
            "deadline_s": self._deadline_s(),
            "shards": self._shards(),
            "min_shards": self._min_shards(),
            "max_shards": self._max_shards(),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _deadline_s(self) -> float | None:
        if not replace(self, fit=np.maximum(self.fit, self.high)).holds():
            return None
        return earliest_deadline_s(self.problem.costs, self.low, self.high, self.shards)

    @property
    def _own(self) -> bool:
        """Whether nobody may take more than what lies there: then data and bounds are one."""
        return np.array_equal(self.problem.held, self.problem.max_shards)

    def _shards(self) -> int | None:
        if self._own:
            return None
        most = _exact_sum(np.minimum(self.high, self.fit))
        changed = replace(self, shards=max(1, min(max(self.shards, _exact_sum(self.low)), most)))
        return changed.shards if changed.holds() else None

    def _min_shards(self) -> int | None:
        """The largest that is enough when those of all learners are cut to it."""
        mine = self.problem.min_shards
        top = int(mine.max())

        def enough(down: int) -> bool:
            return replace(self, low=np.clip(mine, self.least, max(top - down, self.least))).holds()

        down = _first_true(enough, top)
        return None if down is None else top - down

    def _max_shards(self) -> int | None:
        """The smallest that is enough when those of all learners are raised to it."""
        if self._own:
            return None
        most = max(self.shards, int(self.low.max()))
        return _first_true(lambda x: replace(self, high=np.maximum(self.high, x)).holds(), most)


def _exact_sum(bounds: Ints) -> int:
    """The exact sum: bounds of many learners may leave the range of 64 bits."""
    few = bounds.size * int(bounds.max(initial=0)) < 2**63
    return int(bounds.sum()) if few else sum(bounds.tolist())


def _first_true(enough: Callable[[int], bool], last: int) -> int | None:
    """The first whole number from 0 to `last` that is enough, where all after it are too."""
    if not enough(last):
        return None
    low, high = -1, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


class _Violation(NamedTuple):
    """A constraint that is not kept, by how much, in words, and by whom."""

    constraint: str
    miss: float
    text: str
    learners: Ints = np.empty(0, dtype=np.int64)


def _explain(room: _Bounds) -> InfeasibleError:
    causes = [*_bound_violations(room), *_deadline_violations(room)]
    who = np.unique(np.concatenate([cause.learners for cause in causes]))
    left_out = bool(who.size) and room.without(who).holds()
    nearest, cause = room.nearest(), ", and ".join(cause.text for cause in causes)
    return infeasible_error(
        cause if nearest or left_out else without_single_fix(cause),
        constraint=causes[0].constraint,
        miss=causes[0].miss,
        nearest=nearest,
        learners=who.tolist(),
        also=["leaving them out"] if left_out else (),
    )


def _bound_violations(room: _Bounds) -> Iterator[_Violation]:
    """What is wrong with the bounds, whatever the deadline."""
    all_data = f"the {room.shards} shards there are"
    over = _exact_sum(room.low) - room.shards
    if over > 0:
        own = _exact_sum(room.problem.min_shards) > room.shards
        what = "min_shards of all learners come" if own else "one shard or more a learner comes"
        text = f"{what} to {room.shards + over}, {over} more than {all_data}"
        yield _Violation("min_shards" if own else "shards", over, text)
    under = room.shards - _exact_sum(room.high)
    if under > 0:
        text = f"max_shards of all learners come to {room.shards - under}, {under} fewer than"
        yield _Violation("max_shards", under, f"{text} {all_data}")
    barred = np.flatnonzero(room.low > room.high)
    if barred.size:
        yield _Violation(
            "max_shards",
            1,
            f"{_learners_text(room, barred)} may take none (max_shards)",
            barred,
        )


def _deadline_violations(room: _Bounds) -> Iterator[_Violation]:
    """What is wrong with the deadline, even if the bounds were mended."""
    problem = room.problem
    late = np.flatnonzero(room.low > room.fit)
    if late.size:
        over_s = float(problem.costs.take(late).seconds(room.low[late], 1).max())
        amount = "one shard" if room.low[late].max() == 1 else "their min_shards"
        text = (
            f"{_learners_text(room, late)} cannot train {amount} once by {problem.deadline_s:g} s"
        )
        yield _Violation("deadline_s", over_s - problem.deadline_s, text, late)
    high = room.high if _exact_sum(room.high) >= room.shards else np.maximum(room.high, room.shards)
    trained = _exact_sum(np.minimum(high, room.fit))
    if trained < room.shards:
        text = f"by {problem.deadline_s:g} s all learners together can train {trained} shards once"
        fewer = room.shards - trained
        yield _Violation("shards", fewer, f"{text}, {fewer} fewer than the {room.shards} there are")


def _learners_text(room: _Bounds, learners: Ints) -> str:
    return f"{learners.size} of {room.low.size} learners ({learner_list(learners)})"
