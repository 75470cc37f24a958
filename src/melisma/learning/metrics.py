"""The figures of the papers, on what was really done.

Cycles and learners come as arrays. NaN stands for what is not known, or was not: a cycle in which
nobody handed in anything has no time. A figure over nothing is NaN, never a flattering 0 or 1.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def truancy(cycle_s: ArrayLike, deadline_s: ArrayLike) -> Floats:
    """How far each cycle went past its deadline, as a part of it; NaN for one without a time."""
    cycle, deadline = _floats(cycle_s), _floats(deadline_s)
    return np.maximum(0.0, cycle - deadline) / deadline


def mean_truancy(cycle_s: ArrayLike, deadline_s: ArrayLike) -> float:
    """The mean over cycles that have a time."""
    return mean_known(truancy(cycle_s, deadline_s))


def satisfaction(ended_s: ArrayLike, deadline_s: ArrayLike) -> float:
    """Share of cycles that ended by the deadline; one without a time did not."""
    ended, deadline = np.broadcast_arrays(_floats(ended_s), _floats(deadline_s))
    return float(np.mean(ended <= deadline)) if ended.size else np.nan


def training_s(cycle_s: ArrayLike) -> float:
    """Seconds of all cycles together; those without a time add none."""
    known = _without_nan(cycle_s)
    return float(known.sum()) if known.size else np.nan


def fulfilment(done: ArrayLike, planned: ArrayLike) -> float:
    """Visits done of those planned, over all learners given.

    What one does beyond its plan does not make up for another; NaN if nothing was planned.
    """
    wanted, did = _floats(planned), _floats(done)
    total = float(wanted.sum())
    return float(np.minimum(did, wanted).sum()) / total if total > 0 else np.nan


def drop_rate(done: ArrayLike, planned: ArrayLike) -> float:
    """Visits planned that were not done."""
    return 1.0 - fulfilment(done, planned)


def occupancy(busy_s: ArrayLike, cycle_s: ArrayLike) -> Floats:
    """Time of each learner in phases other than wait, as a part of the cycle time.

    NaN where either is not known, or the cycle took no time. Above 1 where a learner measured more
    than the orchestrator did.
    """
    busy, cycle = np.broadcast_arrays(_floats(busy_s), _floats(cycle_s))
    share = np.full(busy.shape, np.nan)
    np.divide(busy, cycle, out=share, where=cycle > 0)
    return share


def max_staleness(updates: ArrayLike) -> float:
    """Largest difference of updates between two learners; 0 for fewer than two.

    `updates` are those of all learners that were given shards: 0 for a learner that made none, NaN
    for one of which it is not known.
    """
    known = _without_nan(updates)
    return float(known.max() - known.min()) if known.size else 0.0


def average_staleness(updates: ArrayLike) -> float:
    """Mean difference over all pairs of learners (Eq. 13 of Mohammad and Sorour).

    `updates` as for `max_staleness`.
    """
    known = np.sort(_without_nan(updates))
    if known.size < 2:
        return 0.0
    # In order, the i-th is larger than i others and smaller than all that follow.
    larger_than = np.arange(known.size) * 2 - (known.size - 1)
    return float(larger_than @ known) / (known.size * (known.size - 1) / 2)


def mean_known(values: ArrayLike) -> float:
    """The mean of what is known, NaN if nothing is."""
    known = _without_nan(values)
    return float(known.mean()) if known.size else np.nan


def _without_nan(values: ArrayLike) -> Floats:
    each = _floats(values)
    return each[~np.isnan(each)]


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, np.float64)
