"""Normalisation by local steps: FedNova (Wang et al. 2020, "Tackling the Objective Inconsistency").

Learners that make more steps pull the mean towards their own data. With `normalize`, the change of
each update is divided by its steps, and the mean of these is multiplied by the weighted mean of all
steps: a factor for each change. It is exact for plain SGD; with momentum, the paper counts steps by
how much each contributes to the change, which is not done here.
"""

import numpy as np

from melisma.fleet.array_types import Floats, Ints
from melisma.learning.update_guard import UpdateChanges


def step_factors(weights: Floats, steps: Ints) -> Floats:
    """Return mean steps / steps for each update; ones if `steps` is empty."""
    if not steps.size:
        return np.ones(weights.size)
    factors: Floats = (weights @ steps) / weights.sum() / np.maximum(steps, 1)
    return factors


def normalize_changes(changes: UpdateChanges, weights: Floats, factors: Floats) -> UpdateChanges:
    """Return the changes as they count: each after the same, mean number of visits.

    The guard compares these, so that a learner gains nothing by reporting fewer visits.
    """
    if (factors == 1.0).all():
        return changes
    visits = round(float(weights @ changes.visits / weights.sum()))
    return UpdateChanges(changes.distances * factors, np.full(weights.size, visits))
