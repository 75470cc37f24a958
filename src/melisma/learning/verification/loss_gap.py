"""The first filter: an update that was trained on shards fits them better than other shards.

The loss of small chunks of samples is computed before and after the update, on shards that its
learner was given and on shards that it was not. The statistic is Welch's t of the two falls: about
a standard normal number for a learner that did not train its shards, larger for one that did.

How much larger depends on the task: after one pass over many samples, hardly at all. So learners
are compared with each other, over several updates of each (`cycle.trust`), and the filter convicts
nobody: a learner that fails it is checked by re-execution.
"""

from collections.abc import Sequence
from math import isfinite, nan, sqrt
from typing import Final

import numpy as np

from melisma.fleet.array_types import Floats, Ints
from melisma.learning.data.datasets import Split
from melisma.learning.parameters import Arrays
from melisma.learning.trainer import Trainer

CHUNKS: Final = 16  # of each kind of shards
MAX_SAMPLES: Final = 1024  # of each kind
MIN_SAMPLES: Final = 2 * CHUNKS
COST_FRACTION: Final = 0.01
"""The most that the filter computes, as a part of the training that it checks."""
EVALUATIONS: Final = 4  # before and after, on both kinds of shards
FORWARD_FRACTION: Final = 1 / 3
"""The cost of an evaluated sample in trained ones."""


def sample_count(visits: int) -> int:
    """Return how many samples of each kind to evaluate; 0 where they would cost too much."""
    affordable = int(COST_FRACTION * visits / (EVALUATIONS * FORWARD_FRACTION))
    count = min(MAX_SAMPLES, affordable) // CHUNKS * CHUNKS
    return count if count >= MIN_SAMPLES else 0


def filter_visits(samples: int) -> float:
    """Return the cost of the filter in trained samples."""
    return samples * EVALUATIONS * FORWARD_FRACTION


def choose_rows(count: int, available: int, rng: np.random.Generator) -> Ints:
    """Return `count` different rows, in random order; all of them if there are fewer."""
    return rng.permutation(available)[:count]


def loss_gap(trainer: Trainer, start: Arrays, update: Arrays, given: Split, other: Split) -> float:
    """Return the statistic of one update; NaN if it cannot be computed."""
    if min(len(given), len(other)) < MIN_SAMPLES:
        return nan
    falls = [_falls(trainer, start, update, samples) for samples in (given, other)]
    return welch_t(*falls)


def welch_t(one: Floats, other: Floats) -> float:
    """Return the difference of two means in its standard errors; NaN if that is not finite."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        variance = one.var(ddof=1) / one.size + other.var(ddof=1) / other.size
        difference = float(one.mean() - other.mean())
    if not isfinite(difference) or not isfinite(variance):
        return nan
    if variance == 0:
        return 0.0 if difference == 0 else nan
    return difference / sqrt(variance)


def _falls(trainer: Trainer, start: Arrays, update: Arrays, samples: Split) -> Floats:
    """Return by how much the mean loss of each chunk falls."""
    chunks = [samples.take(rows) for rows in np.array_split(np.arange(len(samples)), CHUNKS)]
    before, after = _losses(trainer, start, chunks), _losses(trainer, update, chunks)
    return before - after


def _losses(trainer: Trainer, parameters: Arrays, chunks: Sequence[Split]) -> Floats:
    return np.array([trainer.score(parameters, chunk).loss for chunk in chunks])
