"""The score of a model from the sums of learners, which no other machine can verify.

A learner counts with at most the samples that it holds out by what it declared when it joined, with
at most 4 times the median of all, and with at most as many as the others together. It has at most
twice as many labels per sample as the median. From three learners on, the mean loss of one counts
up to 10 times the median of all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Final

import numpy as np

from melisma.fleet.array_types import Floats
from melisma.learning.trainer import Score

MAX_SAMPLES_FACTOR: Final = 4.0
MAX_LABELS_FACTOR: Final = 2.0
MAX_LOSS_FACTOR: Final = 10.0
MIN_COMPARED_LOSSES: Final = 3


@dataclass(frozen=True)
class CombinedScore:
    """Mean loss and accuracy over samples of several learners; NaN where there are none."""

    samples: float
    loss: float
    accuracy: float


def combine_scores(scores: Sequence[Score], limits: Sequence[int]) -> CombinedScore:
    """Combine the scores of learners that count with at most `limits` samples.

    The loss is NaN if more than half of the losses are not finite; otherwise those do not count.
    """
    pairs = [
        (score, limit)
        for score, limit in zip(scores, limits, strict=True)
        if score.samples and limit
    ]
    finite = [pair for pair in pairs if isfinite(pair[0].loss_sum)]
    # A few learners cannot reject a model that is of use to the others.
    is_finite = 2 * len(finite) >= len(pairs)
    counted = finite if is_finite else pairs
    if not counted:
        return CombinedScore(0.0, nan, nan)
    samples = np.array([float(score.samples) for score, _ in counted])
    weights = _bound_weights(np.minimum(samples, [float(limit) for _, limit in counted]))
    losses = _bound_losses(np.array([score.loss for score, _ in counted])) if is_finite else nan
    # Losses and accuracies are weighted before they are added, because sums may be huge.
    loss = float(np.sum(losses * (weights / weights.sum())))
    return CombinedScore(float(weights.sum()), loss, _accuracy([s for s, _ in counted], weights))


def _accuracy(scores: Sequence[Score], weights: Floats) -> float:
    """Return the accuracy over all labels; NaN if most learners have none."""
    labelled = np.array([score.label_count > 0 for score in scores])
    if 2 * labelled.sum() < labelled.size:
        return nan
    known = [score for score in scores if score.label_count]
    labels_per_sample = np.array([score.label_count / score.samples for score in known])
    limit = MAX_LABELS_FACTOR * _lower_median(labels_per_sample)
    labels = _bound_largest(weights[labelled] * np.minimum(labels_per_sample, limit))
    accuracies = np.array([score.accuracy for score in known])
    return float(np.sum(accuracies * (labels / labels.sum())))


def _bound_weights(weights: Floats) -> Floats:
    """Return weights of which none is far above the median, or above the sum of the others."""
    return _bound_largest(np.minimum(weights, MAX_SAMPLES_FACTOR * _lower_median(weights)))


def _bound_largest(weights: Floats) -> Floats:
    """Return weights of which none is above the sum of the others."""
    bounded: Floats = weights.copy()
    largest = int(np.argmax(weights))
    if weights.size > 1:
        bounded[largest] = min(weights[largest], float(np.delete(weights, largest).sum()))
    return bounded


def _bound_losses(losses: Floats) -> Floats:
    """Return losses of which none is far above the median in size."""
    if losses.size < MIN_COMPARED_LOSSES:
        return losses
    limit = MAX_LOSS_FACTOR * _lower_median(np.abs(losses))
    return np.clip(losses, -limit, limit)


def _lower_median(values: Floats) -> float:
    return float(np.sort(values)[(values.size - 1) // 2])
