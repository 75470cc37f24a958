"""Least staleness: each learner works until the deadline, and updates differ as little as may be.

Mohammad and Sorour, problem (7): choose d_k with sum d_k = d so that the largest difference of
tau_k, the updates that fit d_k, is least. The paper relaxes, floors and repairs; `exact` need not,
for tau_k depends on d_k alone. Learner k does between a and b updates exactly when
D_k(b + 1) < d_k <= D_k(a), so a window [a, b] is feasible when each of these intervals, cut with
the bounds, is non-empty, and their ends sum to at most and at least d. The narrowest of them is
found by one sort; docs/allocation/staleness.md has the argument.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from melisma.allocation.checks import Ints
from melisma.allocation.one_task import CyclePlan, CycleProblem
from melisma.allocation.search import last_reaching
from melisma.allocation.shares import fill, listed
from melisma.allocation.shortfall import require_one_update
from melisma.allocation.staleness_numerical import numerical
from melisma.allocation.staleness_sai import sai
from melisma.allocation.synchronous import most_common_updates
from melisma.errors import SettingError


def staleness(
    problem: CycleProblem, method: Literal["exact", "numerical", "sai"] = "exact"
) -> CyclePlan:
    """Least maximum staleness, then most updates; every learner does one update or more.

    `numerical` and `sai` are the paper's own ways, for comparison; they may miss the least.
    """
    if method not in METHODS:
        raise SettingError(f"method is {method!r}; expected one of {', '.join(METHODS)}")
    served = problem
    if not problem.min_shards.all():
        served = replace(problem, min_shards=np.maximum(problem.min_shards, 1))
    bounded = served.within(served.min_shards, require_one_update(served))
    if method == "exact":
        return CyclePlan.of(problem, exact(bounded), None)
    # These two work in floats, whose sums depend on the order of learners.
    order = listed(problem, np.arange(problem.learners))
    shards = np.empty(problem.learners, dtype=np.int64)
    shards[order] = METHODS[method](bounded.of(order))
    return CyclePlan.of(problem, shards, None)


class Window(NamedTuple):
    """The least and the most updates of any learner."""

    least: int
    most: int

    @property
    def width(self) -> int:
        return self.most - self.least


def exact(problem: CycleProblem) -> Ints:
    """Shares of the best window, filled in proportion to the room of each learner."""
    window = best_window(problem)
    low = np.maximum(problem.min_shards, problem.most_shards(window.most + 1) + 1)
    return fill(problem, low, problem.most_shards(window.least))


def best_window(problem: CycleProblem) -> Window:
    """The narrowest feasible window, among those the one with the largest least."""
    a_max, b_min = _outer(problem)
    shards = problem.most_shards(a_max)
    above = problem.most_updates(shards)
    # Who can do no number of updates from a_max to b_min: a window reaches down to the next that
    # it can do below, or up to the next above.
    torn = np.flatnonzero(above > b_min)
    below = problem.costs.part(torn).most_updates(shards[torn] + 1, problem.deadline_s)
    order = np.argsort(below)
    below, above = below[order], np.maximum.accumulate(above[torn[order]])
    least = np.append(below, a_max)
    reached_by = np.searchsorted(below, least, side="left")
    most = np.maximum(b_min, np.append(b_min, above)[reached_by])
    best = np.flatnonzero(most - least == (most - least).min())[-1]
    return Window(int(least[best]), int(most[best]))


def _outer(problem: CycleProblem) -> Window:
    """The largest a and the smallest b that any feasible window can have, each by itself."""

    def lower(b: int) -> int:
        return int(np.maximum(problem.min_shards, problem.most_shards(b + 1) + 1).sum())

    slowest = int(problem.most_updates(problem.min_shards).min())
    fastest = int(problem.most_updates(problem.max_shards).max())
    common = most_common_updates(problem)
    b_min = max(fastest, last_reaching(lower, problem.shards + 1, start=common) + 1)
    return Window(min(slowest, common), b_min)


METHODS: dict[str, Callable[[CycleProblem], Ints]] = {
    "exact": exact,
    "numerical": numerical,
    "sai": sai,
}
