"""What a learner reports of its costs to a scheme that plans several tasks (thesis, section 4.2).

A learner knows its costs in each of its operating states. Of these it reports no more than the
scheme needs::

    expected   the mean over its states, by their probabilities (delta of Eq. 4.3)
    measured   the costs of the state in which its benchmark ran, which no cycle refreshes
    present    the costs of the state that it is going to train in, anew in each cycle

Each of the three is a mean of the costs of all states, with other weights.
"""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from melisma.allocation.schemes import CostsIn
from melisma.cycle.learner import CostHistory
from melisma.fleet.array_types import Floats, Ints
from melisma.fleet.estimates import LEAST_COUNT, Estimate


def report_weights(
    costs_in: CostsIn, probability: Floats, measured_in: Ints, present: Ints
) -> Floats:
    """Return the weight of the costs of each state in a report, learners by states."""
    if costs_in == "expected":
        return probability
    return np.eye(probability.shape[1])[measured_in if costs_in == "measured" else present]


def mean_history(histories: Sequence[CostHistory], weights: Floats) -> CostHistory:
    """Return the weighted mean of the costs in each state; weights are learners by states.

    The weights of a learner sum to 1. The result has arrays over learners.
    """
    columns = [
        _mean_estimate([getattr(history, field.name) for history in histories], weights.T)
        for field in fields(CostHistory)
    ]
    return CostHistory(*columns)


def _mean_estimate(estimates: Sequence[Estimate], weights: Floats) -> Estimate:
    """Return the mean cost; what a mean is worth in cycles is the harmonic mean of the counts."""
    mean, spread, doubt = np.zeros((3, weights.shape[1]))
    for estimate, weight in zip(estimates, weights, strict=True):
        mean = mean + weight * estimate.mean
        spread = spread + weight * estimate.spread
        doubt = doubt + weight / estimate.count
    # Weights are rounded, and so is their sum.
    return Estimate(mean, spread, np.maximum(1.0 / doubt, LEAST_COUNT))
