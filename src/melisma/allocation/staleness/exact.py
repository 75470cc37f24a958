"""Least staleness, exactly: the narrowest window of updates that admits all data.

The paper relaxes, floors and repairs. That is not necessary because tau_k depends on d_k alone:
learner k does between a and b updates exactly when D_k(b + 1) < d_k <= D_k(a). So a window [a, b]
is feasible when each of these intervals, cut with the bounds, is non-empty, and their ends sum to
at most and at least d. One sort finds the narrowest; docs/allocation/staleness.md has the proof.
"""

from typing import NamedTuple

import numpy as np

from melisma.allocation.bisection import bisect_largest
from melisma.allocation.costs import MAX_UPDATES
from melisma.allocation.cycle_problem import CycleProblem
from melisma.allocation.shares import fill
from melisma.allocation.synchronous import most_common_updates
from melisma.fleet.array_types import Ints


class Window(NamedTuple):
    """The least and the most updates of any learner."""

    least: int
    most: int

    @property
    def width(self) -> int:
        return self.most - self.least


def exact(problem: CycleProblem) -> Ints:
    """Return the shares of the best window, in proportion to the interval of each learner."""
    window = best_window(problem)
    return fill(problem, _least_shards(problem, window.most), problem.most_shards(window.least))


def best_window(problem: CycleProblem) -> Window:
    """Return the narrowest feasible window; of several, the one with the largest `least`."""
    a_max, b_min = _outer_window(problem)
    shards = problem.most_shards(a_max)
    above = problem.most_updates(shards)
    # Learners that can do no number of updates from a_max to b_min: a window reaches down to the
    # next number below that they can do, or up to the next above.
    outside = np.flatnonzero(above > b_min)
    below = problem.costs.take(outside).most_updates(shards[outside] + 1, problem.deadline_s)
    order = np.argsort(below)
    below, above = below[order], np.maximum.accumulate(above[outside[order]])
    least = np.append(below, a_max)
    index = np.searchsorted(below, least, side="left")
    most = np.maximum(b_min, np.append(b_min, above)[index])
    best = np.flatnonzero(most - least == (most - least).min())[-1]
    return Window(int(least[best]), int(most[best]))


def _outer_window(problem: CycleProblem) -> Window:
    """Return the largest a and the smallest b of any feasible window, each by itself."""

    def least_total(b: int) -> int:
        return int(_least_shards(problem, b).sum())

    slowest = int(problem.most_updates(problem.min_shards).min())
    fastest = int(problem.most_updates(problem.max_shards).max())
    common = most_common_updates(problem)
    b_min = max(fastest, bisect_largest(least_total, problem.shards + 1, start=common) + 1)
    return Window(min(slowest, common), b_min)


def _least_shards(problem: CycleProblem, most: int) -> Ints:
    """Return the fewest shards with which each learner does at most `most` updates."""
    # Updates are counted up to MAX_UPDATES, so no learner does more.
    if most >= MAX_UPDATES:
        return problem.min_shards
    return np.maximum(problem.min_shards, problem.most_shards(most + 1) + 1)
