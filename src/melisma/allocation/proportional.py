"""Shares in proportion to measured speed, the strongest simple baseline.

The plan may miss the deadline.
"""

from melisma.allocation.checks import as_counts, as_scalar
from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.shares import split_by_weight


def proportional(problem: CycleProblem, passes: int | None = None) -> CyclePlan:
    """Give shards in proportion to 1 / (seconds per shard); without `passes`, updates that fit."""
    problem.require_costs()
    repeats = 1 if passes is None else as_scalar("passes", as_counts("passes", passes, least=1))
    shard_s = problem.ship_s + repeats * problem.train_s
    return CyclePlan.from_shards(problem, split_by_weight(problem, 1 / shard_s), passes)
