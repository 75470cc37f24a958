"""Solve small MED problems by enumerating all plans."""

import itertools
from collections.abc import Iterator

import numpy as np

from melisma.allocation.shared_problem import SharedProblem

Point = tuple[float, float]


def least_sum(problem: SharedProblem, assigned: tuple[int, ...] | None = None) -> float | None:
    """Return the least sum of the tasks' seconds over all plans, or None without a plan."""
    tasks, learners = problem.tasks, problem.learners
    fronts: dict[tuple[int, tuple[int, ...]], list[Point]] = {}
    best: float | None = None
    choices = [assigned] if assigned else itertools.product(range(tasks), repeat=learners)
    for choice in choices:
        learners_of = [tuple(j for j in range(learners) if choice[j] == i) for i in range(tasks)]
        for key in enumerate(learners_of):
            if key not in fronts:
                fronts[key] = _pareto_front(problem, *key)
        for points in itertools.product(*(fronts[key] for key in enumerate(learners_of))):
            cost = sum(point[1] for point in points)
            total_s = sum(point[0] for point in points)
            if cost <= problem.budget * (1 + 1e-12) and (best is None or total_s < best):
                best = total_s
    return best


def _pareto_front(problem: SharedProblem, task: int, learners_of: tuple[int, ...]) -> list[Point]:
    """Return the Pareto front of seconds and cost of one task with these learners."""
    points: dict[float, float] = {}
    least = [int(problem.min_shards[j]) for j in learners_of]
    for amounts in _divisions(int(problem.shards[task]), least):
        level_s = max(
            (
                float(problem.fixed_s[task, j] + problem.shard_s[task, j] * d)
                for j, d in zip(learners_of, amounts, strict=True)
                if d > 0
            ),
            default=0.0,
        )
        if level_s <= problem.deadline_s[task]:
            cost = float(
                sum(problem.price[j] * d for j, d in zip(learners_of, amounts, strict=True))
            )
            points[level_s] = min(cost, points.get(level_s, np.inf))
    front: list[Point] = []
    for level_s in sorted(points):
        if not front or points[level_s] < front[-1][1]:
            front.append((level_s, points[level_s]))
    return front


def _divisions(total: int, least: list[int]) -> Iterator[tuple[int, ...]]:
    if not least:
        if total == 0:
            yield ()
        return
    for first in range(least[0], total - sum(least[1:]) + 1):
        for rest in _divisions(total - first, least[1:]):
            yield (first, *rest)
