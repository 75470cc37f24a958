"""Least staleness: each learner works until the deadline, with least differences of updates.

Mohammad and Sorour, problem (7): choose d_k with sum d_k = d such that the largest difference of
tau_k, the updates that fit d_k, is least::

    exact.py       the optimum
    numerical.py   the paper's relaxation in an NLP solver, for comparison
    sai.py         the paper's suggest and improve, for comparison
    relaxation.py  updates as a real function of real shares, for both
"""

from collections.abc import Callable
from typing import Literal

import numpy as np

from melisma.allocation.cycle_problem import CyclePlan, CycleProblem
from melisma.allocation.feasibility import require_one_update
from melisma.allocation.shares import sort_by_speed
from melisma.allocation.staleness.exact import exact
from melisma.allocation.staleness.numerical import numerical
from melisma.allocation.staleness.sai import sai
from melisma.errors import SettingError, suggest
from melisma.fleet.array_types import Ints


def staleness(
    problem: CycleProblem, method: Literal["exact", "numerical", "sai"] = "exact"
) -> CyclePlan:
    """Minimize the maximum staleness, then maximize updates; each learner does at least one.

    `numerical` and `sai` may miss the optimum.
    """
    if method not in METHODS:
        raise SettingError(f"method is {method!r}; {suggest(method, METHODS)}")
    bounded = require_one_update(problem, least=1)
    if method == "exact":
        return CyclePlan.from_shards(problem, exact(bounded), None)
    # Both compute in floats, whose sums depend on the order of learners.
    order = sort_by_speed(problem, np.arange(problem.learners))
    shards = np.empty(problem.learners, dtype=np.int64)
    shards[order] = METHODS[method](bounded.reorder(order))
    return CyclePlan.from_shards(problem, shards, None)


METHODS: dict[str, Callable[[CycleProblem], Ints]] = {
    "exact": exact,
    "numerical": numerical,
    "sai": sai,
}
