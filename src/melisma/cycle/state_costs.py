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


def mean_over_states(values: Sequence[Floats], weights: Floats) -> Floats:
    """Return the weighted mean of the values of each state; weights are learners by states.

    The weights of a learner sum to 1.
    """
    mean = np.zeros(weights.shape[0])
    for value, weight in zip(values, weights.T, strict=True):
        mean = mean + weight * value
    return mean


def mean_history(histories: Sequence[CostHistory], weights: Floats) -> CostHistory:
    """Return the weighted mean of the costs in each state; weights are learners by states.

    The result has arrays over learners.
    """
    columns = [
        _mean_estimate([getattr(history, field.name) for history in histories], weights)
        for field in fields(CostHistory)
    ]
    return CostHistory(*columns)


def _mean_estimate(estimates: Sequence[Estimate], weights: Floats) -> Estimate:
    """Return the mean cost; what a mean is worth in cycles is the harmonic mean of the counts."""
    doubt = mean_over_states([1.0 / each.count for each in estimates], weights)
    return Estimate(
        mean_over_states([each.mean for each in estimates], weights),
        mean_over_states([each.spread for each in estimates], weights),
        # Weights are rounded, and so is their sum.
        np.maximum(1.0 / doubt, LEAST_COUNT),
    )
